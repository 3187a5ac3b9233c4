"""What the page of a night asks of the statistics: what ran, when each type was busy, what was slow.

Minutes are summed, never attempts: a night of 200,000 attempts is at most as many rows as minutes, types and
outcomes make. Only the runs behind a slow type are looked up, among FEW of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from worker.halving import last_before
from worker.leases import is_stuck
from worker.nights import Ask, Row, Window
from worker.states import FAILURES, sql_list

# How far back a median is taken from, and of how many minutes of statistics at most.
BEFORE = timedelta(days=7)
MOST_ROWS = 200_000
# A median of fewer runs says nothing, and nobody minds a run that took less than this longer.
FEWEST = 3
SLOWER = 3
LEAST_SECONDS = 1.0

MOST_TYPES = 1000
LANES = 20
SLICES = 96
# A start further back is drawn from here: before every window.
LONGEST_MS = 10 * 86_400_000
SLOW_TYPES = 10
FEW = 3000
EXAMPLES = 5

_FAILED = sql_list(FAILURES)
# Deltas are the minutes that no worker has merged yet.
_BOTH = """
    SELECT minute, job_type, outcome, duration_bucket, runs, duration_ms, duration_max_ms
    FROM wakeboard.{table} WHERE minute >= :since AND minute < :until {more}"""


def _minutes(more: str = "") -> str:
    """Return the SQL of the window's statistics, each table read by its index of minutes."""
    return "\n    UNION ALL".join(
        f"({_BOTH.format(table=table, more=more)})" for table in ("statistics_rollups", "statistics_deltas")
    )


@dataclass(frozen=True, slots=True)
class Usual:
    """How long the successful attempts of one type usually took: the median in seconds, of how many."""

    runs: int
    seconds: float

    @property
    def slow_seconds(self) -> float:
        """What took longer than this was slow."""
        return max(SLOWER * self.seconds, self.seconds + LEAST_SECONDS)


@dataclass(frozen=True, slots=True)
class Ran:
    """Attempts of one type that ended in the window; ``slow``: successes over ``usual.slow_seconds``."""

    job_type: str
    attempts: int
    succeeded: int
    failed: int
    lost: int
    seconds: float
    slow: int
    slowest_seconds: float
    usual: Usual | None


class Slice(NamedTuple):
    """Attempts of one type that ended in one SLICES-th of the window: which, first start, last end.

    Start and end are seconds since the window began.
    """

    place: int
    start: float
    end: float
    attempts: int
    failed: int


_USUAL = f"""
SELECT job_type, duration_bucket, sum(runs) AS runs, sum(duration_ms) AS ms
FROM ({_minutes("AND outcome = 'succeeded' ORDER BY minute DESC LIMIT :most")}) AS before
GROUP BY job_type, duration_bucket
ORDER BY job_type, duration_bucket
"""


def usual_until(since: datetime) -> datetime:
    """Return the hour in which a window begins: what was usual is told of the time before it.

    A window of the last day begins a minute later with each minute; its medians are asked once an hour.
    """
    return since.replace(minute=0, second=0, microsecond=0)


def usual(ask: Ask, since: datetime) -> dict[str, Usual]:
    """Return by type what was usual in the BEFORE days before a window; types of fewer runs are left out.

    The median is the mean of the half power of two that it lies in.
    """
    before = usual_until(since)
    found = ask(_USUAL, {"since": before - BEFORE, "until": before, "most": MOST_ROWS})
    by_type: dict[str, list[Row]] = {}
    for row in found:
        by_type.setdefault(row["job_type"], []).append(row)
    return {
        name: Usual(int(total), _median(rows, total))
        for name, rows in by_type.items()
        if (total := sum(row["runs"] for row in rows)) >= FEWEST
    }


def _median(rows: Sequence[Row], total: Any) -> float:
    """Return the median in seconds of ``rows``, one per bucket, shortest first."""
    reached = 0
    for row in rows:
        reached += row["runs"]
        if 2 * reached >= total:
            return float(row["ms"] / float(row["runs"])) / 1000
    raise AssertionError("no bucket holds half of the runs")


_RAN = f"""
SELECT ended.job_type,
    sum(runs) AS attempts,
    coalesce(sum(runs) FILTER (WHERE outcome = 'succeeded'), 0) AS succeeded,
    coalesce(sum(runs) FILTER (WHERE outcome IN ({_FAILED})), 0) AS failed,
    coalesce(sum(runs) FILTER (WHERE outcome = 'lost'), 0) AS lost,
    sum(duration_ms) / 1000 AS seconds,
    coalesce(sum(runs) FILTER (WHERE outcome = 'succeeded' AND duration_ms > limits.ms * runs), 0) AS slow,
    coalesce(max(duration_max_ms) FILTER (WHERE outcome = 'succeeded'), 0) / 1000 AS slowest_seconds
FROM ({_minutes()}) AS ended
LEFT JOIN unnest(CAST(:types AS text[]), CAST(:limits AS float8[])) AS limits (job_type, ms)
    ON limits.job_type = ended.job_type
GROUP BY ended.job_type
ORDER BY failed DESC, attempts DESC, ended.job_type
LIMIT {MOST_TYPES}
"""


