"""The database's clock was ahead and is right again: what it wrote counts as past, and is written anew."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.support.factories import Connection, a_definition, a_run, a_type, a_worker, insert, rows
from tests.worker import test_heartbeats as liveness_rows
from wakeboard.accounts import sessions, throttle
from wakeboard.accounts.throttle import TooManyAttempts
from wakeboard.alerts.rule_state import RuleState, next_state
from wakeboard.cli.commands.doctor import liveness as diagnosis
from wakeboard.core import leases
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor
from wakeboard.maintenance.retention import state as retention
from wakeboard.queue import operator
from wakeboard.reporting import heartbeats, worker_states
from wakeboard.runtime.duties.clock import SLICE, Clock
from wakeboard.schedules import code_schedules, scheduler

ADMIN = Actor("ada", Role.ADMIN, "cli")
AHEAD = (timedelta(hours=1), timedelta(hours=6), timedelta(days=400))
HOURS = pytest.mark.parametrize("ahead", AHEAD, ids=str)
# Other times of the same tables, which one statement moves.
TIMES = {
    "workers": ("started_at", "seen_at"),
    "loops": ("last_success_at",),
    "job_runs": ("run_at", "started_at", "failed_at", "locked_until", "created_at", "updated_at"),
    "job_definitions": ("next_fire_at", "last_fire_at", "settled_at", "updated_at"),
    "alert_rules": ("checked_at", "fired_at", "recovered_at", "sent_at"),
    "operations": ("look_at", "paced_at"),
}


def be_ahead(connection: Connection, ahead: timedelta, *tables: str) -> None:
    """Let everything that was written have been written while the clock was ahead."""
    for table in tables or TIMES:
        moved = ", ".join(f"{column} = {column} + %(by)s" for column in TIMES[table])
        connection.execute(f"UPDATE wakeboard.{table} SET {moved}".encode(), {"by": ahead})


def is_so(connection: Connection, table: str, condition: str) -> bool:
    """Return whether ``condition`` holds of the only row of ``table``, called x."""
    ((found,),) = connection.execute(f"SELECT {condition} FROM wakeboard.{table} AS x".encode()).fetchall()
    return bool(found)


def put_right(connection: Connection) -> dict[str, int]:
    """Let another worker's duty go on until nothing is left to look at; return what it wrote anew."""
    clock, counts = Clock("another"), dict[str, int]()
    while True:
        for name, count in clock.step(connection).items():
            counts[name] = counts.get(name, 0) + count
        if clock.pause_seconds is None:
            return counts


def now(connection: Connection) -> datetime:
    ((found,),) = connection.execute("SELECT now()").fetchall()
    assert isinstance(found, datetime)
    return found


@HOURS
def test_a_heartbeat_that_lies_ahead_is_not_heard(connection: Connection, ahead: timedelta) -> None:
    a_worker(connection, "w1", job_types=["mail"])
    assert is_so(connection, "workers", leases.is_alive("x"))
    assert is_so(connection, "workers", worker_states.is_claiming("x"))
    be_ahead(connection, ahead)
    assert not is_so(connection, "workers", leases.is_alive("x"))
    assert not is_so(connection, "workers", worker_states.is_claiming("x", 5))
    assert is_so(connection, "workers", f"{worker_states.rank('x')} = {worker_states.NAMES.index('silent')}")


def test_a_clock_that_is_set_back_by_a_moment_silences_nobody(connection: Connection) -> None:
    a_worker(connection, "w1", seen="2 seconds")
    assert is_so(connection, "workers", leases.is_alive("x"))


def test_a_transaction_that_waited_for_a_lock_hears_whoever_was_seen_since(connection: Connection) -> None:
    """Its own now() is from before it waited."""
    a_worker(connection, "w1")
    with connection.transaction():
        connection.execute("SELECT pg_sleep(0.2)")
        connection.execute("UPDATE wakeboard.workers SET seen_at = clock_timestamp() + interval '4.9 s'")
        assert is_so(connection, "workers", leases.is_alive("x"))


@HOURS
def test_loops_that_lie_ahead_are_late(connection: Connection, ahead: timedelta) -> None:
    a_worker(connection, "w1")
    insert(connection, "loops", {"process_id": "w1", "name": "reap", "interval_seconds": 2}, "name")
    assert not heartbeats.late_loops(connection)
    be_ahead(connection, ahead)
    (late,) = heartbeats.late_loops(connection)
    assert (late.name, late.is_ahead) == ("reap", True)
    (told,) = [found for found in diagnosis.loops(connection) if found.level == "fail"]
    assert "ahead" in told.says
    (times,) = diagnosis.times(connection)
    assert times.level == "warning" and "heartbeats 1" in times.says


