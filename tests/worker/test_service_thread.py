"""Threads that a process cannot do without: whatever ends their body is logged, and they begin anew."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.factories import rows
from tests.support.processes import wait_until
from wakeboard import Context
from wakeboard.alerts.web_watcher import WebWatcher
from wakeboard.config import log, service_thread
from wakeboard.config.service_thread import FailureLog, ServiceThread
from wakeboard.config.settings import Settings
from wakeboard.handlers.pool import Pool, PoolFuture
from wakeboard.handlers.registry import JobType
from wakeboard.runtime.loop.connections import LoopConnection
from wakeboard.runtime.loop.inbox import ConnectFailure

Said = Callable[[], str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What the log has said since this was last asked."""
    log.configure("text")

    def read() -> str:
        log.flush()
        return capsys.readouterr().err

    return read


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_thread, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(service_thread, "LONGEST_PAUSE_SECONDS", 0.02)


@pytest.fixture
def stopping() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def end(name: str, exception: type[BaseException] = SystemExit) -> None:
    """Raise ``exception`` in the thread of this name, as soon as it runs."""
    (thread,) = (thread for thread in threading.enumerate() if thread.name == name)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(exception))


@pytest.mark.parametrize("kind", [OSError, MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_ends_a_body_is_logged_with_its_trace_once_and_the_body_runs_again(
    kind: type[BaseException], stopping: threading.Event, said: Said
) -> None:
    runs: list[int] = []

    def body() -> None:
        runs.append(1)
        if len(runs) < 5:
            raise kind("of a kind that nobody expects")
        stopping.wait()

    failures: list[BaseException] = []
    thread = ServiceThread("tested", body, stopping=stopping, on_failure=failures.append)
    thread.start()
    wait_until(lambda: len(runs) == 5, 10, "it runs again")
    assert thread.is_alive()
    assert [type(failure) for failure in failures] == [kind] * 4
    told = said()
    line = f"The thread 'tested' ended by an error and is started again: {kind.__name__}: of a kind"
    assert told.count(line) == 1, told
    assert told.count("Traceback") == 1, told


def test_a_body_that_returns_is_over(stopping: threading.Event) -> None:
    runs: list[int] = []
    thread = ServiceThread("tested", lambda: runs.append(1), stopping=stopping)
    thread.start()
    thread.join(10)
    assert runs == [1]


def test_a_failure_that_cannot_even_be_logged_ends_nothing(
    stopping: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_given: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(log, "error", refuses)
    runs: list[int] = []

    def body() -> None:
        runs.append(1)
        if len(runs) < 5:
            raise MemoryError
        stopping.wait()

    ServiceThread("tested", body, stopping=stopping).start()
    wait_until(lambda: len(runs) == 5, 10, "it runs again")


def test_it_is_lost_when_it_fails_for_longer_than_somebody_waits(stopping: threading.Event) -> None:
    works = threading.Event()

    def body() -> None:
        if not works.is_set():
            raise TypeError
        thread.mark_recovered()
        stopping.wait()

    thread = ServiceThread("tested", body, stopping=stopping)
    assert not thread.is_lost(0.0)
    thread.start()
    wait_until(lambda: thread.is_lost(0.1), 10, "it fails for longer")
    works.set()
    wait_until(lambda: not thread.is_lost(0.0), 10, "it works again")
    stopping.set()
    thread.join(10)
    assert not thread.is_lost(0.0), "who was stopped is not lost"


def test_the_same_failure_is_logged_once_a_minute_with_its_count(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = FailureLog("It failed")
    for _ in range(3):
        failures.add(OSError(24, "Too many open files"))
    failures.add(TypeError("another one"))
    told = said()
    assert told.count("It failed: OSError: [Errno 24] Too many open files") == 1
    assert told.count("It failed: TypeError: another one") == 1
    monkeypatch.setattr(service_thread, "REPEAT_SECONDS", 0.0)
    failures.add(OSError(24, "Too many open files"))
    told = said()
    assert "It failed (" in told and "Traceback" not in told


def test_each_thread_of_the_watcher_in_the_web_process_comes_back(
    database: str, connection: Connection, stopping: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POST_SECONDS", "OUTAGE_SECONDS"):
        monkeypatch.setattr(f"wakeboard.alerts.web_watcher.{name}", 0.05)
    read, write = os.pipe()
    settings = Settings.load({}, environ={})
    watching = WebWatcher(database, settings, read, check_seconds=0.05)
    watching.start()
    names = {"alerts", "post", "outage"}
    try:
        wait_until(lambda: {row["name"] for row in rows(connection, "loops")} == names, 10, "three loops")
        for name in names:
            end(name)

        def told() -> dict[str, str]:
            return {row["name"]: row["last_error"] for row in rows(connection, "loops") if row["last_error"]}

        wait_until(lambda: told() == dict.fromkeys(names, "SystemExit"), 10, "each loop tells it")
        assert {thread.name for thread in threading.enumerate()} >= names
        looks = watching.checks
        wait_until(lambda: watching.checks > looks, 10, "it goes on looking")
    finally:
        watching.stop()
        os.close(read)
        os.close(write)
    assert rows(connection, "loops") == []


class Jobs:
    """What a pool runs, and how often each began."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.quick = JobType("quick", lambda ctx: self.began.append(ctx.run_id))
        self.again = JobType("again", self._again, backoff="fixed 0.05s")

    def _again(self, ctx: Context) -> None:
        self.began.append(ctx.run_id)
        if ctx.attempt == 1:
            raise OSError("not yet")


def test_the_threads_of_a_pool_come_back(said: Said) -> None:
    jobs = Jobs()
    with Pool(1, name="tested") as pool:
        assert ended(pool.submit(jobs.quick)) == "succeeded"
        end("tested clock")
        end("tested 1")
        # Each hears of it when it wakes: the one for a job, the other for a time.
        retried = pool.submit(jobs.again)
        heard: list[str] = []

        def is_told() -> bool:
            heard.append(said())
            return "The thread 'tested clock' ended" in "".join(heard)

        wait_until(is_told, 10, "the clock's thread heard of it")
        assert ended(pool.submit(jobs.quick)) == "succeeded"
        assert ended(retried) == "succeeded"
        assert pool.metrics().threads_alive == 1


def ended(future: PoolFuture) -> str:
    """Return how the job ended."""
    wait_until(lambda: future.has_ended, 10, "the job ends")
    return future.state


def test_an_error_beside_a_handler_ends_its_job_and_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, broken = Jobs(), [True]

    def log_move(*_move: Any) -> None:
        if broken and broken.pop():
            raise OSError(24, "Too many open files")

    with Pool(1, name="tested") as pool:
        monkeypatch.setattr(pool, "_log", log_move)
        future = pool.submit(JobType("once", lambda ctx: None, max_attempts=1))
        assert ended(future) == "dead"
        assert "Too many open files" in str(future.last_error)
        assert ended(pool.submit(jobs.quick)) == "succeeded"


def test_a_connection_that_cannot_be_opened_for_whatever_reason_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    told: list[Any] = []
    connection = LoopConnection("postgresql://nowhere", "claim", told.append)

    def connect(*_given: Any, **_named: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("wakeboard.runtime.loop.connections.connect", connect)
    connection.ensure()
    (answer,) = wait_until(lambda: told, 10, "the loop hears of it")
    assert isinstance(answer, ConnectFailure)
    assert answer.reason == "OSError: [Errno 24] Too many open files"
    assert "Traceback" in said()
    connection.fail(answer.reason)
    connection._retry_at = 0.0
    connection.ensure()
    wait_until(lambda: len(told) == 2, 10, "it is tried again")


def test_a_connection_for_which_there_is_no_thread_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = LoopConnection("postgresql://nowhere", "claim", lambda told: None)

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    connection.ensure()
    assert not connection._is_connecting
    assert connection.outage_log._since is not None, "it is said"
