"""Hours of statistics: each is summed once when it is settled, and anew when something late comes in."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import psycopg
import pytest

from tests.support.factories import Connection, from_now, insert, rows
from tests.support.processes import wait_until_blocked
from wakeboard.database import db
from wakeboard.reporting import hourly_rollups, statistics
from wakeboard.reporting.hourly_rollups import HOUR
from wakeboard.runtime.duties import statistics_merge
from wakeboard.runtime.duties.statistics_merge import StatisticsMerge

ARRAYS = ("duration_buckets", "duration_runs", "duration_bucket_ms", "wait_buckets", "wait_runs")


def now_of(connection: Connection) -> datetime:
    row = connection.execute("SELECT now()").fetchone()
    assert row
    now: datetime = row[0]
    return now.astimezone(UTC)


def hour_ago(connection: Connection, count: int) -> datetime:
    """Return when the hour ``count`` before the present one began."""
    return now_of(connection).replace(minute=0, second=0, microsecond=0) - count * HOUR


def ended(
    connection: Connection,
    minute: datetime,
    runs: int = 1,
    *,
    outcome: str = "succeeded",
    job_type: str = "mail",
    bucket: int = 20,
    wait_bucket: int = 10,
    ms: float = 1.0,
    table: str = "statistics_rollups",
) -> None:
    """Write ``runs`` attempts of ``ms`` each that ended in ``minute`` and had waited for half of that."""
    insert(connection, table, {
        "minute": minute, "job_type": job_type, "outcome": outcome, "duration_bucket": bucket,
        "wait_bucket": wait_bucket, "runs": runs, "duration_ms": runs * ms, "duration_max_ms": ms,
        "wait_ms": runs * ms / 2, "wait_max_ms": ms / 2,
    }, "runs")  # fmt: skip


def sum_all(connection: Connection) -> list[datetime]:
    """Sum whatever is due; return the hours in the order in which they were."""
    found = []
    while (hour := hourly_rollups.sum_next_hour(connection)) is not None:
        found.append(hour.astimezone(UTC))
    return found


def summed(connection: Connection) -> dict[datetime, int]:
    """Return how many attempts succeeded in each hour that is summed."""
    found = connection.execute(
        "SELECT hour, succeeded FROM wakeboard.statistics_hours WHERE summed_at IS NOT NULL"
    ).fetchall()
    return {hour.astimezone(UTC): succeeded for hour, succeeded in found}


def sums(connection: Connection, table: str, condition: str, *values: Any) -> dict[str, Any]:
    (row,) = rows(connection, table, condition, *values)
    return {name: value for name, value in row.items() if name not in ("hour", "summed_at", "job_type")}


def test_an_hour_says_what_its_minutes_said(connection: Connection) -> None:
    hour = hour_ago(connection, 3)
    ended(connection, hour, 5, bucket=20, wait_bucket=10, ms=1)
    ended(connection, hour + timedelta(minutes=59), 2, bucket=24, wait_bucket=12, ms=4)
    ended(connection, hour, 3, bucket=20, wait_bucket=12, ms=1, outcome="lost")
    ended(connection, hour, 7, bucket=60, wait_bucket=10, ms=9000, outcome="cancelled")
    ended(connection, hour, 1, bucket=24, wait_bucket=10, ms=4, job_type="report")
    ended(connection, hour + HOUR, 100)
    ended(connection, hour - timedelta(minutes=1), 100)
    sum_all(connection)
    assert sums(connection, "statistics_hours_of_types", "hour = %s AND job_type = 'mail'", hour) == {
        "succeeded": 7, "failed": 3, "duration_ms": 16, "duration_max_ms": 4, "succeeded_max_ms": 4,
        "wait_max_ms": 4500, "duration_buckets": [20, 24], "duration_runs": [5, 2],
        "duration_bucket_ms": [5, 8], "wait_buckets": [10, 12], "wait_runs": [12, 5],
        "attempts": 17, "lost": 3, "busy_ms": 63016, "slice_minutes": [0, 55], "slice_starts": [0, 59],
        "slice_ends": [1, 60], "slice_attempts": [15, 2], "slice_failed": [3, 0],
    }  # fmt: skip
    assert sums(connection, "statistics_hours", "hour = %s", hour) == {
        "succeeded": 8, "failed": 3, "duration_ms": 20, "duration_max_ms": 4, "succeeded_max_ms": 4,
        "wait_max_ms": 4500, "duration_buckets": [20, 24], "duration_runs": [5, 3],
        "duration_bucket_ms": [5, 12], "wait_buckets": [10, 12], "wait_runs": [13, 5],
    }  # fmt: skip


def test_a_type_of_which_nothing_succeeded_has_no_run_times(connection: Connection) -> None:
    hour = hour_ago(connection, 3)
    ended(connection, hour, 3, outcome="failed")
    sum_all(connection)
    found = sums(connection, "statistics_hours_of_types", "hour = %s", hour)
    assert (found["failed"], found["succeeded"], found["succeeded_max_ms"]) == (3, 0, 0)
    assert [found[name] for name in ARRAYS] == [[], [], [], [10], [3]]


def test_every_hour_since_the_first_minute_is_summed_once_it_is_settled(connection: Connection) -> None:
    ended(connection, hour_ago(connection, 5) + timedelta(minutes=30), 4)
    ended(connection, hour_ago(connection, 0), 9)
    settled = 1 if now_of(connection).minute >= 30 else 2
    due = [hour_ago(connection, count) for count in range(settled, 6)]
    assert sum_all(connection) == due, "the newest first, empty ones too"
    assert summed(connection) == dict.fromkeys(due[:-1], 0) | {due[-1]: 4}
    assert sum_all(connection) == []


def test_where_nothing_ever_ended_there_is_nothing_to_sum(connection: Connection) -> None:
    assert sum_all(connection) == []


def test_hours_that_retention_is_about_to_remove_are_left_to_it(connection: Connection) -> None:
    ended(connection, hour_ago(connection, 40 * 24))
    found = sum_all(connection)
    assert len(found) in (35 * 24 - 2, 35 * 24 - 1)
    assert found[-1] > now_of(connection) - timedelta(days=35)


def test_what_comes_late_makes_its_hour_be_summed_anew(connection: Connection) -> None:
    hour = hour_ago(connection, 4)
    ended(connection, hour, 5)
    sum_all(connection)
    ended(connection, hour, 2, table="statistics_deltas")
    ended(connection, hour, 1, table="statistics_deltas", job_type="report")
    assert summed(connection)[hour] == 5
    statistics.merge_deltas(connection)
    assert hour not in summed(connection), "until it is summed, its minutes are read"
    assert sum_all(connection) == [hour]
    assert summed(connection)[hour] == 8
    of_types = rows(connection, "statistics_hours_of_types", "hour = %s", hour)
    assert {row["job_type"]: row["succeeded"] for row in of_types} == {"mail": 7, "report": 1}


def test_a_late_delta_is_not_lost_to_an_hour_that_is_being_written(
    connection: Connection, other: Connection, database: str
) -> None:
    """The hour's row is younger than the statement that merges; it waits for it and marks it all the same."""
    hour = hour_ago(connection, 4)
    ended(connection, hour, 2, table="statistics_deltas")

    def merge() -> None:
        statistics.merge_deltas(other)

    with connection.transaction():
        insert(connection, "statistics_hours", {"hour": hour, "summed_at": from_now("0 s")}, "hour")
        merging = threading.Thread(target=merge)
        merging.start()
        with db.connect(database, name="wakeboard watcher") as watcher:
            wait_until_blocked(watcher, other.info.backend_pid)
    merging.join()
    assert summed(connection) == {}
    assert sum_all(connection)[-1] == hour
    assert summed(connection)[hour] == 2


