"""What may run when: limits over all workers, pauses, priorities, age."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.support.factories import Connection, attempts, row, rows
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import (
    OPERATOR,
    a_worker,
    counts,
    insert,
    insert_many,
    most_at_once,
    truth,
    wait_until_all,
    wait_until_registered,
    wait_until_started,
    wait_until_status,
)
from wakeboard import queue as transitions
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor

ADMIN = Actor("ada", Role.ADMIN, "web")


def test_limits_hold_over_all_workers(database: str, connection: Connection, tmp_path: Path) -> None:
    record = tmp_path / "truth"
    with (
        a_worker(database, TRUTH=record, CONCURRENCY=6) as first,
        a_worker(database, TRUTH=record, CONCURRENCY=6) as second,
    ):
        for worker in (first, second):
            wait_until_registered(connection, worker)
        ones = insert_many(connection, "one_at_a_time", 20, {"seconds": 0.1})
        fours = insert_many(connection, "four_at_a_time", 40, {"seconds": 0.2})
        wait_until_all(connection, [*ones, *fours], "succeeded", 60)
    lines = truth(record)
    assert most_at_once([line for line in lines if line.run_id in ones]) == 1
    assert most_at_once([line for line in lines if line.run_id in fours]) == 4


def test_a_limited_type_that_has_become_quick_is_still_claimed(database: str, connection: Connection) -> None:
    with a_worker(database, "--types", "one_at_a_time", ready=connection):
        ids = insert_many(connection, "one_at_a_time", 200, {"seconds": 0})
        wait_until_all(connection, ids, "succeeded", 60)


def test_an_operators_limit_takes_effect_on_the_next_claims(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record, CONCURRENCY=4):
        transitions.types.limit(connection, "patient", 2, ADMIN)
        ids = insert_many(connection, "patient", 10, {"seconds": 0.15})
        wait_until_all(connection, ids, "succeeded", 30)
        assert most_at_once(truth(record)) == 2
        transitions.types.limit(connection, "patient", 0, ADMIN)
        held_up = insert(connection, "patient", {"seconds": 0})
        after = insert(connection, "quick")
        wait_until_status(connection, after, "succeeded")
        assert row(connection, held_up)["status"] == "queued"
        transitions.types.limit(connection, "patient", None, ADMIN)
        wait_until_status(connection, held_up, "succeeded")


def test_nothing_of_a_paused_type_starts(database: str, connection: Connection, tmp_path: Path) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record) as worker:
        running = insert(connection, "patient", {"seconds": 0.5})
        wait_until_started(record, running)
        transitions.types.pause(connection, "patient", OPERATOR)
        ids = insert_many(connection, "patient", 5, {"seconds": 0})
        wait_until_status(connection, running, "succeeded")
        for _ in range(3):
            wait_until_status(connection, insert(connection, "quick"), "succeeded")
        assert counts(connection, ids) == {"queued": 5}
        transitions.types.resume(connection, "patient", OPERATOR)
        wait_until_all(connection, ids, "succeeded")
        assert worker.process.poll() is None


@pytest.mark.parametrize("job_type", ["only_try", "one_at_a_time"])
def test_better_priorities_start_first_and_every_fifth_claim_goes_by_age(
    database: str, connection: Connection, tmp_path: Path, job_type: str
) -> None:
    record = tmp_path / "truth"
    connection.execute("INSERT INTO wakeboard.job_types (name, paused_at) VALUES (%s, now())", (job_type,))
    at_once = {"seconds": 0}
    old = insert_many(connection, job_type, 8, at_once)
    urgent = connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, payload, priority)"
        " SELECT %s, %s::jsonb, 0 FROM generate_series(1, 30) RETURNING id",
        (job_type, json.dumps(at_once)),
    ).fetchall()
    connection.execute("UPDATE wakeboard.job_types SET paused_at = NULL")
    with a_worker(database, ready=connection, TRUTH=record, CONCURRENCY=1):
        wait_until_all(connection, [*old, *(one[0] for one in urgent)], "succeeded", 30)
    order = [line.run_id for line in truth(record) if line.word == "start"]
    first = order[:20]
    olds = [run_id for run_id in first if run_id in old]
    # Single tries are claimed ahead, several with a claim.
    least = 1 if job_type == "only_try" else 2
    assert least <= len(olds) <= 5, "one claim in five goes by age"
    assert olds == old[: len(olds)], "oldest first"


def test_a_type_that_no_worker_knows_waits(database: str, connection: Connection) -> None:
    with a_worker(database, ready=connection):
        stranger = insert(connection, "no_such_type")
        wait_until_status(connection, insert(connection, "quick"), "succeeded")
        assert (row(connection, stranger)["status"], attempts(connection, stranger)) == ("queued", [])


def test_a_worker_asked_to_drain_claims_no_more_and_one_asked_to_stop_ends(
    database: str, connection: Connection
) -> None:
    with a_worker(database, ready=connection) as worker:
        (stood,) = rows(connection, "workers")
        transitions.workers.drain(connection, stood["id"], ADMIN)
        seen = stood["seen_at"]
        # Two heartbeats later it has read the wish.
        for _ in range(2):
            (stood,) = wait_until(partial(rows, connection, "workers", "seen_at > %s", seen), 15)
            seen = stood["seen_at"]
        refused = insert(connection, "quick")
        transitions.workers.stop(connection, stood["id"], ADMIN)
        assert worker.wait(15) == 0
        assert row(connection, refused)["status"] == "queued"
