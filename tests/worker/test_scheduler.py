"""Schedules: each due instant becomes one run or one missed fire, whoever looks, however late."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import factories
from tests.support.factories import Connection, Row, a_definition, a_run, rows
from wakeboard.config import log
from wakeboard.core.states import Role
from wakeboard.database import db
from wakeboard.database.audit import Actor
from wakeboard.handlers.context import Context
from wakeboard.queue import definitions
from wakeboard.queue.definitions import Definition
from wakeboard.schedules import code_schedules, scheduler
from wakeboard.schedules.planner import LOOK_BACK, Decision, MissedFire, sort_fires

NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
ADMIN = Actor("ada", Role.ADMIN, "cli")


def minutes_ago(*minutes: int) -> list[datetime]:
    """Return the full minutes so many minutes before noon; noon itself is 30 s ago."""
    return [NOW.replace(second=0) - timedelta(minutes=number) for number in minutes]


def sort(due: list[datetime], **how: Any) -> Decision:
    given: dict[str, Any] = {"misfire": "one", "grace_seconds": 60, "overlap": "allow", "is_under_way": False}
    return sort_fires(due, NOW, **(given | how))


# ---- the decision -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("misfire", "due", "fired", "missed"),
    [
        ("one", [0], [0], []),
        ("one", [5, 4, 3], [3], [5, 4]),
        ("one", [3, 2, 0], [2, 0], [3]),
        ("none", [3, 2, 0], [0], [3, 2]),
        ("none", [3, 2], [], [3, 2]),
        ("all", [3, 2, 0], [3, 2, 0], []),
        ("one", [], [], []),
    ],
)
def test_what_is_late_follows_the_misfire_rule(
    misfire: str, due: list[int], fired: list[int], missed: list[int]
) -> None:
    decision = sort(minutes_ago(*due), misfire=misfire)
    assert decision.fires == minutes_ago(*fired)
    assert decision.missed == [MissedFire(at, "misfire") for at in minutes_ago(*missed)]


def test_late_by_no_more_than_the_grace_is_on_time() -> None:
    (due,) = minutes_ago(10)
    lateness = int((NOW - due).total_seconds())
    assert sort([due], misfire="none", grace_seconds=lateness).fires == [due]
    assert sort([due], misfire="none", grace_seconds=lateness - 1).fires == []


def test_all_stops_at_the_cap_and_says_so() -> None:
    due = minutes_ago(*range(250, 0, -1))
    decision = sort(due, misfire="all")
    late = [at for at in due if at < NOW - timedelta(seconds=60)]
    assert decision.fires[:100] == late[-100:]
    assert {fire.reason for fire in decision.missed} == {"capped"}
    assert len(decision.fires) + len(decision.missed) == 250


@pytest.mark.parametrize(
    ("overlap", "is_under_way", "misfire", "due", "fired", "misfired", "overlapped"),
    [
        # One run at a time: it is for the latest fire that counts.
        ("skip", False, "one", [3, 2, 1], [1], [3, 2], []),
        ("skip", False, "one", [3, 2, 0], [0], [3], [2]),
        ("skip", False, "all", [3, 2, 0], [0], [], [3, 2]),
        ("skip", False, "all", [3, 2], [2], [], [3]),
        ("skip", False, "none", [3, 2, 0], [0], [3, 2], []),
        ("skip", False, "none", [3, 2], [], [3, 2], []),
        ("skip", True, "one", [3, 2, 0], [], [3], [2, 0]),
        ("skip", True, "none", [3, 0], [], [3], [0]),
        # Nothing was under way, so an outage is an outage for a schedule that waits, too.
        ("wait", False, "one", [3, 2, 0], [0], [3], [2]),
        ("wait", False, "none", [3, 2], [], [3, 2], []),
        ("wait", False, "all", [3, 2], [2], [], [3]),
        ("allow", True, "one", [3, 2, 0], [2, 0], [3], []),
        ("allow", True, "all", [3, 2, 0], [3, 2, 0], [], []),
        ("allow", False, "none", [3, 2, 0], [0], [3, 2], []),
    ],
)
def test_the_misfire_rule_says_what_counts_and_the_overlap_rule_what_of_it_runs(
    overlap: str,
    is_under_way: bool,
    misfire: str,
    due: list[int],
    fired: list[int],
    misfired: list[int],
    overlapped: list[int],
) -> None:
    decision = sort(minutes_ago(*due), misfire=misfire, overlap=overlap, is_under_way=is_under_way)
    reason = "capped" if misfire == "all" else "misfire"
    assert decision.fires == minutes_ago(*fired)
    assert decision.missed == [
        *(MissedFire(at, reason) for at in minutes_ago(*misfired)),
        *(MissedFire(at, "overlap") for at in minutes_ago(*overlapped)),
    ]
    assert not decision.is_waiting


def test_a_schedule_that_waits_settles_nothing_while_a_run_is_under_way() -> None:
    decision = sort(minutes_ago(3, 2, 0), overlap="wait", is_under_way=True)
    assert (decision.fires, decision.missed, decision.is_waiting) == ([], [], True)


@pytest.mark.parametrize("misfire", ["one", "all", "none"])
def test_what_waited_for_a_run_is_as_late_as_the_time_since_its_end(misfire: str) -> None:
    began, ended, long_ago = minutes_ago(20, 0, 9)
    due = minutes_ago(25, 15, 10)
    after_the_run = sort(due, misfire=misfire, overlap="wait", last_run=(began, ended))
    assert after_the_run.fires == minutes_ago(10), "10 and 15 waited; 25 was missed before the run began"
    assert MissedFire(minutes_ago(15)[0], "overlap") in after_the_run.missed
    after_an_outage = sort(due, misfire=misfire, overlap="wait", last_run=(began, long_ago))
    assert after_an_outage.fires == ([] if misfire == "none" else minutes_ago(10))


@given(
    st.lists(st.integers(0, 10_000), unique=True, max_size=150),
    st.sampled_from(["one", "all", "none"]),
    st.sampled_from(["skip", "allow", "wait"]),
    st.booleans(),
    st.integers(0, 86_400),
)
def test_no_instant_is_lost_or_told_twice(
    minutes: list[int], misfire: str, overlap: str, is_under_way: bool, grace: int
) -> None:
    due = sorted(minutes_ago(*minutes))
    decision = sort(due, misfire=misfire, overlap=overlap, is_under_way=is_under_way, grace_seconds=grace)
    told = decision.fires + [fire.at for fire in decision.missed]
    assert decision.is_waiting or sorted(told) == due
    assert not (decision.is_waiting and told)


# ---- the database -----------------------------------------------------------------------------------


def fired(connection: Connection, definition: int) -> list[Row]:
    return rows(connection, "job_runs", "definition_id = %s", definition, order="scheduled_for")


def missed(connection: Connection, definition: int) -> list[Row]:
    return rows(connection, "missed_fires", "definition_id = %s", definition, order="scheduled_for")


def now(connection: Connection) -> datetime:
    (value,) = connection.execute("SELECT now()").fetchone() or (None,)
    assert isinstance(value, datetime)
    return value


def definition(connection: Connection, definition_id: int) -> Row:
    (found,) = rows(connection, "job_definitions", "id = %s", definition_id)
    return found


def every_minute(connection: Connection, ago: str = "-5 minutes", **columns: Any) -> int:
    """Insert an every-minute schedule whose next fire was ``ago``, on the full minute."""
    made = a_definition(connection, schedule="* * * * *", **columns)
    connection.execute(
        "UPDATE wakeboard.job_definitions SET next_fire_at = date_trunc('minute', now() + %s::interval)"
        " WHERE id = %s",
        (ago, made),
    )
    return made


def test_a_fire_carries_the_definitions_rules_into_its_run(connection: Connection) -> None:
    made = every_minute(
        connection, "0 minutes", name="report", job_type="mail", payload={"to": "all"}, priority=1,
        max_attempts=3, timeout_seconds=7.5,
    )  # fmt: skip
    assert scheduler.settle(connection).due == 1
    (run,) = fired(connection, made)
    wanted = ("mail", {"to": "all"}, 1, 3, 7.5, "schedule:report", "queued")
    names = ("job_type", "payload", "priority", "max_attempts", "timeout_seconds", "enqueued_by", "status")
    assert tuple(run[name] for name in names) == wanted
    after = definition(connection, made)
    assert after["last_fire_at"] == run["scheduled_for"]
    assert after["next_fire_at"] == run["scheduled_for"] + timedelta(minutes=1)
    assert scheduler.settle(connection).due == 0


@pytest.mark.parametrize(
    ("timezone", "local"),
    [
        ("America/New_York", "2026-03-08 03:00:00-04:00"),
        ("Asia/Kathmandu", "2026-03-08 12:45:00+05:45"),
        ("UTC", "2026-03-08 07:00:00+00:00"),
        ("Mars/Base", "2026-03-08 07:00:00+00:00"),
    ],
)
def test_a_fire_carries_its_local_day_into_the_handler(
    connection: Connection, timezone: str, local: str
) -> None:
    factories.a_type(connection)
    made = a_definition(connection, timezone=timezone)
    a_run(connection, definition_id=made, scheduled_for="2026-03-08 07:00+00")
    ((claimed),) = factories.claim(connection)
    assert str(Context(scheduled_for=claimed.scheduled_for).scheduled_for) == local


def test_a_run_whose_schedule_is_gone_or_never_was_still_starts(connection: Connection) -> None:
    factories.a_type(connection)
    a_run(connection, definition_id=4711, scheduled_for="2026-03-08 07:00+00")
    a_run(connection, definition_id=a_definition(connection))
    found = [Context(scheduled_for=one.scheduled_for).scheduled_for for one in factories.claim(connection)]
    assert sorted(map(str, found)) == ["2026-03-08 07:00:00+00:00", "None"]


def test_schedulers_that_race_fire_each_instant_once(connection: Connection, database: str) -> None:
    made = [every_minute(connection, overlap="allow", misfire="all") for _ in range(20)]
    barrier = threading.Barrier(3)

    def step_thrice() -> None:
        with db.connect(database, name="wakeboard scheduler") as mine:
            barrier.wait()
            for _ in range(3):
                scheduler.settle(mine)

    threads = [threading.Thread(target=step_thrice) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in made:
        instants = [run["scheduled_for"] for run in fired(connection, one)]
        assert len(instants) == len(set(instants)) >= 6
        assert {later - earlier for earlier, later in pairwise(instants)} == {timedelta(minutes=1)}
        assert not missed(connection, one)


def test_what_is_not_fired_is_a_missed_fire(connection: Connection) -> None:
    made = every_minute(connection, "-10 minutes", misfire="none", grace_seconds=0)
    scheduler.settle(connection)
    told = missed(connection, made)
    assert not fired(connection, made)
    assert len(told) in (10, 11)
    assert {one["reason"] for one in told} == {"misfire"}
    assert definition(connection, made)["next_fire_at"] > told[-1]["scheduled_for"]


def test_a_schedule_that_skips_makes_one_run_at_a_time(connection: Connection) -> None:
    made = every_minute(connection, "0 minutes")
    a_run(connection, "failed", definition_id=made)
    scheduler.settle(connection)
    assert len(fired(connection, made)) == 1, "a run in its backoff is under way"
    assert [one["reason"] for one in missed(connection, made)] == ["overlap"]


def test_a_schedule_that_waits_keeps_its_fire_until_the_run_has_ended(connection: Connection) -> None:
    made = every_minute(connection, "-3 minutes", overlap="wait")
    running = a_run(connection, "running", definition_id=made)
    factories.age(connection, running, "10 minutes")
    connection.execute("UPDATE wakeboard.job_runs SET locked_until = now() + interval '30 seconds'")
    before = definition(connection, made)["next_fire_at"]
    scheduler.settle(connection)
    assert definition(connection, made)["next_fire_at"] == before
    assert len(fired(connection, made)) == 1
    assert factories.succeed(connection, (running, 1)) == [running]
    scheduler.settle(connection)
    runs = [one for one in fired(connection, made) if one["scheduled_for"]]
    assert len(runs) == 1
    assert [one["reason"] for one in missed(connection, made)] == ["overlap"] * len(missed(connection, made))
    assert len(missed(connection, made)) in (3, 4)
    assert definition(connection, made)["next_fire_at"] > before


def test_a_definition_inserted_by_hand_gets_its_first_fire(connection: Connection) -> None:
    made = factories.insert(
        connection, "job_definitions", {"name": "by-hand", "job_type": "mail", "schedule": "* * * * *"}
    )
    inserted = now(connection)
    scheduler.settle(connection)
    found = definition(connection, made)["next_fire_at"]
    assert now(connection) - timedelta(seconds=5) < found <= now(connection) + timedelta(minutes=1)
    assert all(run["scheduled_for"] >= inserted.replace(second=0) for run in fired(connection, made))


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"timezone": "Mars/Base"}, "Mars/Base"),
        ({"schedule": "61 * * * *"}, "61"),
        ({"schedule": "0 0 1--100000000 * *"}, ""),
        ({"schedule": "x" * 10_000}, ""),
        ({"schedule": "0 0 31 2 *"}, "never"),
        ({"schedule": "* * * * *", "next_fire_at": "0001-01-02T00:00Z"}, ""),
    ],
)
def test_a_definition_that_cannot_be_read_shows_its_error_and_hurts_no_other(
    connection: Connection, columns: Row, word: str
) -> None:
    values = {"name": "odd", "job_type": "mail", "schedule": "0 * * * *", "next_fire_at": "2026-01-01T00:00Z"}
    odd = factories.insert(connection, "job_definitions", values | columns)
    well = every_minute(connection, "0 minutes")
    scheduler.settle(connection)
    assert len(fired(connection, well)) == 1
    found = definition(connection, odd)
    assert word in (found["error"] or "")
    assert found["error"] or found["next_fire_at"]
    if found["error"]:
        assert found["next_fire_at"] is None
    connection.execute("DELETE FROM wakeboard.job_definitions WHERE id = %s", (well,))
    assert scheduler.settle(connection).due == 0, "it is not looked at again and again"


def test_a_disabled_definition_does_not_fire(connection: Connection) -> None:
    made = every_minute(connection, enabled=False)
    assert scheduler.settle(connection).due == 0
    assert not fired(connection, made)


def test_a_look_that_is_full_says_that_there_may_be_more(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MOST_SECONDS", 60.0)
    connection.execute(
        "INSERT INTO wakeboard.job_definitions (name, job_type, schedule, next_fire_at)"
        " SELECT 'many-' || n, 'mail', '0 0 1 1 *', now() FROM generate_series(1, %s) AS n",
        (scheduler.BATCH + 1,),
    )
    assert scheduler.settle(connection).has_more
    assert scheduler.settle(connection) == (1, False)
    assert scheduler.settle(connection) == (0, False)


def test_a_look_that_ran_out_of_time_says_that_there_is_more(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        a_definition(connection, f"m{number}", next_fire_at="-1 minute")
    monkeypatch.setattr(scheduler, "MOST_SECONDS", -1.0)
    assert [scheduler.settle(connection) for _ in range(4)] == [(1, True), (1, True), (1, False), (0, False)]


def test_resuming_starts_from_now(connection: Connection) -> None:
    definitions.add(connection, Definition("report", "mail", "* * * * *"), ADMIN)
    definitions.pause(connection, "report", ADMIN)
    connection.execute("UPDATE wakeboard.job_definitions SET next_fire_at = now() - interval '2 hours'")
    definitions.resume(connection, "report", ADMIN)
    scheduler.settle(connection)
    (found,) = rows(connection, "job_definitions")
    assert not fired(connection, found["id"])
    assert not missed(connection, found["id"])


def test_a_fire_and_its_run_are_one_transaction(connection: Connection) -> None:
    made = every_minute(connection, "0 minutes")
    before = definition(connection, made)
    connection.execute(
        "ALTER TABLE wakeboard.job_runs ADD CONSTRAINT full_disk CHECK (enqueued_by NOT LIKE 'schedule:%%')"
    )
    scheduler.settle(connection)
    after = definition(connection, made)
    assert (after["next_fire_at"], after["last_fire_at"]) == (before["next_fire_at"], before["last_fire_at"])
    assert "full_disk" in after["error"]
    connection.execute("ALTER TABLE wakeboard.job_runs DROP CONSTRAINT full_disk")
    connection.execute("UPDATE wakeboard.job_definitions SET settled_at = settled_at - interval '1 minute'")
    scheduler.settle(connection)
    assert len(fired(connection, made)) == 1


def test_a_fire_that_exists_already_is_not_made_twice(connection: Connection) -> None:
    made = every_minute(connection, "0 minutes", overlap="allow")
    at = definition(connection, made)["next_fire_at"]
    scheduler.settle(connection)
    connection.execute("UPDATE wakeboard.job_definitions SET next_fire_at = %s WHERE id = %s", (at, made))
    scheduler.settle(connection)
    assert [one["scheduled_for"] for one in fired(connection, made)].count(at) == 1


def test_after_a_long_outage_the_next_fire_is_ahead_and_the_work_bounded(connection: Connection) -> None:
    made = every_minute(connection, "-30 days", misfire="all", overlap="allow")
    first = definition(connection, made)["next_fire_at"]
    scheduler.settle(connection)
    runs, told = fired(connection, made), missed(connection, made)
    assert 100 <= len(runs) <= 102
    assert len(runs) + len(told) == LOOK_BACK + 1
    assert definition(connection, made)["next_fire_at"] > now(connection) - timedelta(seconds=5)
    (many,) = [one for one in told if one["until_at"]]
    oldest = min(one["scheduled_for"] for one in told if one is not many)
    assert (many["scheduled_for"], many["until_at"]) == (first, oldest), "one row stands for all the rest"


def test_a_rare_schedule_makes_up_for_the_latest_hundred_after_years(connection: Connection) -> None:
    made = a_definition(connection, schedule="0 * * * *", misfire="all", overlap="allow")
    connection.execute(
        "UPDATE wakeboard.job_definitions SET next_fire_at = date_trunc('hour', now()) - interval '1800 days'"
    )
    scheduler.settle(connection)
    instants = [run["scheduled_for"] for run in fired(connection, made)]
    assert len(instants) in (100, 101)
    assert instants[-1] - instants[0] == timedelta(hours=len(instants) - 1)
    assert now(connection) - instants[-1] < timedelta(hours=2)


def test_many_definitions_that_wait_hold_up_no_other(connection: Connection) -> None:
    connection.execute(
        "INSERT INTO wakeboard.job_definitions (name, job_type, schedule, overlap, next_fire_at)"
        " SELECT 'waits-' || n, 'mail', '* * * * *', 'wait', now() - interval '1 hour'"
        " FROM generate_series(1, %s) AS n",
        (scheduler.BATCH + 10,),
    )
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, definition_id)"
        " SELECT 'mail', id FROM wakeboard.job_definitions"
    )
    well = every_minute(connection, "0 minutes")
    for _ in range(3):
        scheduler.settle(connection)
    assert len(fired(connection, well)) == 1


# ---- schedules in code ------------------------------------------------------------------------------


def registered(text: str, name: str = "send report") -> list[dict[str, Any]]:
    return [{"name": name, "schedule": text}, {"name": "mail", "schedule": None}]


def test_a_schedule_in_code_becomes_a_definition_once(connection: Connection) -> None:
    code_schedules.sync(connection, registered("0 2 * * *"))
    (made,) = rows(connection, "job_definitions")
    assert (made["name"], made["job_type"], made["schedule"]) == ("send-report", "send report", "0 2 * * *")
    assert made["enabled"]
    code_schedules.sync(connection, registered("0 2 * * *"))
    assert rows(connection, "job_definitions") == [made]
    audit = connection.execute("SELECT count(*) FROM wakeboard.audit_log").fetchone()
    assert audit == (1,)


def test_a_changed_schedule_in_code_moves_the_next_fire_and_nothing_else(connection: Connection) -> None:
    code_schedules.sync(connection, registered("0 2 * * *"))
    connection.execute(
        "UPDATE wakeboard.job_definitions SET enabled = false, grace_seconds = 5, priority = 0"
    )
    code_schedules.sync(connection, registered("30 4 * * *"))
    (made,) = rows(connection, "job_definitions")
    assert (made["schedule"], made["enabled"]) == ("30 4 * * *", False)
    assert (made["grace_seconds"], made["priority"]) == (5, 0)
    definitions.resume(connection, "send-report", ADMIN)
    (made,) = rows(connection, "job_definitions")
    assert (made["next_fire_at"].hour, made["next_fire_at"].minute) == (4, 30)


def test_what_an_operator_changed_stays_until_the_code_changes(connection: Connection) -> None:
    code_schedules.sync(connection, registered("0 2 * * *"))
    connection.execute("UPDATE wakeboard.job_definitions SET schedule = '15 3 * * *'")
    code_schedules.sync(connection, registered("0 2 * * *"))
    assert [one["schedule"] for one in rows(connection, "job_definitions")] == ["15 3 * * *"]
    code_schedules.sync(connection, registered("0 6 * * *"))
    assert [one["schedule"] for one in rows(connection, "job_definitions")] == ["0 6 * * *"]


def test_a_schedule_that_left_the_code_goes_on_and_that_is_said_once(
    connection: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    policy = registered("0 2 * * *")[0]
    code_schedules.sync(connection, [policy])
    code_schedules.sync(connection, [policy | {"schedule": None}])
    log.flush()
    said = capfd.readouterr().err
    assert (
        "A schedule is not in the code any more" in said and "wakeboard schedule remove send-report" in said
    )
    (kept,) = rows(connection, "job_definitions")
    assert (kept["schedule"], kept["enabled"]) == ("0 2 * * *", True)
    code_schedules.sync(connection, [policy | {"schedule": None}])
    log.flush()
    assert capfd.readouterr().err == ""


def test_an_unreadable_schedule_in_code_stops_nobody_and_can_be_mended(connection: Connection) -> None:
    code_schedules.sync(connection, registered("0 2 * * *"))
    code_schedules.sync(connection, [*registered("not cron"), *registered("0 5 * * *", "other")])
    assert {one["name"] for one in rows(connection, "job_definitions")} == {"send-report", "other"}
    connection.execute(
        "UPDATE wakeboard.job_definitions SET schedule = 'broken', error = 'cannot be read',"
        " next_fire_at = NULL WHERE name = 'send-report'"
    )
    code_schedules.sync(connection, registered("0 3 * * *"))
    scheduler.settle(connection)
    (mended,) = rows(connection, "job_definitions", "name = 'send-report'")
    assert mended["error"] is None
    assert mended["next_fire_at"].hour == 3
