"""A user whom no password file knows, as in a container that is started as any number: everything works."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.factories import Connection, row, rows
from tests.support.http_client import Visitor
from tests.support.postgres.wire_proxy import between
from tests.support.processes import ROOT, SOURCES, free_port, wait_until
from tests.support.workers.worker_processes import SHORT, insert

UID = next(uid for uid in range(12345, 65000) if uid not in {user.pw_uid for user in pwd.getpwall()})
# Only root can become somebody else. The tests' Python may stand where only root may look, so reading is let
# alone; what may be written stays as it is for that user.
BECOME = [
    "setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search", "--",
]  # fmt: skip


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "only root can become a user whom nobody knows"
    if shutil.which("setpriv") is None:
        return "there is no setpriv here (util-linux)"
    tried = subprocess.run([*BECOME, sys.executable, "-c", ""], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"nobody else may start Python here: {tried.stderr.strip()}"


WHY_NOT = _why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
HOMES = [None, "/", "/root/none"]


@pytest.fixture
def way_in(database: str) -> Iterator[str]:
    """The URL of a way to the database that asks for no OS user."""
    with between(database) as middleman:
        yield middleman.url


def surroundings(home: str | None, database: str | None, **variables: str) -> dict[str, str]:
    """Return an environment with nothing of ours but the path."""
    given = {"PATH": "/usr/bin:/bin", "PYTHONPATH": SOURCES, "PYTHONDONTWRITEBYTECODE": "1"} | variables
    given |= {"HOME": home} if home else {}
    return given | ({"WAKEBOARD_DATABASE_URL": database} if database else {})


def unknown(
    *words: str, home: str | None = None, database: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``wakeboard <words>`` to its end as a user whom nobody knows."""
    return subprocess.run(
        [*BECOME, sys.executable, "-m", "wakeboard", *words], cwd=ROOT, capture_output=True, text=True,
        env=surroundings(home, database, **variables), timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("home", HOMES[:2])
def test_commands_work(way_in: str, connection: Connection, home: str | None) -> None:
    for words in (
        ["--version"],
        ["--help"],
        ["config"],
        ["doctor"],
        ["runs"],
        ["enqueue", "quick", "--new-type"],
    ):
        done = unknown(*words, home=home, database=way_in, WAKEBOARD_APP="tests.support.workers.apps.motion")
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), (words, done.stderr)
    (enqueued,) = rows(connection, "job_runs")
    assert unknown("cancel", str(enqueued["id"]), home=home, database=way_in).returncode == 0
    assert rows(connection, "audit_log")[-1]["actor"] == f"cli:uid {UID}"


@pytest.mark.parametrize("home", HOMES)
def test_a_program_runs_with_the_number_for_a_name(
    way_in: str, connection: Connection, home: str | None
) -> None:
    asks = {"argv": ["/bin/sh", "-c", 'echo "$USER $LOGNAME $HOME"; pwd; id -u']}
    run_id = insert(connection, "command", asks)
    done = unknown("tick", home=home, database=way_in, **SHORT, WAKEBOARD_ALLOW_COMMANDS="1")
    assert done.returncode == 0, done.stderr
    assert row(connection, run_id)["status"] == "succeeded", done.stderr
    (attempt,) = rows(connection, "job_attempts")
    assert attempt["output_tail"].splitlines() == [f"{UID} {UID} {home or '/'}", "/", str(UID)]


def test_the_dashboard_answers(way_in: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    environment = surroundings(None, way_in, WAKEBOARD_BIND=address)
    visitor = Visitor(f"http://{address}")
    with _started([*BECOME, sys.executable, "-m", "wakeboard", "web"], environment) as web:
        wait_until(visitor.is_answered, 30, "the dashboard answers")
        web.terminate()
        assert web.wait(30) == 0


@contextmanager
def _started(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("home", HOMES[:2])
def test_who_has_no_place_for_the_embedded_database_is_told_what_to_set(home: str | None) -> None:
    done = unknown("up", "--port", "0", home=home)
    assert done.returncode == 1
    assert "set WAKEBOARD_DATA_DIR to another folder" in done.stderr.splitlines()[-1]


def test_the_embedded_database_says_that_it_needs_a_name(tmp_path: Path) -> None:
    os.chown(tmp_path, UID, UID)
    done = unknown("runs", WAKEBOARD_DATA_DIR=str(tmp_path))
    assert done.returncode == 1
    assert f"The OS user with id {UID} has no name, and PostgreSQL needs one" in done.stderr


@pytest.mark.parametrize("folder", ["~/data", "~nobody_at_all/data"])
def test_a_home_that_nobody_knows_is_a_wrong_setting(folder: str) -> None:
    done = unknown("runs", WAKEBOARD_DATA_DIR=folder)
    assert (done.returncode, done.stderr) == (2, f"WAKEBOARD_DATA_DIR is '{folder}'; allowed: a folder.\n")
