"""How a waiting worker hears of work: by notification at once, by polling always."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.factories import Connection, row
from tests.support.processes import Wakeboard, wait_until
from tests.support.workers.worker_processes import (
    a_worker,
    insert,
    insert_many,
    wait_until_all,
    wait_until_idle,
    wait_until_status,
)
from wakeboard.database import db


@pytest.fixture(scope="module")
def listener(shared_database: str) -> Iterator[Wakeboard]:
    """A worker that polls twice a minute: what it does sooner, it was told."""
    with (
        db.connect(shared_database, name="wakeboard test") as connection,
        a_worker(shared_database, ready=connection, POLL_SECONDS=30) as started,
    ):
        wait_until_idle(connection, started)
        yield started


def test_an_idle_worker_is_woken_by_an_insert(listener: Wakeboard, shared: Connection) -> None:
    wait_until_idle(shared, listener)
    wait_until_status(shared, insert(shared, "quick"), "succeeded", seconds=1)


def test_no_insert_right_after_a_finish_is_overslept(listener: Wakeboard, shared: Connection) -> None:
    for number in range(200):
        run_id = insert(shared, "quick")
        deadline = time.monotonic() + 3
        while row(shared, run_id)["status"] != "succeeded":
            assert time.monotonic() < deadline, f"run {run_id}, the {number + 1}., waits for the next poll"


def test_no_insert_is_overslept_by_a_worker_with_every_slot_busy(
    listener: Wakeboard, shared: Connection
) -> None:
    for _ in range(20):
        ids = insert_many(shared, "patient", 3, {"seconds": 0.02})
        ids += insert_many(shared, "quick", 1)
        wait_until_all(shared, ids, "succeeded", 5)


def test_a_run_that_waits_for_room_under_a_limit_is_not_overslept(
    listener: Wakeboard, shared: Connection
) -> None:
    for _ in range(20):
        ids = insert_many(shared, "one_at_a_time", 3, {"seconds": 0.01})
        wait_until_all(shared, ids, "succeeded", 5)


def test_a_cancel_reaches_a_worker_that_hardly_polls(listener: Wakeboard, shared: Connection) -> None:
    from tests.support.workers.worker_processes import OPERATOR
    from wakeboard import queue as transitions

    run_id = insert(shared, "patient")
    wait_until_status(shared, run_id, "running")
    transitions.cancel(shared, run_id, OPERATOR)
    wait_until_status(shared, run_id, "cancelled", seconds=1.5)


def test_polling_alone_finds_every_run(database: str, connection: Connection, superuser: Connection) -> None:
    superuser.execute("ALTER TABLE wakeboard.job_runs DISABLE TRIGGER job_runs_wake")
    with a_worker(database, ready=connection, POLL_SECONDS=0.5):
        for _ in range(5):
            run_id = insert(connection, "quick")
            wait_until_status(connection, run_id, "succeeded", seconds=3)


def test_a_delayed_run_starts_when_it_is_due_and_not_before(database: str, connection: Connection) -> None:
    from tests.support.factories import attempts, from_now

    with a_worker(database, ready=connection):
        run_id = insert(connection, "quick", run_at=from_now("1.5 seconds"))
        early = insert(connection, "quick")
        wait_until_status(connection, early, "succeeded")
        found = wait_until_status(connection, run_id, "succeeded")
        (attempt,) = attempts(connection, run_id)
        assert attempt["started_at"] >= found["run_at"]
        assert (attempt["started_at"] - found["run_at"]).total_seconds() < 1.5


def test_an_idle_worker_says_so_and_takes_it_back_when_it_is_full(
    listener: Wakeboard, shared: Connection
) -> None:
    def idle() -> bool:
        found = shared.execute("SELECT idle_since FROM wakeboard.workers").fetchone()
        return found is not None and found[0] is not None

    wait_until(idle, 5, "the worker is idle")
    ids = insert_many(shared, "patient", 4, {"seconds": 0.5})
    wait_until(lambda: not idle(), 5, "the worker is not idle any more")
    wait_until_all(shared, ids, "succeeded")
    wait_until(idle, 5, "the worker is idle again")


def test_a_draining_worker_is_not_idle_and_is_so_again_when_it_is_undrained(
    database: str, connection: Connection
) -> None:
    from tests.support.workers.worker_processes import OPERATOR
    from wakeboard.queue import workers

    with a_worker(database, ready=connection, POLL_SECONDS=0.5) as started:
        wait_until_idle(connection, started)
        (name,) = connection.execute("SELECT id FROM wakeboard.workers").fetchone() or ("",)
        workers.drain(connection, str(name), OPERATOR)
        busy = "SELECT idle_since IS NULL FROM wakeboard.workers"
        wait_until(lambda: connection.execute(busy).fetchone() == (True,), 10, "it is not idle any more")
        workers.undrain(connection, str(name), OPERATOR)
        wait_until_idle(connection, started)
