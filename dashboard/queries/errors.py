"""What the pages of errors ask: failures of a window by group, code and type, and how many runs fail now.

A failure without a group was written by a version that knew none; code and type stand for it.

Attempts come from the index of failures, newest first and at most CAP; runs from the newest CAP that fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    RowMapping,
    bindparam,
    func,
    literal,
    select,
    text,
    union_all,
)
from sqlalchemy.types import ARRAY, DateTime, Text

from dashboard.queries.groups import Kept, by_number
from worker.nights.faults import UNKNOWN
from worker.states import FAILURES, Status
from worker.tables import job_attempts, job_runs, workers

CAP = 20_000
BUCKETS = 24
MOST_GROUPS = 100
NEWEST = 20

attempts = job_attempts.c
runs = job_runs.c
_failed = attempts.outcome.in_([literal(outcome.value, literal_execute=True) for outcome in FAILURES])
_code = func.coalesce(attempts.error_code, literal(UNKNOWN, literal_execute=True))


@dataclass(frozen=True, slots=True)
class Window:
    """The failures that a page is about: a span of time and, if given, one code, one type, one group."""

    since: datetime
    until: datetime
    code: str | None = None
    job_type: str | None = None
    number: int | None = None

    @property
    def bucket(self) -> timedelta:
        """How long one of the BUCKETS is."""
        return max((self.until - self.since) / BUCKETS, timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of one group: attempts in the window, runs that fail now, an example.

    ``number`` is the group's, ``kept`` its row; None for failures from before there were groups, and where
    retention has removed the row. ``spread`` counts the attempts by BUCKETS-th of the window.
    """

    code: str
    job_type: str
    number: int | None = None
    kept: Kept | None = None
    count: int = 0
    failed: int = 0
    dead: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    message: str | None = None
    spread: Mapping[int, int] = field(default_factory=dict)

    @property
    def buckets(self) -> Sequence[int]:
        """The failures of each BUCKETS-th of the window, oldest first."""
        return [self.spread.get(place, 0) for place in range(BUCKETS)]


def groups(connection: Connection, window: Window) -> tuple[list[Group], bool]:
    """Return the groups, most failures first, at most MOST_GROUPS; and whether counting stopped at CAP."""
    found, is_cut = every(connection, window)
    return with_examples(connection, with_kept(connection, found[:MOST_GROUPS])), is_cut


def every(connection: Connection, window: Window) -> tuple[list[Group], bool]:
    """Return the groups, most failures first; and whether counting stopped at CAP.

    Without what is kept of them and without examples: there may be thousands.
    """
    tried, failing = _tried(connection, window), _failing(connection, window)
    found = [
        Group(*key, **(tried.get(key, {}) | failing.get(key, {})))
        for key in dict.fromkeys([*tried, *failing])
    ]
    counted = sum(group.count for group in found)
    return sorted(
        found, key=lambda group: (-group.count, -group.dead - group.failed, group.code)
    ), counted >= CAP


def with_kept(connection: Connection, found: Sequence[Group]) -> list[Group]:
    """Return the groups, each with its row of error_groups."""
    kept = by_number(connection, {group.number for group in found if group.number is not None})
    return [replace(group, kept=kept.get(group.number or 0)) for group in found]


def _in_window(window: Window) -> list[Any]:
    """Return the conditions of the window's failures; all attempts of a group are failures."""
    which = _failed if window.number is None else attempts.error_group == window.number
    conditions: list[Any] = [which, attempts.finished_at >= window.since, attempts.finished_at < window.until]
    if window.code is not None:
        conditions.append(
            _code == window.code if window.code == UNKNOWN else attempts.error_code == window.code
        )
    if window.job_type is not None:
        conditions.append(attempts.job_type == window.job_type)
    return conditions


Key = tuple[str, str, int | None]


def _tried(connection: Connection, window: Window) -> dict[Key, dict[str, Any]]:
    """Return what the window's failed attempts say of their groups: count, first_at, last_at, spread."""
    newest = (
        select(_code.label("code"), attempts.job_type, attempts.error_group, attempts.finished_at)
        .where(*_in_window(window))
        .order_by(attempts.finished_at.desc())
        .limit(CAP)
        .subquery()
    )
    at = newest.c.finished_at
    seconds = func.date_part("epoch", at - window.since) / window.bucket.total_seconds()
    place = func.least(BUCKETS - 1, func.floor(seconds)).cast(Integer).label("place")
    key = (newest.c.code, newest.c.job_type, newest.c.error_group)
    each = (
        select(
            *key, place, func.count().label("failures"), func.min(at).label("low"), func.max(at).label("high")
        )
        .group_by(*key, place)
        .subquery()
    )
    which = (each.c.code, each.c.job_type, each.c.error_group)
    counts = func.array_agg(each.c.failures)
    rows = connection.execute(
        select(
            *which, func.sum(each.c.failures).cast(BigInteger), func.min(each.c.low), func.max(each.c.high),
            func.array_agg(each.c.place), counts,
        ).group_by(*which)
    ).all()  # fmt: skip
    return {
        (code, job_type, number): {
            "count": count, "first_at": first_at, "last_at": last_at,
            "spread": dict(zip(places, failures, strict=True)),
        }
        for code, job_type, number, count, first_at, last_at, places, failures in rows
    }  # fmt: skip


