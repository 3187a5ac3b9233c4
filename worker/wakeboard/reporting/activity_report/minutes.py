"""What the page of a night asks of the statistics: what ran, when each type was busy, what was slow.

Hours that a worker has summed are read as such, the others by their minutes; attempts never. Only the runs
behind a slow type are looked up, among FEW of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.core.leases import is_stuck
from wakeboard.core.states import FAILURES, sql_list
from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.stretches import BusyTime, Stretch, joined
from wakeboard.reporting.activity_report.usual import Baseline
from wakeboard.reporting.hourly_rollups import BEGINNING, SLICE_MINUTES, first_minute, hour_of
from wakeboard.reporting.ids_by_time import LastBefore, last_before

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

MOST_TYPES = 1000
LANES = 20
SLICES = 96
# What parts an hour evenly. From those of SLICE_MINUTES on they are made of the slices that hours keep.
_STEPS = [timedelta(minutes=each) for each in (1, SLICE_MINUTES, 10, 15, 20, 30, 60)]
SLOW_TYPES = 10
FEW = 3000
EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class TypeAttempts:
    """Attempts of one type that ended in the window; ``slow``: successes over ``usual.slow_seconds``."""

    job_type: str
    attempts: int
    succeeded: int
    failed: int
    lost: int
    seconds: float
    slow: int
    slowest_seconds: float
    usual: Baseline | None = None


def slice_length(window: TimeWindow) -> timedelta:
    """Return how long slices are: a step that parts an hour evenly, at least a SLICES-th of ``window``.

    They begin at the same moments in each window, so that bars stay where they are while a window moves on.
    Of windows of over SLICES hours they are days, however many.
    """
    least = (window.until - window.since) / SLICES
    return next((step for step in _STEPS if step >= least), timedelta(days=1))


def _hours(minutes: str, hours: str, *, only: str = "") -> str:
    """Return the SQL of the window's hours: ``in_hours`` of those that are summed, ``in_minutes`` of others.

    An hour of which a part is asked for is read by its minutes; so are deltas, which no worker has merged
    yet. ``minutes`` and ``hours`` are the columns, ``only`` a condition on the types.
    """
    tables = " UNION ALL ".join(
        f"""
        SELECT {minutes} FROM wakeboard.{table}
        WHERE minute >= asked.since AND minute < asked.until {only}"""
        for table in ("statistics_rollups", "statistics_deltas")
    )
    return f"""
