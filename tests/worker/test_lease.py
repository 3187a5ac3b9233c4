"""Renewing: what is ours is kept, what is locked is tried again, what is lost is told."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.factories import Connection, a_run, a_type, claim, end_lease, reap, row, succeed
from tests.support.workers.worker_processes import OPERATOR
from wakeboard import queue as transitions
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.database import db
from wakeboard.runtime.duties.lease import LeaseKeeper, StalledLoopError
from wakeboard.runtime.loop.in_flight import RunInFlight, RunsInFlight
from wakeboard.runtime.loop.inbox import CancelRequest, LeaseLoss
from wakeboard.runtime.worker import Worker


def held(run_id: int, epoch: int, *, age_seconds: float = 10) -> RunInFlight:
    assignment = Assignment(run_id, epoch, 1, "mail", "{}", None, None, None, None, 300.0, None, "w1")
    then = boottime_ns() - int(age_seconds * 1e9)
    return RunInFlight(assignment, 0, 10, "fixed 1s", 30.0, leased_ns=then, claimed_ns=then)


class Keeper:
    """A keeper whose steps the test makes, and what it told."""

    def __init__(self, database: str, *entries: RunInFlight, progress: tuple[int, int] | None = None) -> None:
        self.told: list[Any] = []
        self.in_flight = RunsInFlight()
        self.in_flight.add(entries)
        self.loop_silent_seconds = 0.5
        self.keeper = LeaseKeeper(
            database, Worker("w1"), self.in_flight, loop_silent_seconds=lambda: self.loop_silent_seconds,
            progress=lambda _: progress, post=self.told.append,
        )  # fmt: skip


def running(connection: Connection, count: int = 1) -> list[RunInFlight]:
    a_type(connection)
    for _ in range(count):
        a_run(connection)
    return [held(one.id, one.lease_epoch) for one in claim(connection, limit=count, lease_seconds=5)]


def seconds_left(connection: Connection, run_id: int) -> float:
    found = connection.execute(
        "SELECT extract(epoch FROM locked_until - now())::float8 FROM wakeboard.job_runs WHERE id = %s",
        (run_id,),
    ).fetchone()
    assert found is not None
    return float(found[0])


def test_a_heartbeat_moves_the_end_of_the_lease_and_shows_progress(
    connection: Connection, database: str
) -> None:
    (one,) = running(connection)
    before = one.leased_ns
    Keeper(database, one, progress=(3, 10)).keeper.step(connection)
    assert seconds_left(connection, one.run_id) > 25
    assert one.leased_ns > before
    found = row(connection, one.run_id)
    assert (found["progress_done"], found["progress_total"]) == (3, 10)


def test_a_fresh_lease_is_not_renewed_yet(connection: Connection, database: str) -> None:
    (one,) = running(connection)
    one.leased_ns = boottime_ns()
    Keeper(database, one).keeper.step(connection)
    assert seconds_left(connection, one.run_id) < 6


def test_nothing_is_renewed_while_the_loop_hangs(connection: Connection, database: str) -> None:
    (one,) = running(connection)
    made = Keeper(database, one)
    made.loop_silent_seconds = 31
    with pytest.raises(StalledLoopError, match="has not moved for 31 s"):
        made.keeper.step(connection)
    assert seconds_left(connection, one.run_id) < 6
    made.loop_silent_seconds = 29
    made.keeper.step(connection)
    assert seconds_left(connection, one.run_id) > 25


def test_a_late_renewal_of_a_lease_that_nobody_took_is_still_ours(
    connection: Connection, database: str
) -> None:
    (one,) = running(connection)
    end_lease(connection, one.run_id)
    Keeper(database, one).keeper.step(connection)
    assert seconds_left(connection, one.run_id) > 25


def test_a_run_taken_by_somebody_else_is_told_as_lost(connection: Connection, database: str) -> None:
    lost, kept = running(connection, 2)
    end_lease(connection, lost.run_id)
    reap(connection, (lost.run_id, lost.lease_epoch))
    made = Keeper(database, lost, kept)
    made.keeper.step(connection)
    assert made.told == [LeaseLoss(lost.run_id, lost.lease_epoch)]
    assert seconds_left(connection, kept.run_id) > 25


def test_a_run_whose_row_is_gone_is_told_as_lost(connection: Connection, database: str) -> None:
    (one,) = running(connection)
    connection.execute("DELETE FROM wakeboard.job_runs")
    made = Keeper(database, one)
    made.keeper.step(connection)
    assert made.told == [LeaseLoss(one.run_id, one.lease_epoch)]


def test_a_run_that_ended_by_its_own_attempt_is_not_lost(connection: Connection, database: str) -> None:
    (one,) = running(connection)
    succeed(connection, (one.run_id, one.lease_epoch))
    made = Keeper(database, one)
    made.keeper.step(connection)
    assert made.told == []


def test_one_locked_row_stops_no_other_renewal(
    connection: Connection, other: Connection, database: str
) -> None:
    locked, free = running(connection, 2)
    before = locked.leased_ns
    made = Keeper(database, locked, free)
    with other.transaction():
        other.execute("SELECT 1 FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (locked.run_id,))
        made.keeper.step(connection)
        assert locked.leased_ns == before, "what was not renewed does not count as renewed"
        assert made.told == []
        assert seconds_left(connection, free.run_id) > 25
    made.keeper.step(connection)
    assert locked.leased_ns > before


def test_a_cancel_is_seen_without_any_notification(connection: Connection, database: str) -> None:
    asked, untouched = running(connection, 2)
    transitions.cancel(connection, asked.run_id, OPERATOR)
    made = Keeper(database, asked, untouched)
    made.keeper.step(connection)
    assert made.told == [CancelRequest(asked.run_id, asked.lease_epoch)]


@pytest.mark.parametrize(("age", "is_past"), [(26.0, False), (27.5, True)])
def test_a_lease_is_unconfirmed_after_nine_tenths_of_it(age: float, is_past: bool) -> None:
    assert held(1, 1, age_seconds=age).is_lease_unconfirmed(boottime_ns()) == is_past


def test_a_lease_counts_from_before_its_renewal_was_sent(connection: Connection, database: str) -> None:
    (one,) = running(connection)
    before = boottime_ns()
    Keeper(database, one).keeper.step(connection)
    after = boottime_ns()
    assert before <= one.leased_ns <= after
    until = seconds_left(connection, one.run_id)
    assert until <= 30, "the database counts from later than we do"


def test_two_attempts_of_one_run_are_held_apart() -> None:
    in_flight = RunsInFlight()
    old, new = held(7, 1), held(7, 3)
    in_flight.add([old])
    in_flight.add([new])
    assert (in_flight.get(7, 1), in_flight.get(7, 3), in_flight.has(7), in_flight.has(1)) == (
        old,
        new,
        True,
        False,
    )
    in_flight.remove([new])
    assert (in_flight.get(7, 1), len(in_flight)) == (old, 1)
    assert in_flight.unknown([(7, 1), (7, 3), (8, 1)]) == [(7, 3), (8, 1)]


def test_of_two_attempts_with_one_epoch_the_later_one_is_held() -> None:
    in_flight = RunsInFlight()
    old, new = held(7, 1), held(7, 1)
    assert in_flight.add([old]) == [] and in_flight.add([new]) == [old]
    assert old.is_forgotten and not new.is_forgotten
    in_flight.remove([old])
    assert in_flight.get(7, 1) is new, "what is still said of the old one is not of the new one"


def test_a_connection_that_broke_is_found_out_while_nothing_is_held(
    database: str, connection: Connection
) -> None:
    keeper = Keeper(database).keeper
    with db.connect(database, name="wakeboard idle lease") as own:
        keeper.step(own)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'wakeboard idle lease'"
        )
        with pytest.raises(psycopg.OperationalError):
            keeper.step(own)


def test_of_two_attempts_of_one_run_only_the_one_that_owns_it_is_renewed(
    connection: Connection, database: str
) -> None:
    """A run that was taken from us has come back to us, while its old attempt still runs."""
    (old,) = running(connection)
    end_lease(connection, old.run_id)
    reap(connection, (old.run_id, old.lease_epoch), delay=0)
    (taken,) = claim(connection, lease_seconds=5)
    new = held(taken.id, taken.lease_epoch)
    before = old.leased_ns
    made = Keeper(database, old, new)
    made.keeper.step(connection)
    assert made.told == [LeaseLoss(old.run_id, old.lease_epoch)]
    assert old.leased_ns == before, "its fence comes nearer"
    assert new.leased_ns > before
    assert seconds_left(connection, new.run_id) > 25
