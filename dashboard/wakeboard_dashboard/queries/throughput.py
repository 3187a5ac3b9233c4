"""Reads the statistics of the attempts that ended in a window: how many, how long, of which types.

The statistics have every ended attempt, so nothing here reads runs or attempts. A busy day has 200,000 rows
of minutes: hours that a worker has summed are read as sums, the other one or two by their minutes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, TextClause, text

from wakeboard.core.states import FAILURES, sql_list
from wakeboard.reporting.hourly_rollups import HOUR
from wakeboard.reporting.statistics import DurationHistogram

# A row of one of the statements below.
StatisticsRow = Row[Any]

TYPES = 5
STEP = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class ChartWindow:
    """``count`` steps of the clock, the last is the current one. ``every`` is the interval of polls."""

    name: str
    words: str
    step: timedelta
    count: int
    each: str
    every: str

    def starts(self, now: datetime) -> list[datetime]:
        """Return where each step begins, oldest first."""
        seconds = int(self.step.total_seconds())
        last = datetime.fromtimestamp(int(now.timestamp()) // seconds * seconds, UTC)
        return [last - self.step * back for back in range(self.count - 1, -1, -1)]


WINDOWS = {
    window.name: window
    for window in (
        ChartWindow("1h", "hour", STEP, 12, "five minutes", "15s"),
        ChartWindow("24h", "24 hours", HOUR, 24, "hour", "15s"),
        ChartWindow("7d", "7 days", HOUR, 168, "hour", "60s"),
    )
}
DAY = WINDOWS["24h"]


class Work(NamedTuple):
    """The work of one type: attempts that ended, failed ones, seconds in slots, the longest attempt."""

    attempts: int = 0
    failed: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0

    @property
    def average_seconds(self) -> float:
        """The average of an attempt, in seconds."""
        return self.seconds / self.attempts if self.attempts else 0.0


@dataclass(frozen=True, slots=True)
class WindowBar:
    """The attempts that ended in one step of a window. The view fills in ``label``.

    ``good`` succeeded, ``bad`` failed, timed out or were lost. ``run_times`` are those of the good ones,
    ``waits`` (from due to started) those of all, cancelled and released ones too. ``types`` is None for a
    summed hour: ``sum_work`` reads all summed hours at once.
    """

    start_at: datetime
    good: int = 0
    bad: int = 0
    run_times: DurationHistogram = field(default_factory=DurationHistogram)
    waits: DurationHistogram = field(default_factory=DurationHistogram)
    types: Mapping[str, Work] | None = field(default_factory=dict)
    label: str = ""

    @property
    def total(self) -> int:
        """All that succeeded or failed."""
        return self.good + self.bad


_COUNTS = """coalesce(sum(runs), 0)::bigint AS attempts,
        coalesce(sum(runs) FILTER (WHERE is_good), 0)::bigint AS good,
        coalesce(sum(runs) FILTER (WHERE is_bad), 0)::bigint AS bad,
        coalesce(sum(duration_ms) FILTER (WHERE is_good OR is_bad), 0) / 1000 AS seconds,
        coalesce(max(duration_max_ms) FILTER (WHERE is_good), 0) / 1000 AS longest_good,
        coalesce(max(duration_max_ms) FILTER (WHERE is_good OR is_bad), 0) / 1000 AS longest,
        coalesce(max(wait_max_ms), 0) / 1000 AS longest_wait"""


def _sum_minutes(columns: str, sets: str, narrowed: str = "") -> TextClause:
    """Return the statement that sums the minutes of the steps that begin at :starts, each of :length.

    Each step is summed by itself: a whole day at once would be sorted on disk.
    """
    return text(f"""