def test_nobody_sums_while_another_merges_or_sums(connection: Connection, other: Connection) -> None:
    ended(connection, hour_ago(connection, 4))
    with other.transaction():
        other.execute(f"SELECT {hourly_rollups.TRY_LOCK}".encode())
        assert hourly_rollups.sum_next_hour(connection) is None
    assert hourly_rollups.sum_next_hour(connection) is not None


def test_processes_that_sum_at_once_sum_nothing_twice(connection: Connection, database: str) -> None:
    for count in range(2, 30):
        ended(connection, hour_ago(connection, count), count)
    found: list[datetime] = []

    def work() -> None:
        with db.connect(database, name="wakeboard summer") as mine:
            found.extend(sum_all(mine))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found += sum_all(connection)
    assert len(found) == len(set(found)) == len(summed(connection))
    assert sum(summed(connection).values()) == sum(range(2, 30))


def test_a_long_past_is_worked_off_a_moment_at_a_time(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics_merge, "SLICE_SECONDS", 0)
    ended(connection, hour_ago(connection, 4))
    ended(connection, hour_ago(connection, 4), table="statistics_deltas")
    duty = StatisticsMerge()
    assert duty.step(connection) == {"rows": 1, "hours": 1}
    assert duty.pause_seconds is not None and 0 < duty.pause_seconds < 1
    steps = 1
    while duty.pause_seconds is not None:
        duty.step(connection)
        steps += 1
    assert summed(connection)[hour_ago(connection, 4)] == 2 and steps in (4, 5)
    ended(connection, hour_ago(connection, 9))
    assert duty.step(connection) == {"rows": 0, "hours": 0}, "it looks again in some minutes"


def test_an_hour_that_cannot_be_summed_is_left_and_holds_up_no_other(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = hour_ago(connection, 4), hour_ago(connection, 3)
    ended(connection, good)
    ended(connection, bad, 2)
    connection.execute("ALTER TABLE wakeboard.statistics_hours ADD CONSTRAINT broken CHECK (succeeded <> 2)")
    duty = StatisticsMerge()
    monkeypatch.setattr(statistics_merge, "SLICE_SECONDS", 3600)
    assert duty.step(connection)["left"] == 1, "it says so"
    assert summed(connection)[good] == 1 and bad not in summed(connection)
    ended(connection, good, 5, table="statistics_deltas")
    assert duty.step(connection) == {"rows": 1, "hours": 0, "left": 1}, "and tries again later"
    connection.execute("ALTER TABLE wakeboard.statistics_hours DROP CONSTRAINT broken")
    in_an_hour = monotonic() + statistics_merge.RETRY_SECONDS
    monkeypatch.setattr(statistics_merge, "monotonic", lambda: in_an_hour)
    assert duty.step(connection) == {"rows": 0, "hours": 2}
    assert (summed(connection)[good], summed(connection)[bad]) == (6, 2)


def test_a_lost_connection_is_not_an_hour_that_cannot_be_summed(
    connection: Connection, superuser: Connection
) -> None:
    ended(connection, hour_ago(connection, 3))
    superuser.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        hourly_rollups.sum_next_hour(connection)
