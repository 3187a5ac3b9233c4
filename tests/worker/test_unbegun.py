"""Which claimed attempts have not begun: who strikes one off the list may begin it, or give it back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.factories import (
    Connection,
    a_run,
    a_type,
    attempts,
    claim,
    claim_listed,
    end_lease,
    reap,
    row,
    rows,
    send,
    status,
)
from tests.support.postgres.wire_proxy import between
from tests.support.postgres.write_refusals import refuse
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import (
    REAPED_WITHIN,
    a_worker,
    claim_ahead,
    counts,
    insert_many,
    is_alive,
    truth,
    wait_until_all,
    wait_until_registered,
)
from wakeboard import queue as transitions
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.queue import handler_connection
from wakeboard.queue.engine import endings, reaping, unbegun
from wakeboard.runtime.duties.reaper import Reaper
from wakeboard.runtime.processes.child import STRIKE_OFF_SECONDS, UnbegunList

OPERATOR = Actor("olivia", Role.OPERATOR, "web")


@pytest.fixture
def _an_old_server(connection: Connection) -> None:
    """Just after a start of the server every lease only looks ended, so a reaper would wait."""
    old = "SELECT pg_postmaster_start_time() < now() - interval '16 seconds'"
    wait_until(lambda: connection.execute(old).fetchone() == (True,), 20, "the server is no longer new")


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, database: str) -> Iterator[None]:
    """This process opens the connection of a process for handlers."""
    monkeypatch.setenv("WAKEBOARD_DATABASE_URL", database)
    yield
    handler_connection.close_thread_connection()


def listed(connection: Connection) -> list[int]:
    found = rows(connection, "unbegun_attempts", order="run_id")
    return [one["run_id"] for one in found]


def assignment(run_id: int, epoch: int = 1) -> Assignment:
    return Assignment(run_id, epoch, 1, "mail", "{}", None, None, None, None, 300.0, None, "w1", True)


def give_back(connection: Connection, *ids: int) -> dict[int, str]:
    found = send(connection, reaping.GIVE_BACK, list(ids), [1] * len(ids))
    return {one[0]: one[1] for one in found}


def claimed(connection: Connection, count: int) -> list[int]:
    """Claim runs with a single try for w1, whose leases then end."""
    a_type(connection, max_attempts=1)
    for _ in range(count):
        a_run(connection)
    ids = [one.id for one in claim_listed(connection, limit=count)]
    for run_id in ids:
        end_lease(connection, run_id)
    return ids


def test_a_claim_lists_what_it_brings_and_nothing_else(connection: Connection) -> None:
    a_type(connection)
    for _ in range(4):
        a_run(connection)
    first = [one.id for one in claim_listed(connection, limit=2)]
    assert listed(connection) == first
    assert [row(connection, one)["status"] for one in first] == ["running"] * 2
    assert len(claim(connection)) == 2
    assert listed(connection) == first


@pytest.mark.usefixtures("child")
def test_who_is_about_to_begin_strikes_off_and_may_only_once(connection: Connection) -> None:
    first, second = claimed(connection, 2)
    assert UnbegunList().strike_off(assignment(first)) is None
    assert listed(connection) == [second]
    again = UnbegunList().strike_off(assignment(first))
    assert again is not None and (again.kind, again.message) == ("unbegun", None)
    other = UnbegunList().strike_off(assignment(second, epoch=2))
    assert other is not None, "another attempt is not ours to begin"
    assert listed(connection) == [second]


@pytest.mark.usefixtures("child")
def test_what_cannot_be_struck_off_does_not_begin_and_says_why(connection: Connection) -> None:
    (run_id,) = claimed(connection, 1)
    connection.execute("ALTER TABLE wakeboard.unbegun_attempts RENAME TO elsewhere")
    answer = UnbegunList().strike_off(assignment(run_id))
    assert answer is not None and answer.kind == "unbegun"
    assert 'relation "wakeboard.unbegun_attempts" does not exist' in str(answer.message)


@pytest.mark.usefixtures("_an_old_server")
def test_a_dead_workers_runs_go_back_at_no_cost_or_are_lost_by_whether_they_had_begun(
    connection: Connection,
) -> None:
    first, second, third = claimed(connection, 3)
    send(connection, unbegun.STRIKE_OFF + " RETURNING 1", first, 1)
    transitions.cancel(connection, third, OPERATOR)
    reaper = Reaper(lease_seconds=30, heartbeat_seconds=10, waits_first=False)
    assert reaper.step(connection) == {"dead": 1, "queued": 1, "cancelled": 1}
    assert [status(connection, one) for one in (first, second, third)] == ["dead", "queued", "cancelled"]
    assert [len(attempts(connection, one)) for one in (first, second, third)] == [1, 0, 0]
    back = row(connection, second)
    assert (back["attempts"], back["failures"], back["lease_epoch"], back["error_code"]) == (0, 0, 2, None)
    assert listed(connection) == []


def test_a_person_gives_back_what_has_not_begun_at_no_cost_too(connection: Connection) -> None:
    (run_id,) = claimed(connection, 1)
    answer = transitions.release_lease(connection, run_id, OPERATOR)
    assert (answer.result, answer.status) == ("done", "queued")
    assert attempts(connection, run_id) == []


def test_what_stands_on_the_list_is_never_taken_as_lost(connection: Connection) -> None:
    (run_id,) = claimed(connection, 1)
    assert reap(connection, (run_id, 1)) == {}
    assert give_back(connection, run_id) == {run_id: "queued"}


@pytest.mark.usefixtures("child")
def test_of_a_process_that_begins_and_a_reaper_that_gives_back_one_succeeds(
    connection: Connection, other: Connection, superuser: Connection
) -> None:
    (run_id,) = claimed(connection, 1)
    with ThreadPoolExecutor(1) as pool:
        with other.transaction():
            assert give_back(other, run_id) == {run_id: "queued"}

            def strike() -> object:
                try:
                    return UnbegunList().strike_off(assignment(run_id))
                finally:
                    handler_connection.close_thread_connection()

            begins = pool.submit(strike)
            waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'DELETE%'"
            wait_until(lambda: superuser.execute(waits).fetchone() is not None, 10, "it waits for the reaper")
        assert begins.result() is not None, "it may not begin"


@pytest.mark.usefixtures("_an_old_server")
def test_where_the_database_refuses_that_a_run_goes_back_it_is_lost(connection: Connection) -> None:
    claimed(connection, 1)
    refuse(connection, "new.status = 'queued' AND old.status = 'running'", "never back")
    reaper = Reaper(lease_seconds=30, heartbeat_seconds=10, waits_first=False)
    assert reaper.step(connection) == {"dead": 1}
    assert listed(connection) == []


@pytest.mark.usefixtures("_an_old_server")
def test_a_run_that_may_not_go_back_costs_no_other_its_only_try(connection: Connection) -> None:
    first, bad, *others = claimed(connection, 8)
    refuse(connection, f"new.id = {bad} AND new.status = 'queued' AND old.status = 'running'", "never back")
    reaper = Reaper(lease_seconds=30, heartbeat_seconds=10, waits_first=False)
    assert reaper.step(connection) == {"queued": 7, "dead": 1}
    assert status(connection, bad) == "dead"
    assert {status(connection, run_id) for run_id in (first, *others)} == {"queued"}


def test_what_is_released_unbegun_leaves_the_list(connection: Connection) -> None:
    first, second = claimed(connection, 2)
    send(connection, endings.RELEASE, "w1", [first], [1], [0.0], [0.0], [None], [None], [False])
    assert listed(connection) == [second]


def test_what_is_listed_of_a_run_that_runs_no_more_is_forgotten(connection: Connection) -> None:
    first, second = claimed(connection, 2)
    connection.execute("DELETE FROM wakeboard.job_runs WHERE id = %s", (first,))
    connection.execute(unbegun.REMOVE_ENDED.encode())
    assert listed(connection) == [second]


def test_a_database_that_is_silent_is_asked_once(
    connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = claimed(connection, 3)
    with between(database) as middleman:
        monkeypatch.setenv("WAKEBOARD_DATABASE_URL", middleman.url)
        unbegun_list = UnbegunList()
        assert unbegun_list.strike_off(assignment(first)) is None
        middleman.fall_silent(f"wakeboard handler {os.getpid()}")
        began = time.monotonic()
        answers = [unbegun_list.strike_off(assignment(run_id)) for run_id in (second, third)]
        took = time.monotonic() - began
        handler_connection.close_thread_connection()
    assert [answer and answer.kind for answer in answers] == ["unbegun", "unbegun"]
    assert "has not answered" in str(answers[1] and answers[1].message)
    assert took < 2 * STRIKE_OFF_SECONDS


def test_of_a_killed_worker_only_what_had_begun_loses_its_only_try(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record, gate = tmp_path / "truth", tmp_path / "gate"
    with a_worker(database, TRUTH=record, CONCURRENCY=2) as first:
        wait_until_registered(connection, first)
        ids = claim_ahead(connection, gate, "swift_only_try")

        def begun_runs() -> set[int]:
            return {line.run_id for line in truth(record)} & set(ids)

        # A child that was killed in between would have struck a run off that no handler has seen.
        wait_until(lambda: len(begun_runs()) == 2, 20, "both slots have begun a run")
        processes = first.family()
        first.kill()
        # Children outlive their worker by a moment, and would begin the next run once the gate is open.
        wait_until(lambda: not any(is_alive(one.pid) for one in processes), 20, "its children are gone")
        gate.touch()
    begun = begun_runs()
    assert len(begun) == 2
    with a_worker(database, TRUTH=record, CONCURRENCY=2):
        wait_until(
            lambda: counts(connection, ids) == {"succeeded": len(ids) - len(begun), "dead": len(begun)},
            REAPED_WITHIN + 20,
            f"all but {begun} succeed; they are {counts(connection, ids)}",
        )
    starts = [line.run_id for line in truth(record)]
    assert len(starts) == len(set(starts)), "nothing begins twice"
    assert {one["run_id"] for one in rows(connection, "job_attempts", "outcome = 'lost'")} == begun
    assert rows(connection, "unbegun_attempts") == []


def test_when_the_list_is_lost_the_worker_takes_back_what_has_not_begun_itself(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with a_worker(database, ready=connection, TRUTH=record):
        ids = insert_many(connection, "only_try", 5_000)
        wait_until(lambda: counts(connection, ids).get("succeeded", 0) > 500, 20, "it is at full pace")
        for _ in range(5):
            connection.execute("TRUNCATE wakeboard.unbegun_attempts")
        wait_until_all(connection, ids, "succeeded", 60)
    starts = [line.run_id for line in truth(record)]
    assert sorted(starts) == sorted(ids)
