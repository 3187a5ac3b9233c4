"""What each job type did in a time window: attempts, busy times, slow runs, what runs now.

Attempts and busy times come from the statistics: from the hourly rollups where an hour is summed, else from
its minutes. Slow runs are looked up among the EXAMPLE_RUNS newest runs of a type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.core.leases import is_stuck
from wakeboard.core.states import FAILURES, sql_list
from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.baselines import Baseline
from wakeboard.reporting.hourly_rollups import SLICE_MINUTES, WINDOW_HOURS, first_minute, step_start
from wakeboard.reporting.ids_by_time import find_last_id_before

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

MAX_TYPES = 1000
# Of the page: types on the line of time, and slow types with examples.
MAX_LANES = 20
MAX_SLOW_TYPES = 10
MAX_SLICES = 96
# Each divides an hour evenly. Steps of SLICE_MINUTES or more consist of the slices that hourly rollups keep.
_STEPS = [timedelta(minutes=each) for each in (1, SLICE_MINUTES, 10, 15, 20, 30, 60)]
# Slow runs are looked up among so many of a type; at most so many of them are returned.
EXAMPLE_RUNS = 3000
MAX_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class TypeAttempts:
    """Attempts of one type that ended in the window; ``slow``: successes over ``baseline.slow_seconds``."""

    job_type: str
    attempts: int
    succeeded: int
    failed: int
    lost: int
    seconds: float
    slow: int
    slowest_seconds: float
    baseline: Baseline | None = None


class Stretch(NamedTuple):
    """A stretch of time in which attempts of one type ended: how many, and how many of them failed.

    ``start`` and ``end`` are seconds since the window began, negative before it. A start is known to the
    minute: exact for scheduled runs, which begin with one, and up to a minute late for others.
    """

    start: float
    end: float
    attempts: int
    failed: int


class BusyTime(NamedTuple):
    """When a type was busy, from first starts to last ends, and the slices in which attempts failed.

    Both are in order. Stretches less than a slice apart are joined.
    """

    stretches: Sequence[Stretch]
    failing: Sequence[Stretch]


def join_stretches(stretches: Iterable[Stretch], pause: float) -> list[Stretch]:
    """Return ``stretches`` in order; those less than ``pause`` seconds apart become one."""
    result: list[Stretch] = []
    for stretch in sorted(stretches):
        if result and stretch.start - result[-1].end < pause:
            last = result[-1]
            result[-1] = Stretch(
                last.start,
                max(last.end, stretch.end),
                last.attempts + stretch.attempts,
                last.failed + stretch.failed,
            )
        else:
            result.append(stretch)
    return result


def slice_length(window: TimeWindow) -> timedelta:
    """Return the length of at most MAX_SLICES slices of ``window``: a step that divides an hour.

    Slices begin at the same moments in each window, so that bars stay in place while a window moves on. In
    windows of over MAX_SLICES hours they are days, however many.
    """
    shortest = (window.until - window.since) / MAX_SLICES
    return next((step for step in _STEPS if step >= shortest), timedelta(days=1))


def _window_parts(minutes: str, hours: str, *, only: str = "") -> str:
    """Return the SQL of two CTEs: ``in_hours`` of the window's summed hours, ``in_minutes`` of the others.

    ``minutes`` and ``hours`` are the columns, ``only`` is a condition on the types. An hour that is partly
    outside the window is read by its minutes; so are deltas, which no worker has merged yet.
    """
    tables = " UNION ALL ".join(
        f"""
        SELECT {minutes} FROM wakeboard.{table}
        WHERE minute >= hours.since AND minute < hours.until {only}"""
        for table in ("statistics_rollups", "statistics_deltas")
    )
    return f"""
{WINDOW_HOURS}, in_hours AS MATERIALIZED (
    SELECT hours.since, part.* FROM hours CROSS JOIN LATERAL (
        SELECT {hours} FROM wakeboard.statistics_hours_of_types AS summed
        WHERE summed.hour = hours.since AND summed.hour >= %(since)s AND summed.hour < %(until)s {only}
    ) AS part
    WHERE hours.is_summed
), in_minutes AS MATERIALIZED (
    SELECT hours.since, part.* FROM hours CROSS JOIN LATERAL ({tables}
    ) AS part
    WHERE NOT hours.is_summed
)"""


_IS_BAD = f"outcome IN ({sql_list(FAILURES)})"
# Slow attempts are counted by the mean of those in the same bucket within an hour.
_ATTEMPTS = f"""
WITH {
    _window_parts(
        "job_type, outcome, duration_bucket, runs, duration_ms, duration_max_ms",
        "job_type, attempts, succeeded, failed, lost, busy_ms, succeeded_max_ms, duration_runs,"
        " duration_bucket_ms",
    )
}, slow AS (
    SELECT job_type, sum(runs) AS slow
    FROM (
        SELECT job_type, unnest(duration_runs) AS runs, unnest(duration_bucket_ms) AS ms FROM in_hours
        UNION ALL
        SELECT job_type, sum(runs), sum(duration_ms) FROM in_minutes WHERE outcome = 'succeeded'
        GROUP BY since, job_type, duration_bucket
    ) AS bucket
    JOIN unnest(CAST(%(types)s AS text[]), CAST(%(limits)s AS float8[])) AS limits (job_type, ms)
        USING (job_type)
    WHERE bucket.ms > limits.ms * runs
    GROUP BY job_type
)
SELECT job_type, sum(attempts)::bigint AS attempts, sum(succeeded)::bigint AS succeeded,
    sum(failed)::bigint AS failed, sum(lost)::bigint AS lost, sum(ms) / 1000 AS seconds,
    coalesce(max(slow.slow), 0)::bigint AS slow, coalesce(max(slowest_ms), 0) / 1000 AS slowest_seconds
