"""The first fork server, forked from its supervisor: nobody inside can tell, and it outlives no parent."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests.conftest import Connection
from tests.support.factories import attempts
from tests.support.processes import ROOT, Wakeboard, surroundings, wait_until
from tests.support.workers.worker_processes import a_worker, insert, is_alive

APP = "tests.support.workers.apps.surroundings"
FORK = "import os, sys, threading\nfrom wakeboard.runtime.processes.fork_server import fork_zygote\n"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere none is forked")


def fork_server_of(worker: Wakeboard) -> psutil.Process:
    (found,) = psutil.Process(worker.pid).children()
    return found


def seen(connection: Connection) -> Any:
    """Return what a handler finds around it."""
    run_id = insert(connection, "look_around")
    (attempt,) = wait_until(lambda: attempts(connection, run_id), 30, "the run ends")
    assert attempt["outcome"] == "succeeded", attempt
    return attempt["result"]


def python(code: str) -> str:
    """Return what a program prints that ends by itself, although its zygote was told nothing."""
    return subprocess.run(
        [sys.executable, "-c", FORK + code],
        capture_output=True, text=True, cwd=ROOT, env=surroundings(None, None), timeout=60, check=True,
    ).stdout.strip()  # fmt: skip


def test_a_handler_finds_the_same_around_it_whether_its_fork_server_was_forked_or_started_afresh(
    database: str, connection: Connection
) -> None:
    with a_worker(database, ready=connection, APP=APP, CONCURRENCY="1", HEARTBEAT_URL="") as worker:
        first = fork_server_of(worker)
        assert first.cmdline() == psutil.Process(worker.pid).cmdline()
        forked = seen(connection)
        first.kill()
        worker.wait_for("starting another")
        afresh = seen(connection)
        assert fork_server_of(worker).cmdline() != psutil.Process(worker.pid).cmdline()
    assert forked == afresh
    assert forked["of_fork_server"] and forked["database"] == database


def test_who_ends_before_the_fork_server_was_told_what_to_load_takes_it_along() -> None:
    pid = int(python("print(fork_zygote().pid)"))
    wait_until(lambda: not is_alive(pid), 20, "the fork server is gone")


def test_the_fork_server_holds_nothing_open_that_its_parent_had() -> None:
    code = "r, w = os.pipe2(0)\nzygote = fork_zygote()\nos.close(w)\nprint(os.read(r, 1))"
    assert python(code) == "b''"


def test_a_process_with_a_second_thread_is_not_forked() -> None:
    code = "threading.Thread(target=threading.Event().wait, daemon=True).start()\nprint(fork_zygote())"
    assert python(code) == "None"


def test_a_process_that_keeps_a_file_open_is_not_forked() -> None:
    assert python("kept = open(os.devnull)\nprint(fork_zygote())") == "None"


def test_a_process_without_a_standard_stream_is_not_forked() -> None:
    code = "os.close(0)\nprint(fork_zygote())"
    assert python(code) == "None"


def test_how_it_ended_is_told_as_of_any_other_process() -> None:
    code = (
        "zygote = fork_zygote()\n"
        "try:\n    zygote.wait(0.01)\nexcept Exception as late:\n    print(type(late).__name__)\n"
        "zygote.kill()\nprint(zygote.wait(), zygote.wait(1))"
    )
    assert python(code) == "TimeoutExpired\n-9 -9"
