"""What the overview asks: how things are, what needs a person, what comes next.

Nothing here counts a big table: counts stop at CAP. What ended is the business of ``queries.ended``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    Connection,
    Integer,
    Select,
    and_,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    union_all,
)

from dashboard.queries.effects import IS_UNCONFIRMED
from dashboard.queries.schedules import MISSED_LATELY
from worker import leases
from worker.filters.search import IS_RUNNING
from worker.states import FAILING, Status
from worker.tables import (
    effects,
    job_definitions,
    job_runs,
    job_types,
    missed_fires,
    workers,
)

CAP = 10_000
GROUPS = 20
FIRES = 8

runs = job_runs.c
ALIVE = literal_column(leases.is_heard(str(workers)), Boolean())
STUCK = and_(IS_RUNNING, literal_column(leases.is_stuck(str(job_runs)), Boolean()))
# Of these nobody is heard to work at those whose leases still last: until then no other worker takes them.
HELD_IN_SILENCE = and_(STUCK, runs.locked_until >= func.now())
IS_FAILING = runs.status.in_([literal(status.value, literal_execute=True) for status in FAILING])
# The order of job_runs_leased, which has what runs and nothing else.
_LEASED = (runs.job_type, runs.locked_until)
_seen_at = select(workers.c.seen_at).where(workers.c.id == runs.locked_by).correlate(job_runs)
# Since when: its worker was heard last, or its lease ended.
_STUCK_SINCE = func.least(runs.locked_until, _seen_at.scalar_subquery(), func.now())

# The first due row of every type and priority, found by jumping along job_runs_claimable: as many index
# probes as there are types with work, however long the queue is.
OLDEST_DUE = text("""
WITH RECURSIVE waiting(job_type) AS (
    (SELECT job_type FROM wakeboard.job_runs WHERE status IN ('queued', 'failed') ORDER BY job_type LIMIT 1)
    UNION ALL
    SELECT (SELECT r.job_type FROM wakeboard.job_runs r
            WHERE r.status IN ('queued', 'failed') AND r.job_type > w.job_type
            ORDER BY r.job_type LIMIT 1)
    FROM waiting w WHERE w.job_type IS NOT NULL
)
SELECT min(first.run_at) FROM waiting w CROSS JOIN generate_series(0, 4) AS priorities(priority)
CROSS JOIN LATERAL (
    SELECT r.run_at FROM wakeboard.job_runs r
    WHERE r.status IN ('queued', 'failed') AND r.job_type = w.job_type AND r.priority = priorities.priority
      AND r.run_at <= now()
    ORDER BY r.run_at LIMIT 1
) first
WHERE NOT EXISTS (SELECT 1 FROM wakeboard.job_types t WHERE t.name = w.job_type AND t.paused_at IS NOT NULL)
""")


@dataclass(frozen=True, slots=True)
class Counts:
    """How many runs are in each state that matters now; those over CAP are CAP + 1."""

    queued: int
    running: int
    failed: int
    dead: int
    stuck: int
    silent: int
    missed: int
    schedules_missed: int
    unconfirmed: int
    oldest_due_at: datetime | None
    slots: int
    workers: int
    worker_seen_at: datetime | None
    schedules: int

    @property
    def attention(self) -> int:
        """How many things need a person: dead and stuck runs, missed fires, effects left open."""
        return self.dead + self.stuck + self.missed + self.unconfirmed


def _capped(statement: Select[Any]) -> Any:
    """Return a scalar subquery that counts the rows of ``statement``, at most CAP + 1."""
    return select(func.count()).select_from(statement.limit(CAP + 1).subquery()).scalar_subquery()


def counts(connection: Connection) -> Counts:
    """Return the numbers of the overview's tiles."""
    row = connection.execute(_COUNTS).one()
    oldest = connection.execute(OLDEST_DUE).scalar_one_or_none()
    return Counts(**row._mapping, oldest_due_at=oldest)


def _newest(status: Status, *columns: Any) -> Select[Any]:
    """Select runs in ``status``, newest first, so that only an index by status gives the order.

    With a plain equality and a LIMIT the planner expects to meet matches everywhere and walks the table or
    the primary key, past millions of rows when the matches lie at the other end. What fails has an index of
    its own, job_runs_failing, that has all that is asked here; what runs is in no index by status.
    """
    constant = literal(status.value, literal_execute=True)
    within = and_(runs.status >= constant, runs.status <= constant)
    if status in FAILING:
        within = and_(within, IS_FAILING)
    return select(*(columns or (literal(1),))).where(within).order_by(runs.status.desc(), runs.id.desc())


