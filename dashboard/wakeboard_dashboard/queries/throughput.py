"""What the statistics tell about the attempts that ended in a window: how many, how long, of which types.

Every ended attempt is in them, so nothing here reads runs or attempts. A busy day is 200,000 rows of minutes:
hours that a worker has summed are read as such, the others, one or two, by their minutes.
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

TYPES = 5
STEP = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class ChartWindow:
    """So many ``count`` steps of the clock, the last of which is the current one."""

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
    """What one type did: ended attempts, how many of them failed, seconds in slots, the longest of them."""

    attempts: int = 0
    failed: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0

    @property
    def average_seconds(self) -> float:
        """Seconds of one attempt, on the average."""
        return self.seconds / self.attempts if self.attempts else 0.0


@dataclass(frozen=True, slots=True)
class WindowBar:
    """The attempts that ended in one step of a window. ``label`` is filled in by the view.

    ``good`` succeeded, ``bad`` failed, timed out or were lost. ``run_times`` are those of the good ones,
    ``waits`` (from due to started) of every attempt, cancelled and released ones too. ``types`` is None where
    the sums of the hour have them, for ``works`` to ask of all such hours at once.
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


def _by_minutes(columns: str, sets: str, narrowed: str = "") -> TextClause:
    """Return the statement that sums the minutes of the steps that begin at :starts, each of :length.

    Each step is summed by itself: a whole day at once would be sorted on disk.
    """
    return text(f"""
SELECT step.start_at, told.*
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
    ) AS judged
    GROUP BY GROUPING SETS ({sets})
) AS told
""")


# One pass answers four questions: sums, types, run times and waits of each step.
MINUTES = _by_minutes(
    "job_type, duration_bucket, wait_bucket, grouping(job_type, duration_bucket, wait_bucket) AS which",
    "(), (job_type), (duration_bucket), (wait_bucket)",
)
# What ``which`` says: a bit for each of the three columns that the row is not grouped by.
BY_TYPE, BY_RUN_TIME, BY_WAIT, WHOLE = 0b011, 0b101, 0b110, 0b111
_HOURS = text("""
SELECT hour, succeeded, failed, succeeded_max_ms / 1000 AS longest_good, wait_max_ms / 1000 AS longest_wait,
    duration_buckets, duration_runs, wait_buckets, wait_runs
FROM wakeboard.statistics_hours WHERE hour = ANY (CAST(:hours AS timestamptz[])) AND summed_at IS NOT NULL
""")


def read_bars(connection: Connection, now: datetime, window: ChartWindow) -> list[WindowBar]:
    """Return the steps of ``window``, oldest first, none left out."""
    starts = window.starts(now)
    found: dict[datetime, WindowBar] = {}
    if window.step == HOUR:
        found = {row.hour: _summed_hour(row, None) for row in connection.execute(_HOURS, {"hours": starts})}
    others = [start for start in starts if start not in found]
    rows: dict[datetime, list[Row[Any]]] = {}
    for row in connection.execute(MINUTES, {"starts": others, "length": window.step}):
        rows.setdefault(row.start_at, []).append(row)
    return [found[start] if start in found else _bar(start, rows[start]) for start in starts]


def _summed_hour(row: Row[Any], types: Mapping[str, Work] | None) -> WindowBar:
    """Return the bar that a row of summed hours makes, of one type or of all."""
    return WindowBar(
        row.hour,
        row.succeeded,
        row.failed,
        DurationHistogram(dict(zip(row.duration_buckets, row.duration_runs, strict=True)), row.longest_good),
        DurationHistogram(dict(zip(row.wait_buckets, row.wait_runs, strict=True)), row.longest_wait),
        types,
    )


def _bar(start: datetime, rows: Iterable[Row[Any]]) -> WindowBar:
    """Return the bar that the ``rows`` of MINUTES for one step make."""
    by: dict[int, list[Row[Any]]] = {BY_TYPE: [], BY_RUN_TIME: [], BY_WAIT: [], WHOLE: []}
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
SELECT known.hour, told.job_type, told.succeeded, told.failed, told.succeeded_max_ms / 1000 AS longest_good,
    told.wait_max_ms / 1000 AS longest_wait, told.duration_buckets, told.duration_runs, told.wait_buckets,
    told.wait_runs
FROM wakeboard.statistics_hours AS known
LEFT JOIN wakeboard.statistics_hours_of_types AS told
    ON told.hour = known.hour AND told.hour >= :first AND told.job_type = :type