@HOURS
def test_schedules_are_abandoned_when_all_who_came_lie_ahead(
    connection: Connection, ahead: timedelta
) -> None:
    a_worker(connection, "w1")
    a_definition(connection)
    connection.execute("UPDATE wakeboard.job_definitions SET updated_at = now() - interval '1 day'")
    assert not heartbeats.is_abandoned(connection)
    be_ahead(connection, ahead)
    assert heartbeats.is_abandoned(connection)


@HOURS
def test_a_dead_workers_lease_ends_a_lease_later_and_not_hours_later(
    connection: Connection, ahead: timedelta
) -> None:
    a_type(connection, "mail", lease_seconds=120)
    a_worker(connection, "w1", lease_seconds=30)
    a_run(connection, "running", locked_by="w1", locked_until="100 seconds")
    assert put_right(connection) == {}
    be_ahead(connection, ahead)
    counts = put_right(connection)
    assert (counts["leases"], counts["workers"]) == (1, 1)
    (run,) = rows(connection, "job_runs")
    assert timedelta(seconds=110) < run["locked_until"] - now(connection) <= timedelta(seconds=120)


def test_the_lease_of_a_worker_that_is_heard_is_its_own_affair(connection: Connection) -> None:
    """It may know of a longer lease than the newest release has published."""
    a_worker(connection, "w1", lease_seconds=30)
    a_run(connection, "running", locked_by="w1", locked_until="1 hour")
    assert put_right(connection) == {}


@HOURS
def test_release_takes_a_dead_workers_run_while_its_heartbeat_lies_ahead(
    connection: Connection, ahead: timedelta
) -> None:
    a_worker(connection, "w1")
    run_id = a_run(connection, "running", locked_by="w1")
    be_ahead(connection, ahead)
    assert operator.release_lease(connection, run_id, ADMIN).result == "done"


@HOURS
@pytest.mark.parametrize("both", [True, False], ids=["settled ahead too", "the next fire alone"])
def test_schedules_come_back_to_the_next_fire_of_their_rule(
    connection: Connection, ahead: timedelta, both: bool
) -> None:
    made = a_definition(connection, schedule="* * * * *", next_fire_at=None)
    scheduler.settle(connection)
    moved = ", settled_at = settled_at + %(by)s" if both else ""
    connection.execute(
        f"UPDATE wakeboard.job_definitions SET next_fire_at = next_fire_at + %(by)s{moved}".encode(),
        {"by": ahead},
    )
    assert scheduler.settle(connection).due == 0
    assert put_right(connection) == {"schedules": 1}
    scheduler.settle(connection)
    (found,) = rows(connection, "job_definitions", "id = %s", made)
    assert timedelta() < found["next_fire_at"] - now(connection) <= timedelta(minutes=1)
    assert found["settled_at"] <= now(connection)


def test_a_slot_that_was_fired_ahead_is_not_fired_again_and_one_told_as_missed_is(
    connection: Connection,
) -> None:
    """Fires are unique; what was told of slots that are still to come was not so."""
    made = a_definition(connection, schedule="* * * * *", next_fire_at=None)
    scheduler.settle(connection)
    (at,) = [row["next_fire_at"] for row in rows(connection, "job_definitions")]
    told = {"definition_id": made, "scheduled_for": at, "reason": "misfire"}
    insert(connection, "missed_fires", told)
    fired = at + timedelta(minutes=1)
    insert(connection, "job_runs", {"job_type": "mail", "definition_id": made, "scheduled_for": fired})
    past = {"definition_id": made, "scheduled_for": at - timedelta(hours=1), "reason": "misfire"}
    insert(connection, "missed_fires", past | {"noted_at": now(connection) + timedelta(hours=6)})
    be_ahead(connection, timedelta(hours=6), "job_definitions")
    assert put_right(connection) == {"schedules": 1, "missed_fires": 1}
    (kept,) = rows(connection, "missed_fires")
    assert kept["scheduled_for"] == past["scheduled_for"] and kept["noted_at"] <= now(connection)
    connection.execute("UPDATE wakeboard.job_definitions SET overlap = 'allow'")
    for _ in range(2):
        connection.execute(
            "UPDATE wakeboard.job_definitions SET next_fire_at = %s, settled_at = now()",
            (now(connection).replace(second=0, microsecond=0),),
        )
        scheduler.settle(connection)
    slots = [run["scheduled_for"] for run in rows(connection, "job_runs")]
    assert len(slots) == len(set(slots))


