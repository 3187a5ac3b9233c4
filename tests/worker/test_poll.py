"""The one look of a worker: what people want, what is due and how soon, whether anything could be claimed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.factories import Connection, a_definition, a_run, a_type, end_lease, insert, rows
from tests.support.factories import a_worker as a_worker_row
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import a_worker, wait_until_idle, wait_until_status
from tests.support.workers.worker_processes import insert as enqueue
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.duties.poll import PollRequest, PollResult, poll

ME = "w1"


def looked(connection: Connection, types: tuple[str, ...] = ("mail",), **asked: Any) -> PollResult:
    """Return what a worker that can run ``types`` finds."""
    told: dict[str, Any] = {
        "worker_id": ME, "job_types": types, "running": 0, "memory_bytes": None, "is_stopping": False,
        "beats": [], "wants_work": True,
        "channel": "wakeboard_hear_me", "payload": None,
    } | asked  # fmt: skip
    return poll(connection, PollRequest(**told))


def test_a_look_says_that_the_worker_lives_and_hears_what_people_want(connection: Connection) -> None:
    a_worker_row(connection, ME, seen="-1 minute", drain_requested_at="-1 second")
    found = looked(connection, running=3, memory_bytes=77, is_stopping=True)
    (row,) = rows(connection, "workers", "seen_at > now() - interval '5 seconds'")
    assert (found.drain, found.stop) == (True, False)
    assert (row["running"], row["memory_bytes"], row["stopping_at"] is not None) == (3, 77, True)


def test_a_look_tells_that_the_workers_row_is_gone(connection: Connection) -> None:
    found = looked(connection)
    assert found.drain is None and found.stop is None


def test_a_look_writes_how_each_loop_stands(connection: Connection) -> None:
    beats = [Beat("reap", 2.0, 0.5), Beat("listen", 8.0, 20.0, "heard nothing", {"hears": "nothing"})]
    looked(connection, beats=beats)
    looked(connection, beats=[Beat("reap", 2.0, 0.1), Beat("listen", 8.0, 0.0)])
    reap, listen = rows(connection, "loops", order="name DESC")
    assert (reap["interval_seconds"], reap["last_error"]) == (2.0, None)
    assert listen["last_error"] == "heard nothing", "the last error stays to be read"


def test_nothing_is_in_sight_where_nothing_is_planned(connection: Connection) -> None:
    a_definition(connection, enabled=False)
    a_definition(connection, schedule=None, next_fire_at=None)
    found = looked(connection)
    assert (found.fires_in, found.ends_in, found.steps_in) == (None, None, None)
    assert not found.has_expired_leases and not found.has_work


def test_a_look_knows_the_next_fire_to_the_moment(connection: Connection) -> None:
    a_definition(connection, next_fire_at="1 hour")
    a_definition(connection, next_fire_at="90 seconds")
    found = looked(connection)
    assert found.fires_in is not None and 80 < found.fires_in <= 90


@pytest.mark.parametrize("fire", ["-1 second", None])
def test_a_schedule_that_is_due_or_has_no_next_fire_yet_is_due_now(
    connection: Connection, fire: str | None
) -> None:
    a_definition(connection, next_fire_at=fire)
    found = looked(connection)
    assert found.fires_in is not None and found.fires_in <= 0


def test_a_look_knows_when_a_pause_ends(connection: Connection) -> None:
    a_type(connection, "mail")
    connection.execute(
        "UPDATE wakeboard.job_types SET paused_at = now(), paused_until = now() + interval '1 minute'"
    )
    found = looked(connection)
    assert found.ends_in is not None and 50 < found.ends_in <= 60


def test_limits_of_types_that_are_not_paused_are_brought_along(connection: Connection) -> None:
    a_type(connection, "mail", max_running=2)
    a_type(connection, "report")
    a_type(connection, "sync", max_running_operator=1)
    connection.execute("UPDATE wakeboard.job_types SET paused_at = now() WHERE name = 'sync'")
    assert looked(connection, ("mail", "report", "sync")).limited_types == ["mail"]


def test_an_ended_lease_is_seen(connection: Connection) -> None:
    run_id = a_run(connection, "running")
    assert not looked(connection).has_expired_leases
    end_lease(connection, run_id)
    assert looked(connection).has_expired_leases


def test_work_is_what_could_be_claimed_by_this_worker_now(connection: Connection) -> None:
    a_type(connection, "mail")
    a_run(connection, "queued", job_type="report")
    a_run(connection, "queued", run_at="1 hour")
    assert not looked(connection).has_work, "another's work, and work for later"
    a_run(connection, "queued", priority=4, run_at="-1 second")
    assert looked(connection).has_work
    assert not looked(connection, wants_work=False).has_work
    connection.execute("UPDATE wakeboard.job_types SET paused_at = now()")
    assert not looked(connection).has_work, "its type is paused"


def test_a_run_that_failed_and_is_due_again_is_work(connection: Connection) -> None:
    a_run(connection, "failed", run_at="-1 second")
    assert looked(connection).has_work


def test_a_look_sees_a_run_that_another_session_has_locked(connection: Connection, other: Connection) -> None:
    run_id = a_run(connection, "queued", run_at="-1 second")
    with other.transaction():
        other.execute("SELECT FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (run_id,))
        assert looked(connection).has_work


def test_a_look_says_whether_anything_lies_ahead_of_the_clock(connection: Connection) -> None:
    a_worker_row(connection, "another")
    assert not looked(connection).is_anything_ahead
    connection.execute("UPDATE wakeboard.workers SET seen_at = now() + interval '1 hour'")
    assert looked(connection).is_anything_ahead


def test_a_look_finds_its_way_past_many_runs_of_later(connection: Connection) -> None:
    insert(connection, "job_types", {"name": "mail"}, "name")
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, run_at)"
        " SELECT 'mail', now() + interval '1 day' FROM generate_series(1, 5000)"
    )
    before = _read(connection)
    assert not looked(connection).has_work
    wait_until(lambda: _read(connection) >= before, 5)
    assert _read(connection) - before < 1000, "it reads no more than the head of each priority"


def _read(connection: Connection) -> int:
    connection.execute("SELECT pg_stat_force_next_flush()")
    row = connection.execute(
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
        " WHERE relname = 'job_runs'"
    ).fetchone()
    stats = connection.execute(
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables"
        " WHERE relname = 'job_runs'"
    ).fetchone()
    return int((row or (0,))[0]) + int((stats or (0,))[0])


def claimed_at(connection: Connection) -> Any:
    row = connection.execute(
        "SELECT query_start FROM pg_stat_activity"
        " WHERE application_name = 'wakeboard claim' AND datname = current_database()"
    ).fetchone()
    return row and row[0]


def test_a_worker_that_hears_lets_its_looks_stand_for_polls_and_misses_nothing(
    database: str, connection: Connection
) -> None:
    settings = {"POLL_SECONDS": 2, "LEASE_SECONDS": 30}
    with a_worker(database, ready=connection, **settings) as worker:
        wait_until_idle(connection, worker)
        hears = "SELECT FROM wakeboard.loops WHERE name = 'listen' AND numbers ->> 'hears' = 'notifications'"
        wait_until(lambda: connection.execute(hears).fetchone() is not None, 20, "it hears")
        known = claimed_at(connection)
        looks = "SELECT seen_at FROM wakeboard.workers"
        for _ in range(3):
            seen = connection.execute(looks).fetchone()
            wait_until(lambda seen=seen: connection.execute(looks).fetchone() != seen, 10, "it looks")
        assert claimed_at(connection) - known < timedelta(seconds=4), "no claim but one that was under way"
        connection.execute("ALTER TABLE wakeboard.job_runs DISABLE TRIGGER USER")
        wait_until_status(connection, enqueue(connection, "quick"), "succeeded", seconds=5)


def test_a_look_that_is_in_somebodys_way_stops_no_schedule(
    database: str, connection: Connection, other: Connection
) -> None:
    with a_worker(database, ready=connection), other.transaction():
        other.execute("LOCK TABLE wakeboard.loops IN ACCESS EXCLUSIVE MODE")
        definition = a_definition(connection, job_type="quick", next_fire_at="-1 second")
        settled = "SELECT FROM wakeboard.job_definitions WHERE id = %s AND next_fire_at > now()"
        wait_until(lambda: connection.execute(settled, (definition,)).fetchone() is not None, 20, "it fires")


def test_a_worker_whose_looks_fail_is_still_known_to_live_and_takes_back_what_ended(
    database: str, connection: Connection, other: Connection
) -> None:
    with a_worker(database, ready=connection) as worker, other.transaction():
        other.execute("LOCK TABLE wakeboard.loops IN ACCESS EXCLUSIVE MODE")
        connection.execute("UPDATE wakeboard.workers SET seen_at = now() - interval '1 hour'")
        is_heard = "seen_at > now() - interval '1 minute'"
        wait_until(lambda: rows(connection, "workers", is_heard), 20, "it lives")
        lost = a_run(connection, "running", job_type="other", locked_by="gone", locked_until="-1 second")
        wait_until_status(connection, lost, "failed", seconds=40)
        assert worker.process.poll() is None


def test_a_worker_that_cannot_register_fires_schedules_meanwhile(
    database: str, connection: Connection, other: Connection
) -> None:
    a_type(connection, "quick")
    definition = a_definition(connection, job_type="other", next_fire_at="1 minute")
    with other.transaction():
        other.execute("SELECT FROM wakeboard.job_types WHERE name = 'quick' FOR UPDATE")
        with a_worker(database):
            waits = (
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            wait_until(lambda: connection.execute(waits).rowcount, 20, "it waits to register")
            connection.execute(
                "UPDATE wakeboard.job_definitions SET next_fire_at = now() - interval '1 second'"
            )
            fired = f"id = {definition} AND next_fire_at > now()"
            wait_until(lambda: rows(connection, "job_definitions", fired), 30, "it fires")
            assert rows(connection, "workers") == [], "it is not registered"