SELECT step.start_at, summed.*
FROM unnest(CAST(:starts AS timestamptz[])) AS step (start_at) CROSS JOIN LATERAL (
    SELECT {columns}, {_COUNTS}
    FROM (
        SELECT *, outcome = 'succeeded' AS is_good, outcome IN ({sql_list(FAILURES)}) AS is_bad
        FROM (
            SELECT * FROM wakeboard.statistics_deltas
            WHERE minute >= step.start_at AND minute < step.start_at + :length {narrowed}
            UNION ALL
            SELECT * FROM wakeboard.statistics_rollups
            WHERE minute >= step.start_at AND minute < step.start_at + :length {narrowed}
        ) AS ended
    ) AS rated
    GROUP BY GROUPING SETS ({sets})
) AS summed
""")


# One pass gives four things: sums, types, run times and waits of each step.
MINUTES = _sum_minutes(
    "job_type, duration_bucket, wait_bucket, grouping(job_type, duration_bucket, wait_bucket) AS which",
    "(), (job_type), (duration_bucket), (wait_bucket)",
)
# The values of ``which``: a bit for each of the three columns that a row is not grouped by.
BY_TYPE, BY_RUN_TIME, BY_WAIT, WHOLE = 0b011, 0b101, 0b110, 0b111
_HOURS = text("""
SELECT hour, succeeded, failed, succeeded_max_ms / 1000 AS longest_good, wait_max_ms / 1000 AS longest_wait,
    duration_buckets, duration_runs, wait_buckets, wait_runs
FROM wakeboard.statistics_hours WHERE hour = ANY (CAST(:hours AS timestamptz[])) AND summed_at IS NOT NULL
""")


def read_bars(connection: Connection, now: datetime, window: ChartWindow) -> list[WindowBar]:
    """Return the steps of ``window``, oldest first, none left out."""
    starts = window.starts(now)
    summed: dict[datetime, WindowBar] = {}
    if window.step == HOUR:
        summed = {row.hour: _summed_hour(row, None) for row in connection.execute(_HOURS, {"hours": starts})}
    others = [start for start in starts if start not in summed]
    rows: dict[datetime, list[StatisticsRow]] = {}
    for row in connection.execute(MINUTES, {"starts": others, "length": window.step}):
        rows.setdefault(row.start_at, []).append(row)
    return [summed[start] if start in summed else _bar(start, rows[start]) for start in starts]


def _summed_hour(row: StatisticsRow, types: Mapping[str, Work] | None) -> WindowBar:
    """Return the bar of a summed hour, of one type or of all."""
    return WindowBar(
        row.hour,
        row.succeeded,
        row.failed,
        DurationHistogram(dict(zip(row.duration_buckets, row.duration_runs, strict=True)), row.longest_good),
        DurationHistogram(dict(zip(row.wait_buckets, row.wait_runs, strict=True)), row.longest_wait),
        types,
    )


def _bar(start: datetime, rows: Iterable[StatisticsRow]) -> WindowBar:
    """Return the bar of one step from its ``rows`` of MINUTES."""
    by: dict[int, list[StatisticsRow]] = {BY_TYPE: [], BY_RUN_TIME: [], BY_WAIT: [], WHOLE: []}
    for row in rows:
        by[row.which].append(row)
    (whole,) = by[WHOLE]
    return WindowBar(
        start,
        whole.good,
        whole.bad,
        DurationHistogram(
            {row.duration_bucket: row.good for row in by[BY_RUN_TIME] if row.good}, whole.longest_good
        ),
        DurationHistogram({row.wait_bucket: row.attempts for row in by[BY_WAIT]}, whole.longest_wait),
        {
            row.job_type: Work(row.good + row.bad, row.bad, row.seconds, row.longest)
            for row in by[BY_TYPE]
            if row.good + row.bad
        },
    )


# An hour in which nothing ended has a row without a type.
_HOURS_OF_TYPE = text("""
SELECT h.hour, t.job_type, t.succeeded, t.failed, t.succeeded_max_ms / 1000 AS longest_good,
    t.wait_max_ms / 1000 AS longest_wait, t.duration_buckets, t.duration_runs, t.wait_buckets, t.wait_runs
FROM wakeboard.statistics_hours AS h
LEFT JOIN wakeboard.statistics_hours_of_types AS t
    ON t.hour = h.hour AND t.hour >= :first AND t.job_type = :type