def _counts() -> Select[Any]:
    missed = select(missed_fires.c.definition_id).where(MISSED_LATELY)
    scheduled = and_(job_definitions.c.enabled, job_definitions.c.schedule.is_not(None))
    numbers = {
        **{status.value: _capped(_newest(status)) for status in (Status.QUEUED, Status.FAILED, Status.DEAD)},
        "running": _capped(select(literal(1)).where(IS_RUNNING).order_by(*_LEASED)),
        "stuck": _capped(select(literal(1)).where(STUCK).order_by(*_LEASED)),
        "silent": _capped(select(literal(1)).where(HELD_IN_SILENCE).order_by(*_LEASED)),
        "missed": _capped(missed),
        "schedules_missed": select(
            func.count(missed.limit(CAP + 1).subquery().c.definition_id.distinct())
        ).scalar_subquery(),
        "unconfirmed": _capped(select(effects.c.id).where(IS_UNCONFIRMED)),
        "slots": select(func.coalesce(func.sum(workers.c.concurrency), 0)).where(ALIVE).scalar_subquery(),
        "workers": select(func.count()).select_from(workers).where(ALIVE).scalar_subquery(),
        "worker_seen_at": select(func.max(workers.c.seen_at)).scalar_subquery(),
        "schedules": _capped(select(literal(1)).where(scheduled)),
    }
    return select(*(query.label(name) for name, query in numbers.items()))


# Built once: to put it together takes as long as to ask it.
_COUNTS = _counts()


@dataclass(frozen=True, slots=True)
class Trouble:
    """One line of "needs attention": so many runs of one type in one state, since when."""

    state: str
    job_type: str
    count: int
    since_at: datetime | None


def troubles(connection: Connection) -> list[Trouble]:
    """Return what needs a person, worst first: stuck, dead, failing; grouped by type, at most 20 lines."""
    found = connection.execute(_TROUBLES)
    return [Trouble(row.state, row.job_type, row.runs, row.since_at) for row in found]


def _troubles() -> Select[Any]:
    stuck = select(runs.job_type, _STUCK_SINCE.label("moment")).where(STUCK).order_by(*_LEASED)
    parts = [
        _grouped("stuck", 0, stuck),
        _grouped("dead", 1, _newest(Status.DEAD, runs.job_type, runs.failed_at.label("moment"))),
        _grouped("failed", 2, _newest(Status.FAILED, runs.job_type, runs.failed_at.label("moment"))),
    ]
    every = union_all(*parts).subquery()
    return select(every).order_by(every.c.rank, every.c.runs.desc(), every.c.job_type).limit(GROUPS)


def _grouped(state: str, rank: int, matching: Select[Any]) -> Select[Any]:
    """Return count and first ``moment`` by type of the first CAP + 1 rows of ``matching``."""
    newest = matching.limit(CAP + 1).subquery()
    return select(
        literal(state).label("state"),
        literal(rank, Integer).label("rank"),
        newest.c.job_type,
        func.count().label("runs"),
        func.min(newest.c.moment).label("since_at"),
    ).group_by(newest.c.job_type)


_TROUBLES = _troubles()


def paused_types(connection: Connection) -> list[Any]:
    """Return the paused job types: name, since when, by whom, why."""
    types = job_types.c
    return list(
        connection.execute(
            select(types.name, types.paused_at, types.paused_by, types.paused_reason)
            .where(types.paused_at.is_not(None))
            .order_by(types.paused_at)
            .limit(GROUPS)
        ).mappings()
    )


def next_fires(connection: Connection) -> list[Any]:
    """Return the next fires of enabled schedules, soonest first: name, job_type, next_fire_at, error."""
    definitions = job_definitions.c
    return list(
        connection.execute(
            select(definitions.name, definitions.job_type, definitions.next_fire_at, definitions.error)
            .where(
                definitions.enabled,
                definitions.schedule.is_not(None),
                or_(definitions.next_fire_at.is_not(None), definitions.error.is_not(None)),
            )
            .order_by(definitions.next_fire_at)
            .limit(FIRES)
        ).mappings()
    )
