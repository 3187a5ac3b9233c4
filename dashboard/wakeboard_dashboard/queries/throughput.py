"""What the statistics tell about the attempts that ended in a window: how many, how long, of which types.

Every ended attempt is in them, so nothing here reads runs or attempts. A busy day is 200,000 rows of minutes:
hours that a worker has summed are read as such, and those that cannot change any more are kept by the caller,
from one request to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, text

from wakeboard.core.states import FAILURES, sql_list
from wakeboard.reporting.hourly_rollups import HOUR
from wakeboard.reporting.statistics import bucket_seconds, percentiles
from wakeboard_dashboard.queries.hourly import Memory, Source, hourly
from wakeboard_dashboard.queries.settled import Settled
from wakeboard_dashboard.queries.steps import STEP

TYPES = 5
LARGEST_BUCKET = 63


@dataclass(frozen=True, slots=True)
class Window:
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
        Window("1h", "hour", STEP, 12, "five minutes", "15s"),
        Window("24h", "24 hours", HOUR, 24, "hour", "15s"),
        Window("7d", "7 days", HOUR, 168, "hour", "60s"),
    )
}
LONGEST = max(window.step * window.count for window in WINDOWS.values())


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
class Times:
    """How long something took, as counts by bucket of reporting.statistics, and the longest of all."""

    buckets: Mapping[int, int] = field(default_factory=dict)
    longest_seconds: float = 0.0
    # Hours that are kept are asked for the same shares at each request.
    _told: dict[tuple[float, ...], tuple[float | None, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def count(self) -> int:
        """Of how many attempts."""
        return sum(self.buckets.values())

    def at_most(self, share: float) -> float | None:
        """Return the seconds that ``share`` (0 to 1) of them did not pass, None without any.

        It is the upper end of the bucket, half a power of two: what it stands for is up to 29 % less. The
        largest bucket has no end, and no bucket reaches past the longest.
        """
        return self.at_most_each((share,))[0]

    def at_most_each(self, shares: tuple[float, ...]) -> tuple[float | None, ...]:
        """Return for each of ascending ``shares`` what ``at_most`` does, in one walk."""
        if shares not in self._told:
            self._told[shares] = tuple(self._known(found) for found in percentiles(self.buckets, shares))
        return self._told[shares]

    def _known(self, seconds: float | None) -> float | None:
        if seconds is None or seconds >= bucket_seconds(LARGEST_BUCKET):
            return None if seconds is None else self.longest_seconds
        return min(seconds, self.longest_seconds)


@dataclass(frozen=True, slots=True)
class Bar:
    """The attempts that ended in one step of a window. ``label`` is filled in by the view.

    ``good`` succeeded, ``bad`` failed, timed out or were lost. ``run_times`` are those of the good ones,
    ``waits`` (from due to started) of every attempt, cancelled and released ones too. ``types`` is None where
    the sums of the hour have them, for ``works`` to ask of all such hours at once.
    """

    start_at: datetime
    good: int = 0
    bad: int = 0
    run_times: Times = field(default_factory=Times)
    waits: Times = field(default_factory=Times)
    types: Mapping[str, Work] | None = field(default_factory=dict)
    label: str = ""

    @property
    def total(self) -> int:
        """All that succeeded or failed."""
        return self.good + self.bad


# One pass over the statistics for four questions: sums, run times, waits and types of each step.
SUMMED = text(f"""
SELECT start_at, job_type, duration_bucket, wait_bucket,
    grouping(job_type, duration_bucket, wait_bucket) AS which,
    coalesce(sum(runs), 0)::bigint AS attempts,
    coalesce(sum(runs) FILTER (WHERE is_good), 0)::bigint AS good,
    coalesce(sum(runs) FILTER (WHERE is_bad), 0)::bigint AS bad,
    coalesce(sum(duration_ms) FILTER (WHERE is_good OR is_bad), 0) / 1000 AS seconds,
    coalesce(max(duration_max_ms) FILTER (WHERE is_good), 0) / 1000 AS longest_good,
    coalesce(max(duration_max_ms) FILTER (WHERE is_good OR is_bad), 0) / 1000 AS longest,
    coalesce(max(wait_max_ms), 0) / 1000 AS longest_wait
FROM (
    SELECT *, date_bin(:step, minute, :first) AS start_at, outcome = 'succeeded' AS is_good,
        outcome IN ({sql_list(FAILURES)}) AS is_bad
    FROM (
        SELECT * FROM wakeboard.statistics_deltas WHERE minute >= :first AND minute < :until
        UNION ALL
        SELECT * FROM wakeboard.statistics_rollups WHERE minute >= :first AND minute < :until
    ) AS both_tables
) AS judged
GROUP BY start_at, GROUPING SETS ((), (job_type), (duration_bucket), (wait_bucket))
""")
# What ``which`` says: a bit for each of the three columns that the row is not grouped by.
BY_TYPE, BY_RUN_TIME, BY_WAIT, WHOLE = 0b011, 0b101, 0b110, 0b111


def bars(connection: Connection, now: datetime, window: Window, memory: Memory[Bar]) -> list[Bar]:
    """Return the steps of ``window``, oldest first, none left out; ``memory`` is that of ``hourly``."""
    starts = window.starts(now)
    if window.step == STEP:
        by_minutes = partial(_by_minutes, connection)
        known = memory.steps.read(connection, starts[0], starts[-1] + STEP, by_minutes)
        return [known.get(start) or Bar(start) for start in starts]
    return list(hourly(connection, starts, now, _SOURCE, memory, now - LONGEST).values())


_HOURS = text("""
SELECT hour, succeeded, failed, succeeded_max_ms / 1000 AS longest_good, wait_max_ms / 1000 AS longest_wait,
    duration_buckets, duration_runs, wait_buckets, wait_runs