FROM (
    SELECT job_type, attempts, succeeded, failed, lost, busy_ms AS ms, succeeded_max_ms AS slowest_ms
    FROM in_hours
    UNION ALL
    SELECT job_type, sum(runs), coalesce(sum(runs) FILTER (WHERE outcome = 'succeeded'), 0),
        coalesce(sum(runs) FILTER (WHERE {_IS_BAD}), 0),
        coalesce(sum(runs) FILTER (WHERE outcome = 'lost'), 0), sum(duration_ms),
        max(duration_max_ms) FILTER (WHERE outcome = 'succeeded')
    FROM in_minutes GROUP BY job_type
) AS parts LEFT JOIN slow USING (job_type)
GROUP BY job_type
ORDER BY failed DESC, attempts DESC, job_type LIMIT %(most)s
"""


def find_attempts(
    connection: Connection, window: TimeWindow, baselines: Mapping[str, Baseline]
) -> list[TypeAttempts]:
    """Return the attempts that ended in ``window`` by type, those with failures first, at most MAX_TYPES."""
    values = {
        "since": window.since,
        "until": window.until,
        "by_hours": True,
        "types": list(baselines),
        "limits": [each.slow_seconds * 1000 for each in baselines.values()],
        "most": MAX_TYPES,
    }
    return [
        replace(each, baseline=baselines.get(each.job_type))
        for each in read_all(connection, _ATTEMPTS, TypeAttempts, values)
    ]


# Times are seconds since the window began.
_BUSY_SLICES = f"""
WITH {
    _window_parts(
        "job_type, outcome, minute, runs, duration_max_ms",
        "job_type, slice_minutes, slice_starts, slice_ends, slice_attempts, slice_failed",
        only="AND job_type = ANY (CAST(%(types)s AS text[]))",
    )
}
SELECT job_type, date_part('epoch', begin_at - %(since)s) AS begin, min(start) AS start, max(till) AS till,
    sum(attempts)::bigint AS attempts, sum(failed)::bigint AS failed
