"""Numbers of the past: nothing is counted twice or lost, percentiles are honest."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import Connection, a_run, a_type, claim, fail, succeed
from wakeboard.database import db
from wakeboard.reporting import statistics
from wakeboard.reporting.statistics import ENDLESS, FINE, bucket_seconds, percentile

SUM = (
    "SELECT coalesce(sum(runs), 0)::int, coalesce(sum(duration_ms), 0)::float8, max(duration_max_ms)"
    " FROM wakeboard."
)


def sums(connection: Connection) -> tuple[int, float, float | None]:
    """Return runs, duration and longest over deltas and roll-ups together."""
    parts = [
        connection.execute(f"{SUM}statistics_{name}".encode()).fetchone() for name in ("deltas", "rollups")
    ]
    longest = [part[2] for part in parts if part and part[2] is not None]
    return (
        sum(part[0] for part in parts if part),
        sum(part[1] for part in parts if part),
        max(longest) if longest else None,
    )


def work(connection: Connection) -> None:
    """Let thirty runs end, a third of them in failure, in the past minute."""
    a_type(connection)
    for _ in range(30):
        a_run(connection)
    held = [one.held for one in claim(connection, limit=30)]
    for number, one in enumerate(held):
        if number % 3:
            succeed(connection, one, took=0.01 * number)
        else:
            fail(connection, one, took=0.5)
    connection.execute("UPDATE wakeboard.statistics_deltas SET minute = minute - interval '1 minute'")


def test_merging_keeps_every_sum(connection: Connection) -> None:
    work(connection)
    before = sums(connection)
    assert before[0] == 30
    assert statistics.merge_deltas(connection)["rows"] > 0
    assert sums(connection) == pytest.approx(before)
    assert connection.execute("SELECT count(*) FROM wakeboard.statistics_deltas").fetchone() == (0,)
    outcomes = connection.execute(
        "SELECT outcome, sum(runs)::int FROM wakeboard.statistics_rollups GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert outcomes == [("failed", 10), ("succeeded", 20)]


def test_merging_keeps_what_each_bucket_counts_in_fewer_rows(connection: Connection) -> None:
    connection.execute(
        """INSERT INTO wakeboard.statistics_deltas
        SELECT now() - interval '2 minutes', type, outcome, 140 + d % 13, 150 + d * 7 % 17, 1 + d % 3,
            d, d, 2 * d, 2 * d
        FROM generate_series(1, 200) AS d, unnest('{mail,report}'::text[]) AS type,
            unnest('{succeeded,failed}'::text[]) AS outcome"""
    )

    def by_bucket(table: str, times: str) -> list[tuple[Any, ...]]:
        return connection.execute(
            f"""SELECT date_trunc('second', minute), job_type, outcome, {times}_bucket, sum(runs)::int,
                round(sum({times}_ms)::numeric, 6), max({times}_max_ms)
            FROM wakeboard.statistics_{table} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4""".encode()
        ).fetchall()

    before = [by_bucket("deltas", times) for times in ("duration", "wait")]
    assert statistics.merge_deltas(connection)["rows"] <= 4 * (13 + 17 - 1)
    assert [by_bucket("rollups", times) for times in ("duration", "wait")] == before


def test_the_minute_under_way_is_left_alone(connection: Connection) -> None:
    a_type(connection)
    a_run(connection)
    (one,) = claim(connection)
    succeed(connection, one.held)
    connection.execute("UPDATE wakeboard.statistics_deltas SET minute = date_trunc('minute', now())")
    statistics.merge_deltas(connection)
    assert connection.execute("SELECT sum(runs)::int FROM wakeboard.statistics_deltas").fetchone() == (1,)


def test_processes_that_merge_at_once_count_nothing_twice(connection: Connection, database: str) -> None:
    work(connection)
    before = sums(connection)

    def merge() -> None:
        with db.connect(database, name="wakeboard merger") as mine:
            statistics.merge_deltas(mine)

    threads = [threading.Thread(target=merge) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums(connection) == pytest.approx(before)


def test_a_late_delta_is_added_to_its_minute(connection: Connection) -> None:
    work(connection)
    statistics.merge_deltas(connection)
    connection.execute("UPDATE wakeboard.job_types SET name = 'other'")
    work(connection)
    statistics.merge_deltas(connection)
    assert sums(connection)[0] == 60


@given(st.lists(st.floats(0.0005, 900), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_percentile_is_right_to_within_10_percent(seconds: list[float], share: float) -> None:
    buckets: dict[int, int] = {}
    for one in seconds:
        bucket = next(b for b in range(FINE, ENDLESS + 1) if one <= bucket_seconds(b))
        buckets[bucket] = buckets.get(bucket, 0) + 1
    found = percentile(buckets, share)
    ordered = sorted(seconds)
    exact = ordered[min(len(ordered), max(1, -(-int(share * len(ordered) * 1e9) // 10**9))) - 1]
    assert found is not None
    assert found == pytest.approx(exact, rel=0.1)


def test_buckets_of_earlier_versions_are_read_beside_those_of_today() -> None:
    assert [bucket_seconds(bucket) for bucket in (20, 40, 140, 180)] == [0.001, 1.024, 0.001, 1.024]
    assert percentile({40: 50, 140: 50}, 0.5) == pytest.approx(0.001 * 2 ** (-1 / 8))
    assert percentile({40: 51, 140: 49}, 0.5) == 1.024
    assert percentile({63: 1}, 0.5) == percentile({ENDLESS: 1}, 0.5) == math.inf


def test_the_database_and_the_page_agree_on_buckets(connection: Connection) -> None:
    a_type(connection)
    for took in (0.001, 0.5, 7.3):
        a_run(connection)
        (one,) = claim(connection, limit=1)
        succeed(connection, one.held, took=took)
    found = connection.execute(
        "SELECT duration_max_ms, duration_bucket FROM wakeboard.statistics_deltas"
    ).fetchall()
    for longest, bucket in found:
        assert bucket_seconds(bucket - 1) * 990 <= longest <= bucket_seconds(bucket) * 1010


def test_no_runs_have_no_percentile() -> None:
    assert percentile({}, 0.5) is None