def test_a_rule_that_comes_seldom_is_left_where_it_is(connection: Connection) -> None:
    a_definition(connection, "yearly", schedule="0 0 1 1 *", next_fire_at=None)
    a_definition(connection, "broken", schedule="0 0 30 2 *", next_fire_at="1 hour")
    scheduler.settle(connection)
    before = rows(connection, "job_definitions")
    assert put_right(connection) == {}
    assert rows(connection, "job_definitions") == before


def test_a_settling_ahead_of_the_clock_does_not_put_the_next_fire_off(connection: Connection) -> None:
    a_definition(connection, schedule="* * * * *", next_fire_at="-1 minute")
    connection.execute("UPDATE wakeboard.job_definitions SET settled_at = now() + interval '6 hours'")
    assert scheduler.settle(connection).due == 1
    (found,) = rows(connection, "job_definitions")
    assert found["next_fire_at"] - now(connection) <= timedelta(minutes=1)
    assert found["settled_at"] <= now(connection)


def test_what_waits_for_its_next_try_waits_as_long_as_it_was_to_wait(connection: Connection) -> None:
    retry = a_run(connection, "failed", run_at="5 minutes")
    at_once = a_run(connection, "queued", run_at="0 seconds")
    later = a_run(connection, "queued", run_at="1 hour")
    be_ahead(connection, timedelta(hours=6), "job_runs")
    long_ago = a_run(connection, "failed", run_at="7 hours")
    connection.execute("UPDATE wakeboard.job_runs SET updated_at = now() WHERE id = %s", (long_ago,))
    a_worker(connection, "w1", seen="6 hours")
    assert put_right(connection) == {"workers": 1, "runs": 2}
    due = {
        run["id"]: (run["run_at"] - now(connection)).total_seconds() for run in rows(connection, "job_runs")
    }
    assert due[retry] == pytest.approx(300, abs=10)
    assert due[at_once] <= 0
    assert due[later] == pytest.approx(7 * 3600, abs=10), "a time of its own, as somebody asked for it"
    assert due[long_ago] == pytest.approx(7 * 3600, abs=10)
    assert put_right(connection) == {}


def test_a_step_after_a_look_that_found_nothing_ahead_does_not_ask_again(connection: Connection) -> None:
    a_worker(connection, "w2")
    clock = Clock("w1")
    clock.note_poll(is_anything_ahead=False)
    be_ahead(connection, timedelta(hours=6))
    assert clock.step(connection) == {}
    assert clock.step(connection)["workers"] == 1, "one look stands for one step"
    be_ahead(connection, timedelta(hours=6))
    clock.note_poll(is_anything_ahead=True)
    assert clock.step(connection)["workers"] == 1


def test_a_walk_over_very_many_runs_goes_a_slice_at_a_time(connection: Connection) -> None:
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, run_at, created_at, updated_at)"
        " SELECT 'mail', at, at, at FROM generate_series(1, %s),"
        " (SELECT now() + interval '6 hours' AS at) AS ahead",
        (SLICE + 10,),
    )
    clock = Clock("w1")
    clock.walk()
    found = [clock.step(connection).get("runs", 0) for _ in range(5)]
    assert sum(found) == SLICE + 10
    assert max(found) == SLICE


def test_an_operation_that_lies_ahead_is_looked_at(connection: Connection) -> None:
    operation = {
        "verb": "retry", "filter": "{}", "as_of": now(connection), "actor": "ada", "role": "admin",
        "source": "cli", "look_at": now(connection) + timedelta(seconds=50), "per_minute": 1,
    }  # fmt: skip
    insert(connection, "operations", operation)
    assert put_right(connection) == {}, "its pace may want that"
    be_ahead(connection, timedelta(hours=6))
    assert put_right(connection) == {"operations": 1}
    (found,) = rows(connection, "operations")
    assert found["look_at"] <= now(connection) and found["paced_at"] <= now(connection)


def test_the_code_of_a_worker_that_lies_ahead_says_nothing_any_more(connection: Connection) -> None:
    a_worker(connection, "w1", job_types=["mail"], code_schedules='{"mail": ["* * * * *", null]}')
    declared = code_schedules.Declaration("* * * * *")
    assert code_schedules.is_declared(connection, "mail", declared)
    be_ahead(connection, timedelta(hours=6))
    assert not code_schedules.is_declared(connection, "mail", declared)


