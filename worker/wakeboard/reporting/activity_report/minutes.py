"""What the page of a night asks of the statistics: what ran, when each type was busy, what was slow.

Minutes are summed, never attempts: a night of 200,000 attempts is at most as many rows as minutes, types and
outcomes make. Only the runs behind a slow type are looked up, among FEW of each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from wakeboard.core.leases import is_stuck
from wakeboard.core.states import FAILURES, sql_list
from wakeboard.reporting.activity_report import Ask, Row, Window
from wakeboard.reporting.activity_report.stretches import Busy, Stretch, joined
from wakeboard.reporting.activity_report.usual import Usual
from wakeboard.reporting.hourly_rollups import BEGINNING
from wakeboard.reporting.ids_by_time import last_before

MOST_TYPES = 1000
LANES = 20
SLICES = 96
# What an hour can be parted by evenly.
_STEPS = [timedelta(minutes=each) for each in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)]
# Of so many types, those with failures or the most work, slices are told.
MOST_DRAWN = 10 * LANES
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


def slice_length(window: Window) -> timedelta:
    """Return how long slices are: a step that parts an hour evenly, at least a SLICES-th of ``window``.

    They begin at the same moments in each window, so that hours can be remembered and bars stay where they
    are while a window moves on. Of windows of over SLICES hours they are days, however many.
    """
    least = (window.until - window.since) / SLICES
    return next((step for step in _STEPS if step >= least), timedelta(days=1))


@dataclass(frozen=True, slots=True)
class Minutes:
    """What the minutes of a span say, by type: sums in the order of ``Ran``, and slices of MOST_DRAWN types.

    Of each type's slices, each a ``step`` long: where they begin, first starts, last ends (seconds since the
    span began), attempts and failures, in columns that take little room.
    """

    since: datetime
    until: datetime
    step: timedelta
    sums: Mapping[str, tuple[int, int, int, int, float, int, float]]
    slices: Mapping[str, Sequence[array[float]]]
    _busy: dict[str, Busy] = field(init=False, default_factory=dict, compare=False)

    def busy(self, job_type: str) -> Busy:
        """Return when ``job_type`` was busy, found once."""
        if job_type not in self._busy:
            length = self.step.total_seconds()
            stretches, failing = [], []
            for begin, start, end, *counts in zip(*self.slices.get(job_type, ()), strict=True):
                attempts, failed = map(int, counts)
                stretches.append(Stretch(start, end, attempts, failed))
                if failed:
                    failing.append(Stretch(begin, begin + length, attempts, failed))
            self._busy[job_type] = Busy(joined(stretches, length), joined(failing, length))
        return self._busy[job_type]


# One walk over the minutes: groups by slice and type, then a row for each type, with an array for each column
# of its slices: those may be two thousand.
_SUMMED = """
SELECT told.*, row_number() OVER (ORDER BY failed DESC, seconds DESC, job_type) <= :most_drawn AS is_drawn
FROM (
    SELECT job_type, sum(attempts)::bigint AS attempts, sum(succeeded)::bigint AS succeeded,
        sum(failed)::bigint AS failed, sum(lost)::bigint AS lost, sum(ms) / 1000 AS seconds,
        sum(slow)::bigint AS slow, max(slowest_ms) / 1000 AS slowest_seconds,
        array_agg(date_part('epoch', begin_at - :since)) AS begins, array_agg(first) AS starts,
        array_agg(last) AS ends, array_agg(attempts) AS of_slices, array_agg(failed) AS failed_of_slices
    FROM (
        SELECT ended.job_type, date_bin(:step, minute, TIMESTAMPTZ '{beginning}') AS begin_at,
            sum(runs)::bigint AS attempts,
            coalesce(sum(runs) FILTER (WHERE outcome = 'succeeded'), 0)::bigint AS succeeded,
            coalesce(sum(runs) FILTER (WHERE outcome IN ({failed})), 0)::bigint AS failed,
            coalesce(sum(runs) FILTER (WHERE outcome = 'lost'), 0)::bigint AS lost,
            sum(duration_ms) AS ms,
            coalesce(sum(runs) FILTER (WHERE outcome = 'succeeded' AND duration_ms > limits.ms * runs), 0)
                AS slow,
            coalesce(max(duration_max_ms) FILTER (WHERE outcome = 'succeeded'), 0) AS slowest_ms,
            min(date_part('epoch', minute - :since)
                - floor(least(duration_max_ms, {longest_ms}) / 60000) * 60) AS first,
            max(date_part('epoch', minute - :since)) + 60 AS last
        FROM ({minutes}) AS ended
        LEFT JOIN unnest(CAST(:types AS text[]), CAST(:limits AS float8[])) AS limits (job_type, ms)
            ON limits.job_type = ended.job_type
        GROUP BY ended.job_type, begin_at
    ) AS sliced
    GROUP BY job_type
) AS told
"""
_OF_ALL, _OF_SOME = (
    _SUMMED.format(failed=_FAILED, beginning=BEGINNING, longest_ms=LONGEST_MS, minutes=_minutes(more))
    for more in ("", "AND job_type = ANY (CAST(:only AS text[]))")
)


def summed(
    ask: Ask, span: Window, usually: Mapping[str, Usual], step: timedelta, only: Sequence[str] = ()
) -> Minutes:
    """Return what the minutes of ``span`` say, in slices of ``step``; ``usually`` says what is slow.

    Of all types, or of those of ``only``.
    """
    values = {
        "most_drawn": MOST_DRAWN,
        "since": span.since,
        "until": span.until,
        "types": list(usually),
        "limits": [each.slow_seconds * 1000 for each in usually.values()],
        "step": step,
    }
    found = ask(_OF_SOME, values | {"only": list(only)}) if only else ask(_OF_ALL, values)
    names = ("attempts", "succeeded", "failed", "lost", "seconds", "slow", "slowest_seconds")
    columns = ("begins", "starts", "ends", "of_slices", "failed_of_slices")
    return Minutes(
        span.since,
        span.until,
        step,
        {row["job_type"]: tuple(row[name] for name in names) for row in found},
        {row["job_type"]: [array("d", row[name]) for name in columns] for row in found if row["is_drawn"]},
    )


def drawn(
    ask: Ask, parts: Iterable[Minutes], usually: Mapping[str, Usual], step: timedelta, types: Sequence[str]
) -> list[Minutes]:
    """Return ``parts`` with the slices of all of ``types``: in one of the spans a type may be of many."""
    found = []
    for part in parts:
        if missing := [name for name in types if name in part.sums and name not in part.slices]:
            slices = summed(ask, part, usually, step, missing).slices
            part = replace(part, slices={**part.slices, **slices})
        found.append(part)
    return found


def ran(parts: Sequence[Minutes], usually: Mapping[str, Usual]) -> list[Ran]:
    """Return what ended in the spans of ``parts`` by type, those with failures first, at most MOST_TYPES."""
    by_type: dict[str, list[tuple[int, int, int, int, float, int, float]]] = {}
    for part in parts:
        for name, sums in part.sums.items():
            by_type.setdefault(name, []).append(sums)
    found = []
    for name, each in by_type.items():
        attempts, succeeded, failed, lost, seconds, slow, slowest = zip(*each, strict=True)
        found.append(
            Ran(
                name,
                sum(attempts),
                sum(succeeded),
                sum(failed),
                sum(lost),
                sum(seconds),
                sum(slow),
                max(slowest),
                usually.get(name),
            )
        )
    return sorted(found, key=lambda one: (-one.failed, -one.attempts, one.job_type))[:MOST_TYPES]


def busy(parts: Sequence[Minutes], since: datetime, types: Iterable[str]) -> dict[str, Busy]:
    """Return when each of ``types`` was busy in the spans of ``parts``, in seconds since ``since``."""
    pause = max((part.step for part in parts), default=timedelta(0)).total_seconds()
    spans = [((part.since - since).total_seconds(), part) for part in parts]
    found = {}
    for name in types:
        of_spans = [(later, part.busy(name)) for later, part in spans]
        found[name] = Busy(
            joined([each.moved(later) for later, there in of_spans for each in there.stretches], pause),
            joined([each.moved(later) for later, there in of_spans for each in there.failing], pause),
        )
    return found


_LAST_BEFORE = last_before("job_runs", "created_at")

# With "=" the planner may walk the primary key back; the range, the order and that none of them runs are
# those of job_runs_listed_by_type.
_SLOW = """
SELECT found.*
FROM unnest(CAST(:types AS text[]), CAST(:limits AS float8[])) WITH ORDINALITY AS t (job_type, seconds, place)
CROSS JOIN LATERAL (
    SELECT newest.id, newest.job_type, newest.started_at, newest.finished_at,
        extract(epoch FROM newest.finished_at - newest.started_at)::float8 AS seconds
    FROM (
        SELECT r.id, r.job_type, r.status, r.started_at, r.finished_at FROM wakeboard.job_runs AS r
        WHERE r.job_type BETWEEN t.job_type AND t.job_type AND r.id <= CAST(:last AS bigint)
            AND r.status <> 'running'
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