FROM (
    SELECT job_type, {step_start("%(step)s", "since + make_interval(mins => slice.minute)")} AS begin_at,
        date_part('epoch', since - %(since)s) + 60 * slice.start AS start,
        date_part('epoch', since - %(since)s) + 60 * slice.till AS till, slice.attempts, slice.failed
    FROM (
        SELECT job_type, since, unnest(slice_minutes) AS minute, unnest(slice_starts) AS start,
            unnest(slice_ends) AS till, unnest(slice_attempts) AS attempts, unnest(slice_failed) AS failed
        FROM in_hours
    ) AS slice
    UNION ALL
    SELECT job_type, {step_start("%(step)s", "minute")},
        60 * ({first_minute("date_part('epoch', minute - %(since)s) / 60")}),
        date_part('epoch', minute - %(since)s) + 60, runs, CASE WHEN {_IS_BAD} THEN runs ELSE 0 END
    FROM in_minutes
) AS ended
GROUP BY job_type, begin_at
ORDER BY job_type, begin_at
"""


class _BusySlice(NamedTuple):
    """A slice and the attempts that ended in it, which ran from ``start`` to ``till``."""

    job_type: str
    begin: float
    start: float
    till: float
    attempts: int
    failed: int


def find_busy_times(connection: Connection, window: TimeWindow, types: Sequence[str]) -> dict[str, BusyTime]:
    """Return when each of ``types`` was busy in ``window``, in seconds since it began."""
    step = slice_length(window)
    values = {
        "since": window.since,
        "until": window.until,
        "by_hours": step >= timedelta(minutes=SLICE_MINUTES),
        "types": list(types),
        "step": step,
    }
    length = step.total_seconds()
    stretches: dict[str, list[Stretch]] = {name: [] for name in types}
    failing: dict[str, list[Stretch]] = {name: [] for name in types}
    for row in read_all(connection, _BUSY_SLICES, _BusySlice, values) if types else ():
        stretches[row.job_type].append(Stretch(row.start, row.till, row.attempts, row.failed))
        if row.failed:
            whole_slice = Stretch(row.begin, row.begin + length, row.attempts, row.failed)
            failing[row.job_type].append(whole_slice)
    return {
        name: BusyTime(join_stretches(stretches[name], length), join_stretches(failing[name], length))
        for name in types
    }


# With "=" the planner may walk the primary key back. Range, order and "not running" are those of the index
# job_runs_listed_by_type.
_SLOW_RUNS = """
SELECT slow.*
FROM unnest(CAST(%(types)s AS text[]), CAST(%(limits)s AS float8[])) WITH ORDINALITY
    AS t (job_type, seconds, place)
CROSS JOIN LATERAL (
    SELECT newest.id, newest.job_type, newest.started_at, newest.finished_at,
        extract(epoch FROM newest.finished_at - newest.started_at)::float8 AS seconds
    FROM (
        SELECT r.id, r.job_type, r.status, r.started_at, r.finished_at FROM wakeboard.job_runs AS r
        WHERE r.job_type BETWEEN t.job_type AND t.job_type AND r.id <= CAST(%(last)s AS bigint)
            AND r.status <> 'running'
        ORDER BY r.job_type DESC, r.id DESC
        LIMIT %(few)s
    ) AS newest
    WHERE newest.status = 'succeeded' AND newest.finished_at >= %(since)s AND newest.finished_at < %(until)s
        AND extract(epoch FROM newest.finished_at - newest.started_at) > t.seconds
    ORDER BY newest.finished_at - newest.started_at DESC, newest.id DESC
    LIMIT %(examples)s
) AS slow
ORDER BY t.place, slow.seconds DESC, slow.id DESC
"""


class SlowRun(NamedTuple):
    """A run that took longer than the ``slow_seconds`` of its type's baseline."""

    id: int
    job_type: str
    started_at: datetime
    finished_at: datetime
    seconds: float


def find_slow_runs(connection: Connection, window: TimeWindow, slow: Sequence[TypeAttempts]) -> list[SlowRun]:
    """Return the slowest runs of each of ``slow``, at most MAX_EXAMPLES of each.

    They are looked up among the EXAMPLE_RUNS newest that had been made when the window ended.
    """
    limits = {each.job_type: each.baseline.slow_seconds for each in slow if each.baseline}
    if not limits:
        return []
    values = {
        "types": list(limits),
        "limits": list(limits.values()),
        "last": find_last_id_before(connection, "job_runs", "created_at", window.until),
        "since": window.since,
        "until": window.until,
        "few": EXAMPLE_RUNS,
        "examples": MAX_EXAMPLES,
    }
    return read_all(connection, _SLOW_RUNS, SlowRun, values)


_RUNNING = f"""
SELECT under_way.job_type, min(under_way.started_at) AS first_at, count(*) AS runs,
    count(*) FILTER (WHERE under_way.is_stuck) AS stuck
FROM (
    SELECT r.job_type, r.started_at, {is_stuck("r")} AS is_stuck FROM wakeboard.job_runs AS r
    WHERE r.status = 'running' ORDER BY r.job_type, r.locked_until LIMIT %(most)s
) AS under_way
GROUP BY under_way.job_type
ORDER BY min(under_way.started_at)
"""


class RunningType(NamedTuple):
    """How many runs of one type run now, since when the first of them, and how many are stuck."""

    job_type: str
    first_at: datetime
    runs: int
    stuck: int


def find_running(connection: Connection) -> list[RunningType]:
    """Return what runs now by type, the longest running first."""
    return read_all(connection, _RUNNING, RunningType, {"most": MAX_TYPES * 10})