def ran(ask: Ask, window: Window, usually: Mapping[str, Usual]) -> list[Ran]:
    """Return what ended in ``window`` by type, those with failures first, at most MOST_TYPES."""
    values = {
        "since": window.since,
        "until": window.until,
        "types": list(usually),
        "limits": [each.slow_seconds * 1000 for each in usually.values()],
    }
    return [
        Ran(
            row["job_type"],
            int(row["attempts"]),
            int(row["succeeded"]),
            int(row["failed"]),
            int(row["lost"]),
            row["seconds"],
            int(row["slow"]),
            row["slowest_seconds"],
            usually.get(row["job_type"]),
        )
        for row in ask(_RAN, values)
    ]


# A row for each type, with an array for each column of its slices: those may be two thousand.
_SLICES = f"""
SELECT job_type, array_agg(place) AS places, array_agg(first) AS starts, array_agg(last) AS ends,
    array_agg(attempts) AS attempts, array_agg(failed) AS failed
FROM (
    SELECT job_type, floor(date_part('epoch', minute - :since) / :seconds)::int AS place,
        min(date_part('epoch', minute - :since) - least(duration_max_ms, {LONGEST_MS}) / 1000) AS first,
        max(date_part('epoch', minute - :since)) + 60 AS last, sum(runs)::bigint AS attempts,
        coalesce(sum(runs) FILTER (WHERE outcome IN ({_FAILED})), 0)::bigint AS failed
    FROM ({_minutes()}) AS ended
    WHERE job_type = ANY(CAST(:types AS text[]))
    GROUP BY job_type, place
) AS slices
GROUP BY job_type
"""


def slices(ask: Ask, window: Window, types: Sequence[str]) -> dict[str, list[Slice]]:
    """Return when each of ``types`` was busy; starts may lie before the window."""
    seconds = (window.until - window.since).total_seconds() / SLICES
    values = {"since": window.since, "until": window.until, "types": list(types), "seconds": seconds}
    columns = ("places", "starts", "ends", "attempts", "failed")
    return {
        row["job_type"]: list(map(Slice, *(row[name] for name in columns))) for row in ask(_SLICES, values)
    }


_LAST_BEFORE = last_before("job_runs", "created_at")

# With "=" the planner may walk the primary key back; the range and the order are those of job_runs_by_type.
_SLOW = """
SELECT found.*
FROM unnest(CAST(:types AS text[]), CAST(:limits AS float8[])) WITH ORDINALITY AS t (job_type, seconds, place)
CROSS JOIN LATERAL (
    SELECT newest.id, newest.job_type, newest.started_at, newest.finished_at,
        extract(epoch FROM newest.finished_at - newest.started_at)::float8 AS seconds
    FROM (
        SELECT r.id, r.job_type, r.status, r.started_at, r.finished_at FROM wakeboard.job_runs AS r
        WHERE r.job_type BETWEEN t.job_type AND t.job_type AND r.id <= CAST(:last AS bigint)
        ORDER BY r.job_type DESC, r.id DESC
        LIMIT :few
    ) AS newest
    WHERE newest.status = 'succeeded' AND newest.finished_at >= :since AND newest.finished_at < :until
        AND extract(epoch FROM newest.finished_at - newest.started_at) > t.seconds
    ORDER BY newest.finished_at - newest.started_at DESC, newest.id DESC
    LIMIT :examples
) AS found
ORDER BY t.place, found.seconds DESC, found.id DESC
"""


def slow_runs(ask: Ask, window: Window, slow: Sequence[Ran]) -> list[Row]:
    """Return the slowest runs of each of ``slow``: id, job_type, started_at, finished_at, seconds.

    At most EXAMPLES of each, found among the FEW newest that had been made when the window ended.
    """
    limits = {each.job_type: each.usual.slow_seconds for each in slow if each.usual}
    if not limits:
        return []
    last = ask(_LAST_BEFORE, {"moment": window.until})[0]["low"]
    values = {
        "types": list(limits),
        "limits": list(limits.values()),
        "last": last,
        "since": window.since,
        "until": window.until,
        "few": FEW,
        "examples": EXAMPLES,
    }
    return ask(_SLOW, values)


_RUNNING = f"""
SELECT under_way.job_type, min(under_way.started_at) AS first_at, count(*) AS runs,
    count(*) FILTER (WHERE under_way.is_stuck) AS stuck
FROM (
    SELECT r.job_type, r.started_at, {is_stuck("r")} AS is_stuck FROM wakeboard.job_runs AS r
    WHERE r.status = 'running' ORDER BY r.job_type, r.locked_until LIMIT :most
) AS under_way
GROUP BY under_way.job_type
ORDER BY min(under_way.started_at)
"""


def running(ask: Ask) -> list[Row]:
    """Return what runs now by type, the longest running first: job_type, first_at, runs, stuck."""
    return ask(_RUNNING, {"most": MOST_TYPES * 10})
