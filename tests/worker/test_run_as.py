"""As which OS users a process runs commands, and what it refuses."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Connection
from tests.support import factories
from tests.support.demo import as_user, environment, interpreter
from tests.support.processes import ROOT, run_wakeboard
from wakeboard.config.settings import Settings, SettingsError
from wakeboard.core.outcome import Permanent
from wakeboard.handlers import run_as
from wakeboard.handlers.builtin.command import CommandFailed, command
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import job
from wakeboard.queue import handler_connection

OTHER = "nobody"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another OS user")
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(autouse=True)
def handler_process(shared_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", shared_database)
    yield
    handler_connection.close_thread_connection()


def defined(shared: Connection, user: str, *argv: str, **more: object) -> Context:
    """The context of a run of ``argv`` that belongs to ``user``."""
    job_type = f"command:{user}"
    id_ = factories.a_definition(shared, job_type=job_type, payload={"argv": list(argv), **more})
    return Context(run_id=7, job_type=job_type, definition_id=id_, payload={}, timeout_seconds=30)


def named(users: str) -> Settings:
    return Settings.load(environ={"WAKEBOARD_RUN_AS_USERS": users})


def test_a_process_has_the_commands_of_its_own_user_and_root_those_of_users_that_it_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(run_as.VARIABLE, raising=False)
    assert run_as.command_types() == [f"command:{ME}"]
    monkeypatch.setenv(run_as.VARIABLE, "www-data, nobody")
    told = run_as.command_types()
    others = ["command:www-data", "command:nobody"] if os.geteuid() == 0 else []
    assert told == [f"command:{ME}", *others]


@AS_ROOT
def test_who_is_not_root_registers_its_own_commands_alone_and_runs_no_others() -> None:
    look = (
        "from wakeboard.handlers.registry import JOB_TYPES, load_app; load_app(None);"
        "print(sorted(name for name in JOB_TYPES if name.startswith('command')));"
        "from wakeboard.handlers.builtin.command import command;"
        "from wakeboard.handlers.context import Context;"
        "command(Context(run_id=1, job_type='command:root'))"
    )
    said = subprocess.run(
        [interpreter(OTHER), "-P", "-c", look], **as_user(OTHER), cwd="/",
        env=environment(ROOT) | {run_as.VARIABLE: "root"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.stdout == f"['command', 'command:{OTHER}']\n"
    assert said.stderr.endswith(
        f"wakeboard.core.outcome.Permanent: This is a command of 'root', and its worker runs as '{OTHER}', "
        "which may not run it: start a worker as root.\n"
    )


@pytest.mark.parametrize(
    ("user", "code", "why"),
    [
        ("33", "user_unknown", "'33' is not the name of an OS user"),
        ("", "user_unknown", "is not the name of an OS user"),
        ("www-data", "user_not_allowed", "or a worker as root with WAKEBOARD_RUN_AS_USERS=www-data"),
    ],
)
def test_a_run_of_a_user_for_whom_this_process_may_not_run_is_refused(
    shared: Connection, tmp_path: Path, user: str, code: str, why: str
) -> None:
    with pytest.raises(Permanent) as refused:
        command(defined(shared, user, "/bin/touch", str(tmp_path / "made")))
    assert refused.value.error_code == code
    assert why in str(refused.value)
    assert not (tmp_path / "made").exists()


@AS_ROOT
def test_a_user_that_is_not_there_any_more_is_refused(
    shared: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_as.VARIABLE, "gone")
    with pytest.raises(Permanent, match="There is no user 'gone' on this machine"):
        command(defined(shared, "gone", "/bin/true"))


@AS_ROOT
def test_a_folder_that_the_user_may_not_enter_is_told(
    shared: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_as.VARIABLE, OTHER)
    tmp_path.chmod(0o700)
    with pytest.raises(CommandFailed, match=f"'{OTHER}' may not enter the folder") as failed:
        command(defined(shared, OTHER, "/bin/true", cwd=str(tmp_path)))
    assert failed.value.error_code == "command_not_started"


@AS_ROOT
def test_a_command_of_another_user_reads_its_input_and_what_it_prints_on_each_stream_is_kept(
    shared: Connection, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(run_as.VARIABLE, OTHER)
    script = "id -un; cat; id -un >&2"
    assert command(defined(shared, OTHER, "/bin/sh", "-c", script, stdin="given\n")) == {"exit": 0}
    assert capfd.readouterr().out == f"{OTHER}\ngiven\n{OTHER}\n"


@pytest.mark.parametrize("users", [" ", "a,", ",", "a\nb", "0", "a b"])
def test_what_names_no_users_is_refused_with_what_is_allowed(users: str) -> None:
    with pytest.raises(SettingsError, match="allowed: names of OS users, separated by commas"):
        named(users)


@AS_ROOT
@pytest.mark.parametrize(
    ("users", "why"),
    [
        ("nobody,no-such-user", "names 'no-such-user', and there is no such user on this machine"),
        ("nobody, root", "names 'root', which is root"),
    ],
)
def test_a_worker_does_not_start_for_users_that_it_cannot_become(users: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        run_as.check(named(users))
    said = run_wakeboard("worker", environment={run_as.VARIABLE: users})
    assert said.returncode == 2 and why in said.stderr


@AS_ROOT
def test_only_root_starts_with_users_to_become() -> None:
    run_as.check(named(OTHER))
    said = subprocess.run(
        [interpreter(OTHER), "-P", "-m", "wakeboard", "worker", "--run-as-users", "www-data"],
        **as_user(OTHER), cwd="/", env=environment(ROOT), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 2
    assert "only root can become another user: start the worker as root, or take" in said.stderr


def test_an_author_cannot_take_the_name_of_a_user_s_commands() -> None:
    with pytest.raises(ValueError, match="kept for the commands of an OS user"):

        @job("command:root")
        def mine(_context: Context) -> None:
            """Never runs."""


@AS_ROOT
def test_a_program_of_another_user_prints_into_a_pipe_of_its_own_and_never_into_the_file_of_later_runs(
    shared: Connection, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(run_as.VARIABLE, OTHER)
    script = "readlink /proc/self/fd/1 /proc/self/fd/2; seq 1 40000; echo last words >&2; (sleep 60 &)"
    assert command(defined(shared, OTHER, "/bin/sh", "-c", script)) == {"exit": 0}
    out, err, *lines, last = capfd.readouterr().out.splitlines()
    assert out.startswith("pipe:") and out == err
    assert lines == [str(number) for number in range(1, 40001)]
    assert last == "last words"


@AS_ROOT
def test_a_program_of_another_user_that_closes_its_output_is_waited_for(
    shared: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_as.VARIABLE, OTHER)
    with pytest.raises(CommandFailed) as failed:
        command(defined(shared, OTHER, "/bin/sh", "-c", "exec >&- 2>&-; sleep 1; exit 5"))
    assert failed.value.error_code == "exit_5"