def _failing(connection: Connection, window: Window) -> dict[Key, dict[str, Any]]:
    """Return how many runs of each group fail now: failed and dead."""
    # The index by code has both states in one order, the others each by itself.
    both = (Status.FAILED, Status.DEAD)
    states = [both] if window.code is not None else [(status,) for status in both]
    parts = [_newest_failing(each, window) for each in states]
    every = union_all(*(select(part) for part in parts)).subquery()
    failed = func.count().filter(every.c.status == Status.FAILED.value)
    dead = func.count().filter(every.c.status == Status.DEAD.value)
    which = (every.c.error_code, every.c.job_type, every.c.error_group)
    rows = connection.execute(select(*which, failed, dead).group_by(*which)).all()
    return {
        (code, job_type, number): {"failed": failed, "dead": dead}
        for code, job_type, number, failed, dead in rows
    }


def _newest_failing(states: Sequence[Status], window: Window) -> Any:
    wanted = [literal(status.value, literal_execute=True) for status in states]
    statement = select(runs.error_code, runs.job_type, runs.error_group, runs.status)
    statement = statement.where(runs.status.in_(wanted))
    order = [runs.id.desc()]
    if len(states) == 1:
        # A range, and an order that only an index by status gives: see queries.overview.
        statement = statement.where(runs.status.between(states[0].value, states[0].value))
        order.insert(0, runs.status.desc())
    if window.code is not None:
        statement = statement.where(runs.error_code == window.code)
    if window.job_type is not None:
        statement = statement.where(runs.job_type == window.job_type)
    if window.number is not None:
        statement = statement.where(runs.error_group == window.number)
    return statement.order_by(*order).limit(CAP).subquery()


_EXAMPLES = text("""
SELECT coalesce(
    (SELECT a.error FROM wakeboard.job_attempts AS a
     WHERE a.outcome IN ('failed', 'timed_out', 'lost') AND a.finished_at = g.last_at
        AND coalesce(a.error_code, 'unknown') = g.code AND a.job_type = g.job_type
        AND a.error_group IS NOT DISTINCT FROM g.number LIMIT 1),
    CASE WHEN g.number IS NULL THEN
        (SELECT r.last_error FROM wakeboard.job_runs AS r
         WHERE r.status IN ('failed', 'dead') AND r.error_code = g.code AND r.job_type = g.job_type
            AND r.error_group IS NULL
         ORDER BY r.id DESC LIMIT 1)
    ELSE coalesce(
        (SELECT r.last_error FROM wakeboard.job_runs AS r
         WHERE r.error_group = g.number AND r.status = 'dead' ORDER BY r.id DESC LIMIT 1),
        (SELECT r.last_error FROM wakeboard.job_runs AS r
         WHERE r.error_group = g.number AND r.status = 'failed' ORDER BY r.id DESC LIMIT 1))
    END)
FROM unnest(:codes, :job_types, :numbers, :moments)
    WITH ORDINALITY AS g (code, job_type, number, last_at, place)
ORDER BY g.place
""").bindparams(
    bindparam("codes", type_=ARRAY(Text)),
    bindparam("job_types", type_=ARRAY(Text)),
    bindparam("numbers", type_=ARRAY(BigInteger)),
    bindparam("moments", type_=ARRAY(DateTime(timezone=True))),
)


def with_examples(connection: Connection, found: list[Group]) -> list[Group]:
    """Return the groups, each with the message of its newest failure."""
    values = {
        "codes": [group.code for group in found],
        "job_types": [group.job_type for group in found],
        "numbers": [group.number for group in found],
        "moments": [group.last_at for group in found],
    }
    messages = connection.execute(_EXAMPLES, values).scalars()
    return [replace(group, message=message) for group, message in zip(found, messages, strict=True)]


def newest(connection: Connection, window: Window) -> list[RowMapping]:
    """Return the newest failed attempts of the window, at most NEWEST, with worker_name."""
    statement = (
        select(job_attempts, workers.c.name.label("worker_name"))
        .outerjoin(workers, workers.c.id == attempts.worker_id)
        .where(*_in_window(window))
        .order_by(attempts.finished_at.desc(), attempts.run_id.desc())
        .limit(NEWEST)
    )
    return list(connection.execute(statement).mappings())
