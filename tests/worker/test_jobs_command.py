"""The built-in job type ``command``: programs as cron would run them, and how their end is told."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Connection
from tests.support import factories
from tests.support.processes import wait_until
from wakeboard.core.outcome import Cancelled, DeadlineExceeded, Permanent
from wakeboard.handlers.builtin.command import CommandFailed, command
from wakeboard.handlers.context import Context
from wakeboard.queue import handler_connection


@pytest.fixture(autouse=True)
def handler_process(shared_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", shared_database)
    yield
    handler_connection.close_thread_connection()


def defined(shared: Connection, *argv: str, timeout: float = 30, **more: Any) -> Context:
    """The context of a run of a definition that says ``argv``."""
    id_ = factories.a_definition(shared, job_type="command", payload={"argv": list(argv), **more})
    return Context(
        run_id=7, attempt=2, job_type="command", definition_id=id_, payload={}, timeout_seconds=timeout
    )


def test_a_command_runs_and_its_output_is_the_runs(
    shared: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command(defined(shared, "/bin/sh", "-c", "echo out; echo err >&2")) == {"exit": 0}
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out\n", "err\n")


def test_words_are_words_and_no_shell_reads_them(
    shared: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    command(defined(shared, "/bin/echo", "$HOME; rm -rf *", "a  b"))
    assert capfd.readouterr().out == "$HOME; rm -rf * a  b\n"


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 3", "exit_3"), ("kill -9 $$", "signal_SIGKILL"), ("kill -USR1 $$", "signal_SIGUSR1")],
)
def test_how_a_command_ended_is_its_error_code(shared: Connection, script: str, code: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        command(defined(shared, "/bin/sh", "-c", script))
    assert failed.value.error_code == code


@pytest.mark.parametrize("code", [0, 1, 124])
def test_an_exit_code_that_the_definition_names_is_success_and_is_kept(shared: Connection, code: int) -> None:
    context = defined(shared, "/bin/sh", "-c", f"exit {code}", ok_codes=[0, 1, 124])
    assert command(context) == {"exit": code}


def test_no_other_exit_code_and_no_signal_is_success(shared: Connection) -> None:
    for script, code in (("exit 2", "exit_2"), ("kill -1 $$", "signal_SIGHUP"), ("exit 0", "exit_0")):
        with pytest.raises(CommandFailed) as failed:
            command(defined(shared, "/bin/sh", "-c", script, ok_codes=[1]))
        assert failed.value.error_code == code


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("echo first; echo disk is full >&2; echo; exit 1", "disk is full"),
        (r"printf 'first\r\n\033[31mdisk\033[0m is full\r\n'; exit 1", "disk is full"),
        (r"for n in $(seq 9000); do printf '\r\033[K%d of 9000' $n; done; exit 1", "9000 of 9000"),
        (r"printf 'disk is full\033[0'; exit 1", "disk is full"),
    ],
)
def test_the_last_line_a_command_printed_is_in_the_message(
    shared: Connection, tmp_path: Path, script: str, line: str
) -> None:
    context = defined(shared, "/bin/sh", "-c", script)
    output, kept = os.open(tmp_path / "output", os.O_RDWR | os.O_CREAT | os.O_APPEND), os.dup(1)
    kept_error = os.dup(2)
    try:
        os.write(output, b"of the run before\n")
        os.dup2(output, 1)
        os.dup2(output, 2)
        with pytest.raises(CommandFailed) as failed:
            command(context)
    finally:
        os.dup2(kept, 1)
        os.dup2(kept_error, 2)
        for fd in (kept, kept_error, output):
            os.close(fd)
    assert str(failed.value) == f"The command ended with exit status 1: {line}"


def test_a_program_that_is_not_there_is_named(shared: Connection) -> None:
    with pytest.raises(CommandFailed, match="'/no/such/program'") as failed:
        command(defined(shared, "/no/such/program"))
    assert failed.value.error_code == "command_not_found"
    with pytest.raises(CommandFailed, match="no folder '/no/such'") as failed:
        command(defined(shared, "/bin/true", cwd="/no/such"))
    assert failed.value.error_code == "command_not_started"


def test_a_command_sees_crons_environment_and_its_run_and_not_the_workers_secrets(
    shared: Connection, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hush")
    command(defined(shared, "/usr/bin/env", env={"COLOUR": "blue", "WAKEBOARD_RUN_ID": "1"}))
    seen = dict(line.split("=", 1) for line in capfd.readouterr().out.splitlines())
    assert seen["COLOUR"] == "blue"
    assert (seen["WAKEBOARD_RUN_ID"], seen["WAKEBOARD_ATTEMPT"], seen["WAKEBOARD_KEY"]) == ("7", "2", "run-7")
    assert {"PATH", "HOME", "LOGNAME", "SHELL"} <= set(seen)
    assert not {"SECRET", "WAKEBOARD_DATABASE_URL"} & set(seen)


def test_a_command_reads_the_text_it_is_given_and_nothing_otherwise(
    shared: Connection, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command(defined(shared, "/bin/cat", stdin="Grüße\n" * 40_000))
    assert len(capfd.readouterr().out) == 6 * 40_000
    command(defined(shared, "/bin/sh", "-c", "cat; pwd", cwd=str(tmp_path)))
    assert capfd.readouterr().out == f"{tmp_path}\n"


def test_large_input_that_nobody_reads_does_not_block(shared: Connection) -> None:
    assert command(defined(shared, "/bin/true", stdin="x" * 500_000)) == {"exit": 0}


def test_a_cancelled_command_is_asked_to_end_with_its_whole_group(shared: Connection, tmp_path: Path) -> None:
    script = "trap 'echo bye > bye; exit 0' TERM; sleep 60 & echo $! > pid; wait"
    context = defined(shared, "/bin/sh", "-c", script, cwd=str(tmp_path))

    def cancel_once_it_runs() -> None:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        context.ask_cancel()

    canceller = threading.Thread(target=cancel_once_it_runs)
    canceller.start()
    with pytest.raises(Cancelled):
        command(context)
    canceller.join()
    assert (tmp_path / "bye").exists()
    sleeper = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(sleeper))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_command_past_its_deadline_is_stopped(shared: Connection) -> None:
    with pytest.raises(DeadlineExceeded):
        command(defined(shared, "/bin/sleep", "60", timeout=0.2))


def test_what_to_run_is_read_from_the_definition_at_each_start(
    shared: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    context = defined(shared, "/bin/echo", "old")
    context.payload = {"argv": ["/bin/echo", "from the run"]}
    shared.execute(
        """UPDATE wakeboard.job_definitions SET payload = '{"argv": ["/bin/echo", "new"]}' WHERE id = %s""",
        (context.definition_id,),
    )
    command(context)
    assert capfd.readouterr().out == "new\n"


def test_a_run_whose_definition_is_gone_or_of_another_type_is_dead_at_once(shared: Connection) -> None:
    context = defined(shared, "/bin/true")
    shared.execute(
        "UPDATE wakeboard.job_definitions SET job_type = 'http' WHERE id = %s", (context.definition_id,)
    )
    with pytest.raises(Permanent, match="is of type 'http' now") as refused:
        command(context)
    assert refused.value.error_code == "definition_gone"
    shared.execute("DELETE FROM wakeboard.job_definitions WHERE id = %s", (context.definition_id,))
    with pytest.raises(Permanent, match="removed") as refused:
        command(context)
    assert refused.value.error_code == "definition_gone"


def test_an_insert_is_not_a_shell_unless_the_operator_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = Context(run_id=1, job_type="command", payload={"argv": ["/bin/touch", str(tmp_path / "made")]})
    monkeypatch.delenv("WAKEBOARD_ALLOW_COMMANDS", raising=False)
    with pytest.raises(Permanent, match="WAKEBOARD_ALLOW_COMMANDS=1") as refused:
        command(context)
    assert refused.value.error_code == "commands_not_allowed"
    assert not (tmp_path / "made").exists()
    monkeypatch.setenv("WAKEBOARD_ALLOW_COMMANDS", "1")
    assert command(context) == {"exit": 0}
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"argv": []},
        {"argv": "ls -l"},
        {"argv": [1]},
        {"argv": [""]},
        {"argv": ["a\x00b"]},
        {"argv": ["true"], "env": ["A=1"]},
        {"argv": ["true"], "env": {"A": 1}},
        {"argv": ["true"], "stdin": 5},
        {"argv": ["true"], "cwd": ["/"]},
        {"argv": ["true"], "shell": True},
        [],
    ],
)
def test_instructions_that_make_no_sense_are_dead_with_a_sentence(
    payload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAKEBOARD_ALLOW_COMMANDS", "1")
    with pytest.raises(Permanent, match="cannot be followed") as refused:
        command(Context(run_id=1, job_type="command", payload=payload))
    assert refused.value.error_code == "instructions_unreadable"


def test_importing_the_built_in_jobs_registers_them_and_nothing_of_the_demo() -> None:
    look = (
        "import sys, wakeboard.handlers.builtin, wakeboard.handlers.registry as r;"
        "print(sorted(r.JOB_TYPES), 'wakeboard.demo' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert answer.stdout == "['alert', 'command', 'http'] False\n"
