"""``wakeboard up``, ``web`` and ``tick`` as real processes: they start, they say so, they leave nothing."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.conftest import Connection
from tests.support import processes
from tests.support.factories import rows
from tests.support.postgres.embedded import short_folder
from tests.support.processes import Wakeboard, run_wakeboard, wait_until, wakeboard
from wakeboard.database import embedded

LINK = re.compile(r"Wakeboard is at (http://127\.0\.0\.1:\d+)/login\?token=\S+")
MANY = """
INSERT INTO wakeboard.job_runs (job_type, payload) SELECT 'mail', '{"n": 1}' FROM generate_series(1, 900)
"""
SHOP = """
from wakeboard import job

@job("hello", max_attempts=1)
def hello(ctx):
    return "hello"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with the handlers of a shop."""
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def address(up: Wakeboard) -> str:
    up.wait_for("Wakeboard is at", 60)
    found = LINK.search(up.output)
    assert found, up.output
    return found[1]


def status(url: str, path: str) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture
def up(database: str, folder: Path) -> Iterator[Wakeboard]:
    """A household on ``database``, on any free port."""
    with wakeboard("up", "--port", "0", "--app", "shop", database=database, folder=folder) as started:
        yield started


def test_up_runs_a_worker_and_a_dashboard_and_ctrl_c_leaves_nothing(
    up: Wakeboard, database: str, folder: Path, connection: Connection
) -> None:
    url = address(up)
    link = LINK.search(up.output)
    assert link
    assert status(url, link[0].split(url)[1]) == 200
    said = run_wakeboard("enqueue", "hello", database=database, folder=folder)
    assert said.returncode == 0, said.stderr
    wait_until(lambda: rows(connection, "job_runs", "status = 'succeeded'"), 20, "the run has succeeded")
    family = up.family()
    assert len(family) >= 3
    up.process.send_signal(signal.SIGINT)
    assert up.wait(40) == 0, up.output
    assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    with pytest.raises(OSError):
        status(url, "/healthz")


def test_up_starts_a_killed_worker_again_and_says_so(up: Wakeboard) -> None:
    address(up)
    (killed,) = [each for each in psutil.Process(up.pid).children() if each.cmdline()[-1] == "worker"]
    killed.kill()
    up.wait_for("The worker was killed by SIGKILL; it starts again in 1 s.")
    wait_until(lambda: up.output.count("Worker started") == 2, 20, "the worker has started again")
    assert up.terminate(40) == 0


def test_when_up_itself_is_killed_its_family_ends_too(up: Wakeboard) -> None:
    address(up)
    family = psutil.Process(up.pid).children(recursive=True)
    up.kill()
    wait_until(
        lambda: all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in family),
        30,
        "worker and dashboard have ended",
    )


def test_up_leaves_a_server_that_ran_before_and_says_how_it_is_stopped(folder: Path) -> None:
    with short_folder() as data_dir:
        variables = {"WAKEBOARD_DATA_DIR": str(data_dir)}
        assert run_wakeboard("db", "upgrade", environment=variables).returncode == 0
        words = ("up", "--port", "0", "--app", "shop")
        with wakeboard(*words, folder=folder, environment=variables) as up:
            address(up)
            assert up.terminate(40) == 0
            assert "ran before and stays on; to stop it: wakeboard db stop" in up.output
        assert embedded.is_running(data_dir)
        said = run_wakeboard("db", "stop", environment=variables)
        assert said.returncode == 0 and not embedded.is_running(data_dir), said.stderr


def test_a_taken_port_is_one_line_before_anything_starts(empty_database: str, connection: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = run_wakeboard("up", "--port", port, database=empty_database)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.count("\n") == 1
    assert port in said.stderr
    assert "--port" in said.stderr
    assert run_wakeboard("db", "check", database=empty_database).returncode == 1


def test_an_app_that_cannot_be_imported_ends_up_with_the_code_2(database: str, folder: Path) -> None:
    said = run_wakeboard("up", "--port", "0", "--app", "no_such_shop", database=database, folder=folder)
    assert said.returncode == 2
    assert "no_such_shop" in said.stderr


@pytest.mark.parametrize("words", [("worker",), ("tick",), ("up", "--port", "0")], ids=lambda words: words[0])
def test_the_log_says_in_its_own_shape_why_an_app_cannot_be_imported(
    words: tuple[str, ...], database: str, folder: Path
) -> None:
    (folder / "broken.py").write_text("def broken(:\n")
    failure = "SyntaxError: invalid syntax (broken.py, line 1)"
    sentence = f"The handlers' module 'broken' cannot be imported: {failure}"
    for log_format in ("json", "text"):
        environment = {"WAKEBOARD_LOG_FORMAT": log_format}
        said = run_wakeboard(
            *words, "--app", "broken", database=database, environment=environment, folder=folder
        )
        assert said.returncode == 2, said.stderr
        lines = said.stderr.splitlines()
        if log_format == "text":
            assert sentence in lines and "    def broken(:" in lines
            continue
        # What up itself says is for people.
        logged = [json.loads(line) for line in lines if words[0] != "up" or line.startswith("{")]
        [told] = [line for line in logged if line["level"] == "error"]
        assert told["event"] == sentence and "def broken(:" in told["exception"]
        assert "Traceback" not in "".join(line for line in lines if not line.startswith("{"))


def test_a_tick_runs_what_is_due_and_ends(database: str, folder: Path, connection: Connection) -> None:
    words = ("tick", "--app", "shop", "--for", "30s")
    assert run_wakeboard(*words, database=database, folder=folder).returncode == 0
    run_wakeboard("enqueue", "hello", database=database, folder=folder)
    said = run_wakeboard(*words, database=database, folder=folder)
    assert said.returncode == 0, said.stderr
    assert [run["status"] for run in rows(connection, "job_runs")] == ["succeeded"]


def test_web_serves_the_dashboard_alone(database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        bind = f"127.0.0.1:{free.getsockname()[1]}"
    with wakeboard("web", "--bind", bind, database=database) as web:
        web.wait_for("listens on")
        assert status(f"http://{bind}", "/healthz") == 200
        assert web.terminate() == 0


def test_a_file_of_the_users_called_worker_does_not_take_our_place(
    database: str, folder: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the installed script starts: the working folder is not on the path.
    monkeypatch.setattr(
        processes, "_command", lambda words: [sys.executable, "-P", "-m", "wakeboard", *words]
    )
    (folder / "worker.py").write_text("raise SystemExit('the wrong worker')\n")
    with wakeboard("up", "--port", "0", "--app", "shop", database=database, folder=folder) as up:
        address(up)
        wait_until(lambda: rows(connection, "job_types", "name = 'hello'"), 20, "the shop is registered")
        assert "the wrong worker" not in up.output
        assert up.terminate(40) == 0


def test_a_reader_that_goes_away_is_no_error(database: str, connection: Connection) -> None:
    connection.execute(MANY)
    # Python's unbuffered output would lose the rest without a word.
    surroundings = processes.surroundings(database, {"PYTHONUNBUFFERED": ""})
    command = [sys.executable, "-m", "wakeboard", "runs", "--limit", "900", "--json"]
    asked = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=surroundings,
        text=True,
    )
    assert asked.stdout is not None
    assert asked.stderr is not None
    asked.stdout.read(10)
    asked.stdout.close()
    assert asked.stderr.read() == ""
    asked.stderr.close()
    assert asked.wait(30) == 1


def test_a_long_answer_is_whole(database: str, connection: Connection) -> None:
    connection.execute(MANY)
    said = run_wakeboard("runs", "--limit", "1000", "--json", database=database)
    assert len(json.loads(said.stdout)["items"]) == 900