WHERE h.hour = ANY (CAST(:hours AS timestamptz[])) AND h.summed_at IS NOT NULL
""")
_MINUTES_OF_TYPE = _sum_minutes(
    "duration_bucket, wait_bucket", "(duration_bucket), (wait_bucket)", "AND job_type = :type"
)


def read_last_day(connection: Connection, now: datetime, job_type: str) -> list[WindowBar]:
    """Return the bars of a type by the hours of DAY, oldest first, none left out."""
    starts = DAY.starts(now)
    bars: dict[datetime, WindowBar] = {}
    for row in connection.execute(_HOURS_OF_TYPE, {"hours": starts, "first": starts[0], "type": job_type}):
        bars[row.hour] = WindowBar(row.hour) if row.job_type is None else _summed_hour(row, {})
    rows: dict[datetime, list[StatisticsRow]] = {}
    others = [start for start in starts if start not in bars]
    values = {"starts": others, "length": HOUR, "type": job_type}
    for row in connection.execute(_MINUTES_OF_TYPE, values):
        rows.setdefault(row.start_at, []).append(row)
    bars |= {start: _bar_of_type(start, parts) for start, parts in rows.items()}
    return [bars.get(start) or WindowBar(start) for start in starts]


def _bar_of_type(start: datetime, rows: Sequence[StatisticsRow]) -> WindowBar:
    """Return the bar of one hour from its ``rows`` of _MINUTES_OF_TYPE."""
    ran = [row for row in rows if row.duration_bucket is not None]
    waited = [row for row in rows if row.wait_bucket is not None]
    return WindowBar(
        start,
        sum(row.good for row in ran),
        sum(row.bad for row in ran),
        DurationHistogram(
            {row.duration_bucket: row.good for row in ran if row.good}, max(row.longest_good for row in ran)
        ),
        DurationHistogram(
            {row.wait_bucket: row.attempts for row in waited}, max(row.longest_wait for row in waited)
        ),
    )


class Hour(NamedTuple):
    """The attempts of one type that ended in one hour: ``good`` succeeded, ``bad`` failed."""

    start_at: datetime
    good: int = 0
    bad: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.good + self.bad


class Day(NamedTuple):
    """The attempts of one type that ended in the hours of DAY, and how long the good ones ran."""

    hours: Sequence[Hour]
    run_times: DurationHistogram


_DAYS = text(f"""
WITH step AS MATERIALIZED (
    SELECT each.hour, EXISTS (
        SELECT FROM wakeboard.statistics_hours AS h
        WHERE h.hour = each.hour AND h.summed_at IS NOT NULL
    ) AS is_summed
    FROM unnest(CAST(:starts AS timestamptz[])) AS each (hour)
), in_hours AS MATERIALIZED (
    SELECT step.hour, summed.*
    FROM step CROSS JOIN LATERAL (
        SELECT job_type, succeeded AS good, failed AS bad, succeeded_max_ms AS longest_ms, duration_buckets,
            duration_runs
        FROM wakeboard.statistics_hours_of_types AS t
        WHERE t.hour = step.hour AND t.hour >= :first AND t.job_type = ANY (CAST(:types AS text[]))
    ) AS summed
    WHERE step.is_summed
), in_minutes AS MATERIALIZED (
    SELECT step.hour, ended.*
    FROM step CROSS JOIN LATERAL (
        SELECT job_type, duration_bucket,
            coalesce(sum(runs) FILTER (WHERE outcome = 'succeeded'), 0) AS good,
            coalesce(sum(runs) FILTER (WHERE outcome IN ({sql_list(FAILURES)})), 0) AS bad,
            coalesce(max(duration_max_ms) FILTER (WHERE outcome = 'succeeded'), 0) AS longest_ms
        FROM (
            SELECT job_type, duration_bucket, outcome, runs, duration_max_ms
            FROM wakeboard.statistics_deltas
            WHERE minute >= step.hour AND minute < step.hour + interval '1 hour'
                AND job_type = ANY (CAST(:types AS text[]))
            UNION ALL
            SELECT job_type, duration_bucket, outcome, runs, duration_max_ms
            FROM wakeboard.statistics_rollups
            WHERE minute >= step.hour AND minute < step.hour + interval '1 hour'
                AND job_type = ANY (CAST(:types AS text[]))
        ) AS minutes
        GROUP BY job_type, duration_bucket
    ) AS ended
    WHERE NOT step.is_summed
)
SELECT job_type, counts.hours, counts.good, counts.bad, counts.longest, times.buckets, times.runs
FROM (
    SELECT job_type, array_agg(hour) AS hours, array_agg(good) AS good, array_agg(bad) AS bad,
        max(longest_ms) / 1000 AS longest
    FROM (
        SELECT job_type, hour, good, bad, longest_ms FROM in_hours
        UNION ALL
        SELECT job_type, hour, sum(good)::bigint, sum(bad)::bigint, max(longest_ms) FROM in_minutes
        GROUP BY job_type, hour
    ) AS by_hour
    GROUP BY job_type
) AS counts LEFT JOIN (
    SELECT job_type, array_agg(bucket) AS buckets, array_agg(runs) AS runs
    FROM (
        SELECT job_type, bucket, sum(runs)::bigint AS runs
        FROM (
            SELECT job_type, unnest(duration_buckets) AS bucket, unnest(duration_runs) AS runs FROM in_hours
            UNION ALL
            SELECT job_type, duration_bucket, good FROM in_minutes WHERE good > 0
        ) AS by_bucket
        GROUP BY job_type, bucket
    ) AS summed
    GROUP BY job_type
) AS times USING (job_type)
""")


def read_days(connection: Connection, now: datetime, types: Collection[str]) -> dict[str, Day]:
    """Return the DAY of each of ``types``. PostgreSQL puts the hours together."""
    starts = DAY.starts(now)
    days = {}
    for row in connection.execute(_DAYS, {"starts": starts, "first": starts[0], "types": list(types)}):
        hours = {hour.start_at: hour for hour in map(Hour, row.hours, row.good, row.bad)}
        times = DurationHistogram(dict(zip(row.buckets or (), row.runs or (), strict=True)), row.longest)
        days[row.job_type] = Day([hours.get(start) or Hour(start) for start in starts], times)
    nothing = Day([Hour(start) for start in starts], DurationHistogram())
    return {name: days.get(name, nothing) for name in types}


_WORK = text("""
SELECT job_type, sum(succeeded + failed)::bigint AS attempts, sum(failed)::bigint AS failed,
    sum(duration_ms) / 1000 AS seconds, max(duration_max_ms) / 1000 AS longest