WHERE known.hour = ANY (CAST(:hours AS timestamptz[])) AND known.summed_at IS NOT NULL
""")
_MINUTES_OF_TYPE = _by_minutes(
    "duration_bucket, wait_bucket", "(duration_bucket), (wait_bucket)", "AND job_type = :type"
)


def read_last_day(connection: Connection, now: datetime, job_type: str) -> list[WindowBar]:
    """Return the bars of a type by the hours of DAY, oldest first, none left out."""
    starts = DAY.starts(now)
    found: dict[datetime, WindowBar] = {}
    for row in connection.execute(_HOURS_OF_TYPE, {"hours": starts, "first": starts[0], "type": job_type}):
        found[row.hour] = WindowBar(row.hour) if row.job_type is None else _summed_hour(row, {})
    rows: dict[datetime, list[Row[Any]]] = {}
    others = [start for start in starts if start not in found]
    values = {"starts": others, "length": HOUR, "type": job_type}
    for row in connection.execute(_MINUTES_OF_TYPE, values):
        rows.setdefault(row.start_at, []).append(row)
    found |= {start: _bar_of_type(start, parts) for start, parts in rows.items()}
    return [found.get(start) or WindowBar(start) for start in starts]


def _bar_of_type(start: datetime, rows: Sequence[Row[Any]]) -> WindowBar:
    """Return the bar that the rows of _MINUTES_OF_TYPE for one hour make."""
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
        SELECT FROM wakeboard.statistics_hours AS known
        WHERE known.hour = each.hour AND known.summed_at IS NOT NULL
    ) AS is_summed
    FROM unnest(CAST(:starts AS timestamptz[])) AS each (hour)
), in_hours AS MATERIALIZED (
    SELECT step.hour, summed.*
    FROM step CROSS JOIN LATERAL (
        SELECT job_type, succeeded AS good, failed AS bad, succeeded_max_ms AS longest_ms, duration_buckets,
            duration_runs
        FROM wakeboard.statistics_hours_of_types AS told
        WHERE told.hour = step.hour AND told.hour >= :first AND told.job_type = ANY (CAST(:types AS text[]))
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
        ) AS told
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
    ) AS told
    GROUP BY job_type
) AS counts LEFT JOIN (
    SELECT job_type, array_agg(bucket) AS buckets, array_agg(runs) AS runs
    FROM (
        SELECT job_type, bucket, sum(runs)::bigint AS runs
        FROM (
            SELECT job_type, unnest(duration_buckets) AS bucket, unnest(duration_runs) AS runs FROM in_hours
            UNION ALL
            SELECT job_type, duration_bucket, good FROM in_minutes WHERE good > 0
        ) AS told
        GROUP BY job_type, bucket
    ) AS summed
    GROUP BY job_type
) AS times USING (job_type)
""")


def read_days(connection: Connection, now: datetime, types: Collection[str]) -> dict[str, Day]:
    """Return how DAY went for each of ``types``, by the hour; PostgreSQL puts the hours together."""
    starts = DAY.starts(now)
    found = {}
    for row in connection.execute(_DAYS, {"starts": starts, "first": starts[0], "types": list(types)}):
        hours = {hour.start_at: hour for hour in map(Hour, row.hours, row.good, row.bad)}
        times = DurationHistogram(dict(zip(row.buckets or (), row.runs or (), strict=True)), row.longest)
        found[row.job_type] = Day([hours.get(start) or Hour(start) for start in starts], times)
    nothing = Day([Hour(start) for start in starts], DurationHistogram())
    return {name: found.get(name, nothing) for name in types}


_WORKS = text("""
SELECT job_type, sum(succeeded + failed)::bigint AS attempts, sum(failed)::bigint AS failed,
    sum(duration_ms) / 1000 AS seconds, max(duration_max_ms) / 1000 AS longest
FROM wakeboard.statistics_hours_of_types
WHERE hour >= :first AND hour <= :last AND hour = ANY (:hours) AND succeeded + failed > 0
GROUP BY job_type
""")


def sum_work(connection: Connection, found: Sequence[WindowBar]) -> dict[str, Work]:
    """Return what each type did in all of the bars ``found``, oldest first."""
    by_type: defaultdict[str, list[Work]] = defaultdict(list)
    for bar in found:
        for name, work in (bar.types or {}).items():
            by_type[name].append(work)
    if hours := [bar.start_at for bar in found if bar.types is None]:
        for row in connection.execute(_WORKS, {"first": hours[0], "last": hours[-1], "hours": hours}):
            by_type[row.job_type].append(Work(row.attempts, row.failed, row.seconds, row.longest))
    return {name: _summed_up(works) for name, works in by_type.items()}


def rank_types(
    types: Mapping[str, Work],
) -> tuple[list[tuple[str, Work]], list[tuple[str, Work]]]:
    """Return the TYPES types that held slots for longest, and those of the longest attempts on average."""
    busiest = sorted(types.items(), key=lambda one: (-one[1].seconds, one[0]))
    slowest = sorted(types.items(), key=lambda one: (-one[1].average_seconds, one[0]))
    return busiest[:TYPES], slowest[:TYPES]


def _summed_up(works: Sequence[Work]) -> Work:
    attempts, failed, seconds, longest = zip(*works, strict=True)
    return Work(sum(attempts), sum(failed), sum(seconds), max(longest))