@pytest.mark.parametrize("reminds", [0.0, 3600.0])
def test_a_message_sent_ahead_of_the_clock_keeps_no_other_one_back(reminds: float) -> None:
    at = datetime.fromisoformat("2026-03-01T12:00:00+00:00")
    memory = RuleState("quiet", "quiet", sent_at=at + timedelta(hours=6))
    after, news = next_state(memory, at, firing=True, window_seconds=900, remind_seconds=reminds)
    assert news == "firing" and after.sent_at == at
    known = RuleState("firing", "firing", sent_at=at + timedelta(hours=6))
    _, reminder = next_state(known, at, firing=True, window_seconds=900, remind_seconds=reminds)
    assert reminder == ("reminder" if reminds else None)


def test_a_session_that_was_used_ahead_of_the_clock_is_over(connection: Connection) -> None:
    cookie = sessions.open_session(connection, "ada", Role.ADMIN)
    assert sessions.authenticate_session(connection, cookie) is not None
    connection.execute("UPDATE wakeboard.sessions SET seen_at = seen_at + interval '6 hours'")
    assert sessions.authenticate_session(connection, cookie) is None
    assert sessions.live_roles(connection, [sessions.hash_secret(cookie)]) == {}
    sessions.open_session(connection, "ada", Role.ADMIN)
    assert len(rows(connection, "sessions")) == 1, "or it would come back in six hours"


def test_a_link_that_was_made_ahead_of_the_clock_is_none(connection: Connection) -> None:
    token = sessions.create_login_link(connection, "ada")
    assert sessions.peek_login_link(connection, token)
    connection.execute("UPDATE wakeboard.login_links SET expires_at = expires_at + interval '6 hours'")
    assert not sessions.peek_login_link(connection, token)
    assert sessions.consume_login_link(connection, token) is None


def test_wrong_passwords_ahead_of_the_clock_keep_nobody_out_for_hours(connection: Connection) -> None:
    def fail_often() -> None:
        for _ in range(throttle.FREE_ATTEMPTS["user"] + 1):
            throttle.count_attempt(connection, "ada", None)

    with pytest.raises(TooManyAttempts):
        fail_often()
    connection.execute("UPDATE wakeboard.login_failures SET last_failed_at = now() + interval '6 hours'")
    throttle.count_attempt(connection, "ada", None)
    with pytest.raises(TooManyAttempts):
        throttle.count_attempt(connection, "ada", None)


def test_a_retention_pass_that_was_written_ahead_is_anybodys() -> None:
    for state in (
        retention.RetentionPass(owner="w1", phase="runs"),
        retention.RetentionPass(owner="w1", finished_at=1.0),
    ):
        assert retention.is_due(state, -6 * 3600.0, "w2")
        assert not retention.is_due(state, -1.0, "w2")


def test_a_worker_whose_heartbeat_lies_ahead_has_not_said_goodbye_for_it(connection: Connection) -> None:
    a_worker(connection, "living", seen="6 hours")
    a_worker(connection, "stopped", seen="6 hours", stopped_at="6 hours")
    assert put_right(connection) == {"workers": 2}
    (living,) = rows(connection, "workers", "id = 'living'")
    (stopped,) = rows(connection, "workers", "id = 'stopped'")
    assert living["stopped_at"] is None
    assert stopped["stopped_at"] <= now(connection)
    connection.execute("UPDATE wakeboard.workers SET seen_at = now() WHERE id = 'living'")
    assert is_so_of(connection, "living", leases.is_alive("x"))


def test_who_died_one_after_the_other_while_the_clock_was_ahead_is_replaced_by_one_successor(
    connection: Connection,
) -> None:
    liveness_rows.worker(connection, "first", seen_seconds_ago=60)
    liveness_rows.worker(connection, "second", started_seconds_ago=50, seen_seconds_ago=30)
    for name, seconds in (("first", 60), ("second", 30)):
        liveness_rows.loop(connection, name, "claim", seconds)
    be_ahead(connection, timedelta(hours=6), "workers", "loops")
    liveness_rows.worker(connection, "another", started_seconds_ago=0)
    assert put_right(connection) == {"workers": 2, "loops": 2}
    assert liveness_rows.late(connection) == []


def is_so_of(connection: Connection, worker: str, condition: str) -> bool:
    statement = f"SELECT {condition} FROM wakeboard.workers AS x WHERE id = %s"
    ((found,),) = connection.execute(statement.encode(), (worker,)).fetchall()
    return bool(found)