FROM wakeboard.statistics_hours_of_types
WHERE hour >= :first AND hour <= :last AND hour = ANY (:hours) AND succeeded + failed > 0
GROUP BY job_type
""")


def sum_work(connection: Connection, bars: Sequence[WindowBar]) -> dict[str, Work]:
    """Return the work of each type in all of ``bars``, which are oldest first."""
    by_type: defaultdict[str, list[Work]] = defaultdict(list)
    for bar in bars:
        for name, work in (bar.types or {}).items():
            by_type[name].append(work)
    if hours := [bar.start_at for bar in bars if bar.types is None]:
        for row in connection.execute(_WORK, {"first": hours[0], "last": hours[-1], "hours": hours}):
            by_type[row.job_type].append(Work(row.attempts, row.failed, row.seconds, row.longest))
    return {name: _add_up(works) for name, works in by_type.items()}


def rank_types(
    types: Mapping[str, Work],
) -> tuple[list[tuple[str, Work]], list[tuple[str, Work]]]:
    """Return the TYPES types with the most seconds in slots, and those with the longest average attempt."""
    busiest = sorted(types.items(), key=lambda item: (-item[1].seconds, item[0]))
    slowest = sorted(types.items(), key=lambda item: (-item[1].average_seconds, item[0]))
    return busiest[:TYPES], slowest[:TYPES]


def _add_up(works: Sequence[Work]) -> Work:
    attempts, failed, seconds, longest = zip(*works, strict=True)
    return Work(sum(attempts), sum(failed), sum(seconds), max(longest))