asked AS MATERIALIZED (
    SELECT greatest(hour, %(since)s) AS since, least(hour + interval '1 hour', %(until)s) AS until,
        %(by_hours)s AND EXISTS (
            SELECT FROM wakeboard.statistics_hours AS known WHERE known.hour = each.hour
                AND known.summed_at IS NOT NULL
                AND each.hour >= %(since)s AND each.hour + interval '1 hour' <= %(until)s
        ) AS is_summed
    FROM generate_series({hour_of("%(since)s")}, %(until)s - interval '1 microsecond', '1 hour')
        AS each (hour)
), in_hours AS MATERIALIZED (
    SELECT asked.since, told.* FROM asked CROSS JOIN LATERAL (
        SELECT {hours} FROM wakeboard.statistics_hours_of_types AS summed
        WHERE summed.hour = asked.since AND summed.hour >= %(since)s AND summed.hour < %(until)s {only}
    ) AS told
    WHERE asked.is_summed
), in_minutes AS MATERIALIZED (
    SELECT asked.since, told.* FROM asked CROSS JOIN LATERAL ({tables}
    ) AS told
    WHERE NOT asked.is_summed
)"""


_IS_BAD = f"outcome IN ({sql_list(FAILURES)})"
# What is slow is told by the mean of those that took about as long within an hour.
_RAN = f"""
WITH {
    _hours(
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
    ) AS alike
    JOIN unnest(CAST(%(types)s AS text[]), CAST(%(limits)s AS float8[])) AS limits (job_type, ms)
        USING (job_type)
    WHERE alike.ms > limits.ms * runs
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


def ran(connection: Connection, window: TimeWindow, usually: Mapping[str, Baseline]) -> list[TypeAttempts]:
    """Return what ended in ``window`` by type, those with failures first, at most MOST_TYPES."""
    values = {
        "since": window.since,
        "until": window.until,
        "by_hours": True,
        "types": list(usually),
        "limits": [each.slow_seconds * 1000 for each in usually.values()],
        "most": MOST_TYPES,
    }
    return [
        replace(each, usual=usually.get(each.job_type))
        for each in read_all(connection, _RAN, TypeAttempts, values)
    ]


# Seconds since the window began.
_BUSY = f"""
WITH {
    _hours(
        "job_type, outcome, minute, runs, duration_max_ms",
        "job_type, slice_minutes, slice_starts, slice_ends, slice_attempts, slice_failed",
        only="AND job_type = ANY (CAST(%(types)s AS text[]))",
    )
}
SELECT job_type, date_part('epoch', begin_at - %(since)s) AS begin, min(start) AS start, max(till) AS till,
    sum(attempts)::bigint AS attempts, sum(failed)::bigint AS failed
FROM (
    SELECT job_type, date_bin(%(step)s, since + make_interval(mins => slice.minute), TIMESTAMPTZ '{
    BEGINNING
}')
            AS begin_at,
        date_part('epoch', since - %(since)s) + 60 * slice.start AS start,
        date_part('epoch', since - %(since)s) + 60 * slice.till AS till, slice.attempts, slice.failed
    FROM (
        SELECT job_type, since, unnest(slice_minutes) AS minute, unnest(slice_starts) AS start,
            unnest(slice_ends) AS till, unnest(slice_attempts) AS attempts, unnest(slice_failed) AS failed
        FROM in_hours
    ) AS slice
    UNION ALL
    SELECT job_type, date_bin(%(step)s, minute, TIMESTAMPTZ '{BEGINNING}'),
        60 * ({first_minute("date_part('epoch', minute - %(since)s) / 60")}),
        date_part('epoch', minute - %(since)s) + 60, runs, CASE WHEN {_IS_BAD} THEN runs ELSE 0 END
    FROM in_minutes
) AS ended
GROUP BY job_type, begin_at
ORDER BY job_type, begin_at
"""


class _Ended(NamedTuple):
    """One row of _BUSY: what ended in the slice that begins ``begin``; it ran from ``start`` to ``till``."""

    job_type: str
    begin: float
    start: float
    till: float
    attempts: int
    failed: int


def busy(connection: Connection, window: TimeWindow, types: Sequence[str]) -> dict[str, BusyTime]:
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
    for row in read_all(connection, _BUSY, _Ended, values) if types else ():
        stretches[row.job_type].append(Stretch(row.start, row.till, row.attempts, row.failed))
        if row.failed:
            ended = Stretch(row.begin, row.begin + length, row.attempts, row.failed)
            failing[row.job_type].append(ended)
    return {name: BusyTime(joined(stretches[name], length), joined(failing[name], length)) for name in types}


_LAST_BEFORE = last_before("job_runs", "created_at", "%(moment)s")

# With "=" the planner may walk the primary key back; the range, the order and that none of them runs are
# those of job_runs_listed_by_type.
_SLOW = """
SELECT found.*
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
) AS found
ORDER BY t.place, found.seconds DESC, found.id DESC
"""


class SlowRun(NamedTuple):
    """A run that took far longer than runs of its type usually take."""

    id: int
    job_type: str
    started_at: datetime
    finished_at: datetime
    seconds: float


def slow_runs(connection: Connection, window: TimeWindow, slow: Sequence[TypeAttempts]) -> list[SlowRun]:
    """Return the slowest runs of each of ``slow``.

    At most EXAMPLES of each, found among the FEW newest that had been made when the window ended.
    """
    limits = {each.job_type: each.usual.slow_seconds for each in slow if each.usual}
    if not limits:
        return []
    last = read_all(connection, _LAST_BEFORE, LastBefore, {"moment": window.until})[0].low
    values = {
        "types": list(limits),
        "limits": list(limits.values()),
        "last": last,
        "since": window.since,
        "until": window.until,
        "few": FEW,
        "examples": EXAMPLES,
    }
    return read_all(connection, _SLOW, SlowRun, values)


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


class Running(NamedTuple):
    """How many runs of one type run now, since when the first of them, and how many are stuck."""

    job_type: str
    first_at: datetime
    runs: int
    stuck: int


def running(connection: Connection) -> list[Running]:
    """Return what runs now by type, the longest running first."""
    return read_all(connection, _RUNNING, Running, {"most": MOST_TYPES * 10})
