"""SIGTERM: what may end ends, the rest goes back unharmed, and the process is gone in time."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.factories import Connection, attempts, row, rows
from tests.support.postgres.wire_proxy import between
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import (
    LEASE,
    a_worker,
    claim_ahead,
    counts,
    insert,
    insert_many,
    outcomes,
    truth,
    wait_until_started,
)

FOUR = {"CONCURRENCY": 4, "KILL_SECONDS": 0.5}


def test_a_deploy_lets_end_what_can_and_gives_the_rest_back(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record, SHUTDOWN_SECONDS=4, **FOUR) as worker:
        short = insert_many(connection, "patient", 2, {"seconds": 1.5})
        long = insert_many(connection, "patient", 1, {"seconds": 60})
        deaf = insert(connection, "deaf_for_long", {"pids": str(tmp_path / "pids")}, max_attempts=1)
        wait_until_started(record, *short, *long)
        wait_until(lambda: (tmp_path / "pids").exists())
        waiting = insert_many(connection, "quick", 20)
        family = worker.family()
        asked = time.monotonic()
        assert worker.terminate(10) == 0, worker.output
        assert time.monotonic() - asked < 4 + 1
        said = worker.output
    given_back = [line for line in said.splitlines() if f" release run={long[0]} " in line]
    assert [line.endswith('reason="its worker stops"') for line in given_back] == [True], given_back
    assert "error=" not in given_back[0], "a deploy is no error of the run"
    assert counts(connection, short) == {"succeeded": 2}
    assert counts(connection, [*long, deaf, *waiting]) == {"queued": 22}
    for run_id in [*long, deaf]:
        found = row(connection, run_id)
        assert outcomes(connection, run_id) == ["released"]
        assert (found["attempts"], found["failures"]) == (1, 0)
    for run_id in waiting:
        assert (row(connection, run_id)["attempts"], attempts(connection, run_id)) == (0, [])
    assert not [
        member for member in family if member.is_running() and member.status() != psutil.STATUS_ZOMBIE
    ]
    (stood,) = rows(connection, "workers")
    assert stood["stopped_at"] is not None
    assert stood["stopping_at"] is not None


def test_a_worker_that_is_told_to_stop_until_it_is_gone_ends_in_order(
    database: str, connection: Connection
) -> None:
    with a_worker(database, ready=connection) as worker:
        while worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
            time.sleep(0.002)
        assert (worker.wait(), "Worker stopped." in worker.output) == (0, True), worker.output


def test_leases_are_renewed_until_the_last_run_has_ended(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record, SHUTDOWN_SECONDS=20) as worker:
        run_id = insert(connection, "patient", {"seconds": 2 * LEASE})
        wait_until_started(record, run_id)
        worker.process.send_signal(signal.SIGTERM)

        def ended() -> bool:
            found = row(connection, run_id)
            now = connection.execute("SELECT now()").fetchone()
            assert now is not None
            assert found["status"] != "running" or found["locked_until"] > now[0], "the lease ran out"
            return bool(found["status"] == "succeeded")

        wait_until(ended, 15, f"the run ends: {row(connection, run_id)}")
        assert worker.wait() == 0
    assert outcomes(connection, run_id) == ["succeeded"]


def test_what_was_claimed_ahead_and_not_started_goes_back_without_a_trace(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record, SHUTDOWN_SECONDS=3) as worker:
        ids = claim_ahead(connection, tmp_path / "gate")
        assert worker.terminate(10) == 0, worker.output
    assert counts(connection, ids) == {"queued": 60}
    started = {line.run_id for line in truth(record)} & set(ids)
    assert len(started) == 2
    for run_id in ids:
        found = row(connection, run_id)
        assert (found["attempts"], found["failures"]) == (int(run_id in started), 0)
        assert outcomes(connection, run_id) == ["released"] * (run_id in started)


def test_a_second_signal_hurries(database: str, connection: Connection, tmp_path: Path) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record, SHUTDOWN_SECONDS=60) as worker:
        run_id = insert(connection, "patient", {"seconds": 60})
        wait_until_started(record, run_id)
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_for("Stopping")
        worker.process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        assert worker.wait(10) == 0
        assert time.monotonic() - asked < 5
    assert row(connection, run_id)["status"] == "queued"
    assert outcomes(connection, run_id) == ["released"]


def test_an_idle_worker_stops_at_once(database: str, connection: Connection) -> None:
    with a_worker(database, ready=connection, SHUTDOWN_SECONDS=60) as worker:
        asked = time.monotonic()
        worker.process.send_signal(signal.SIGINT)
        assert worker.wait(20) == 0
        assert time.monotonic() - asked < 8
        assert "Traceback" not in worker.output


def test_signals_under_load_leave_nothing_running(database: str, connection: Connection) -> None:
    stop = threading.Event()

    def keep_coming() -> None:
        from wakeboard.database import db

        with db.connect(database, name="wakeboard producer") as producer:
            while not stop.is_set():
                insert_many(producer, "quick", 5)

    producer = threading.Thread(target=keep_coming)
    producer.start()
    try:
        for _ in range(3):
            with a_worker(database, ready=connection, SHUTDOWN_SECONDS=3) as worker:
                (started,) = rows(connection, "workers", "stopped_at IS NULL")
                wait_until(partial(rows, connection, "job_attempts", "worker_id = %s", started["id"]), 20)
                assert worker.terminate(10) == 0, worker.output
                assert "Traceback" not in worker.output
            left = connection.execute(
                "SELECT count(*) FROM wakeboard.job_runs WHERE status = 'running'"
            ).fetchone()
            assert left == (0,)
    finally:
        stop.set()
        producer.join()
    assert not rows(connection, "job_attempts", "outcome <> 'succeeded'")


def test_a_database_that_falls_silent_holds_no_stop_up_for_long(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with between(database) as middleman:
        with a_worker(middleman.url, ready=connection, TRUTH=record, SHUTDOWN_SECONDS=4, **FOUR) as worker:
            (run_id,) = insert_many(connection, "patient", 1, {"seconds": 60})
            wait_until_started(record, run_id)
            middleman.fall_silent()
            asked = time.monotonic()
            worker.terminate(20)
            # What waits for an answer is given a second or two, one after the other.
            assert time.monotonic() - asked < 4 + 5
        middleman.heal()


def test_a_worker_that_waits_for_its_own_notification_stops_without_a_complaint(
    database: str, connection: Connection
) -> None:
    with between(database) as middleman, a_worker(middleman.url, ready=connection) as worker:
        middleman.swallows_notifications = True

        def waits() -> bool:
            """Whether the thread that says that the worker lives has been at something else for a while."""
            silent = "SELECT now() - seen_at > interval '1.2 s' FROM wakeboard.workers"
            return connection.execute(silent).fetchone() == (True,)

        wait_until(waits, 20)
        assert worker.terminate(10) == 0, worker.output
        said = worker.output
    assert "A duty failed" not in said, said
    assert "WARNING" not in said, said


@pytest.mark.slow
def test_thirty_workers_at_rest_stop_without_a_complaint(database: str, connection: Connection) -> None:
    said = []
    lived = "SELECT seen_at - started_at > make_interval(secs => %s) FROM wakeboard.workers WHERE pid = %s"
    for _ in range(3):
        with ExitStack() as stack:
            workers = [stack.enter_context(a_worker(database, CONCURRENCY=1)) for _ in range(10)]
            for number, worker in enumerate(workers):
                # Until after the first proof of hearing, two seconds after the start.
                has_lived = partial(connection.execute, lived, (0.3 * number, worker.pid))
                wait_until(lambda ask=has_lived: ask().fetchone() == (True,), 60, "it has lived for a while")
                worker.process.send_signal(signal.SIGTERM)
            assert [worker.wait(20) for worker in workers] == [0] * 10
            said += [worker.output for worker in workers]
    assert [text for text in said if "A duty failed" in text] == []
