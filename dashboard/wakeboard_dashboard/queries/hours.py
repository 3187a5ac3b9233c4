"""What the statistics tell about each job type, hour by hour, of the last day.

As in ``ended``: hours that a worker has summed are read as such, and those that cannot change any more are
kept by the caller from one request to the next, so a page reads the two or three latest ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, text

from wakeboard.core.states import FAILURES, sql_list
from wakeboard_dashboard.queries.hourly import Memory, Source, hourly
from wakeboard_dashboard.queries.throughput import WINDOWS, Bar, Times, one_bar, summed_hour

DAY = WINDOWS["24h"]
Hour = Mapping[str, Bar]

_SUMMED = text(f"""
SELECT start_at, job_type, duration_bucket, wait_bucket, grouping(duration_bucket) = 0 AS is_run_time,
    coalesce(sum(runs), 0)::bigint AS attempts,
    coalesce(sum(runs) FILTER (WHERE outcome = 'succeeded'), 0)::bigint AS good,
    coalesce(sum(runs) FILTER (WHERE outcome IN ({sql_list(FAILURES)})), 0)::bigint AS bad,
    coalesce(max(duration_max_ms) FILTER (WHERE outcome = 'succeeded'), 0) / 1000 AS longest_good,
    coalesce(max(wait_max_ms), 0) / 1000 AS longest_wait
FROM (
    SELECT *, date_bin(:step, minute, :first) AS start_at FROM (
        SELECT * FROM wakeboard.statistics_deltas WHERE minute >= :first AND minute < :until
        UNION ALL
        SELECT * FROM wakeboard.statistics_rollups WHERE minute >= :first AND minute < :until
    ) AS both_tables
) AS stepped
GROUP BY GROUPING SETS ((start_at, job_type, duration_bucket), (start_at, job_type, wait_bucket))
""")


def last_day(connection: Connection, now: datetime, memory: Memory[Hour]) -> dict[datetime, Hour]:
    """Return the bars of every type by the hours of DAY, oldest first; ``memory`` is that of ``hourly``."""
    starts = DAY.starts(now)
    return hourly(connection, starts, now, _SOURCE, memory, starts[0])


def bars_of(day: Mapping[datetime, Hour], name: str) -> list[Bar]:
    """Return the bars of one type, an empty one for an hour in which nothing of it ended."""
    return [hour.get(name) or _nothing(start) for start, hour in day.items()]


# Many types rest in many hours, and a list has thousands of both together.
@lru_cache(64)
def _nothing(start: datetime) -> Bar:
    return Bar(start)


# An hour in which nothing ended has a row without a type.
_HOURS = text("""
SELECT known.hour, told.job_type, told.succeeded, told.failed, told.succeeded_max_ms / 1000 AS longest_good,
    told.wait_max_ms / 1000 AS longest_wait, told.duration_buckets, told.duration_runs, told.wait_buckets,
    told.wait_runs
FROM wakeboard.statistics_hours AS known
LEFT JOIN wakeboard.statistics_hours_of_types AS told
    ON told.hour = known.hour AND told.hour >= :first AND told.hour < :until
WHERE known.hour >= :first AND known.hour < :until AND known.summed_at IS NOT NULL
""")


def _hours(connection: Connection, first: datetime, until: datetime) -> dict[datetime, Hour]:
    """Return the hours from ``first`` to ``until`` that a worker has summed."""
    found: dict[datetime, dict[str, Bar]] = {}
    for row in connection.execute(_HOURS, {"first": first, "until": until}):
        hour = found.setdefault(row.hour, {})
        if row.job_type is not None:
            hour[row.job_type] = summed_hour(row, {})
    return dict(found)


def _by_minutes(
    connection: Connection, first: datetime, until: datetime, step: timedelta
) -> dict[datetime, Hour]:
    rows: dict[tuple[datetime, str], list[Row[Any]]] = {}
    for row in connection.execute(_SUMMED, {"step": step, "first": first, "until": until}):
        rows.setdefault((row.start_at, row.job_type), []).append(row)
    found: dict[datetime, dict[str, Bar]] = {}
    for (start, name), parts in rows.items():
        found.setdefault(start, {})[name] = _bar(start, parts)
    return dict(found)


def _bar(start: datetime, rows: Sequence[Row[Any]]) -> Bar:
    """Return the bar that the rows of one hour and one type make."""
    ran = [row for row in rows if row.is_run_time]
    waited = [row for row in rows if not row.is_run_time]
    return Bar(
        start,
        sum(row.good for row in ran),
        sum(row.bad for row in ran),
        Times(
            {row.duration_bucket: row.good for row in ran if row.good},
            max((row.longest_good for row in ran), default=0.0),
        ),
        Times(
            {row.wait_bucket: row.attempts for row in waited},
            max((row.longest_wait for row in waited), default=0.0),
        ),
    )


def _one_hour(start: datetime, parts: Sequence[Hour]) -> Hour:
    """Return the bars of each type that its bars in ``parts`` are together."""
    by_type: dict[str, list[Bar]] = {}
    for part in parts:
        for name, bar in part.items():
            by_type.setdefault(name, []).append(bar)
    return {name: one_bar(start, bars) for name, bars in by_type.items()}


def _no_types(_start: datetime) -> Hour:
    return {}


_SOURCE: Source[Hour] = Source(_hours, _by_minutes, _one_hour, _no_types)