FROM wakeboard.statistics_hours WHERE hour >= :first AND hour < :until AND summed_at IS NOT NULL
""")


def _hours(connection: Connection, first: datetime, until: datetime) -> dict[datetime, Bar]:
    """Return the bars of the hours from ``first`` to ``until`` that a worker has summed."""
    return {
        row.hour: summed_hour(row, None)
        for row in connection.execute(_HOURS, {"first": first, "until": until})
    }


def summed_hour(row: Row[Any], types: Mapping[str, Work] | None) -> Bar:
    """Return the bar that a row of summed hours makes, of one type or of all."""
    return Bar(
        row.hour,
        row.succeeded,
        row.failed,
        Times(dict(zip(row.duration_buckets, row.duration_runs, strict=True)), row.longest_good),
        Times(dict(zip(row.wait_buckets, row.wait_runs, strict=True)), row.longest_wait),
        types,
    )


def _by_minutes(
    connection: Connection, first: datetime, until: datetime, step: timedelta
) -> dict[datetime, Bar]:
    """Return the bars of the steps from ``first`` to ``until`` in which anything ended, by their minutes."""
    rows = connection.execute(SUMMED, {"step": step, "first": first, "until": until}).all()
    by_start: dict[datetime, list[Row[Any]]] = {}
    for row in rows:
        by_start.setdefault(row.start_at, []).append(row)
    return {start: _bar(start, rows) for start, rows in by_start.items()}


def _bar(start: datetime, rows: Iterable[Row[Any]]) -> Bar:
    """Return the bar that the ``rows`` of SUMMED for one step make."""
    by: dict[int, list[Row[Any]]] = {BY_TYPE: [], BY_RUN_TIME: [], BY_WAIT: [], WHOLE: []}
    for row in rows:
        by[row.which].append(row)
    (whole,) = by[WHOLE]
    return Bar(
        start,
        whole.good,
        whole.bad,
        Times({row.duration_bucket: row.good for row in by[BY_RUN_TIME] if row.good}, whole.longest_good),
        Times({row.wait_bucket: row.attempts for row in by[BY_WAIT]}, whole.longest_wait),
        {
            row.job_type: Work(row.good + row.bad, row.bad, row.seconds, row.longest)
            for row in by[BY_TYPE]
            if row.good + row.bad
        },
    )


def one_bar(start: datetime, parts: Sequence[Bar]) -> Bar:
    """Return the bar from ``start`` on that ``parts`` are together; each knows its types."""
    return Bar(
        start,
        sum(part.good for part in parts),
        sum(part.bad for part in parts),
        together(part.run_times for part in parts),
        together(part.waits for part in parts),
        _works_of(part.types or {} for part in parts),
    )


_SOURCE = Source(_hours, _by_minutes, one_bar, Bar)


def together(times: Iterable[Times]) -> Times:
    """Return all of ``times`` as one."""
    buckets: dict[int, int] = {}
    longest = 0.0
    for each in times:
        for bucket, count in each.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
        if each.longest_seconds > longest:
            longest = each.longest_seconds
    return Times(buckets, longest)


_WORKS = text("""
SELECT job_type, sum(succeeded + failed)::bigint AS attempts, sum(failed)::bigint AS failed,
    sum(duration_ms) / 1000 AS seconds, max(duration_max_ms) / 1000 AS longest
FROM wakeboard.statistics_hours_of_types
WHERE hour >= :first AND hour <= :last AND hour = ANY (:hours) AND succeeded + failed > 0
GROUP BY job_type
""")


def works(connection: Connection, found: Sequence[Bar], kept: Settled) -> dict[str, Work]:
    """Return what each type did in all of the bars ``found``, oldest first.

    ``kept`` has the answers about summed hours, from one call to the next.
    """
    parts = [bar.types for bar in found if bar.types is not None]
    if hours := [bar.start_at for bar in found if bar.types is None]:
        parts.append(kept.get(tuple(hours), lambda: _works(connection, hours)))
    return _works_of(parts)


def _works_of(parts: Iterable[Mapping[str, Work]]) -> dict[str, Work]:
    """Return what each type did in all of ``parts``."""
    by_type: defaultdict[str, list[Work]] = defaultdict(list)
    for part in parts:
        for name, work in part.items():
            by_type[name].append(work)
    return {name: _summed_up(works) for name, works in by_type.items()}


def _works(connection: Connection, hours: Sequence[datetime]) -> dict[str, Work]:
    """Return what each type did in summed ``hours``, which ascend."""
    values = {"first": hours[0], "last": hours[-1], "hours": hours}
    return {
        row.job_type: Work(row.attempts, row.failed, row.seconds, row.longest)
        for row in connection.execute(_WORKS, values)
    }


def busiest_and_slowest(
    types: Mapping[str, Work],
) -> tuple[list[tuple[str, Work]], list[tuple[str, Work]]]:
    """Return the TYPES types that held slots for longest, and those of the longest attempts on average."""
    busiest = sorted(types.items(), key=lambda one: (-one[1].seconds, one[0]))
    slowest = sorted(types.items(), key=lambda one: (-one[1].average_seconds, one[0]))
    return busiest[:TYPES], slowest[:TYPES]


def _summed_up(works: Sequence[Work]) -> Work:
    attempts, failed, seconds, longest = zip(*works, strict=True)
    return Work(sum(attempts), sum(failed), sum(seconds), max(longest))
