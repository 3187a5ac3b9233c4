"""What the overview asks: how things are, what needs a person, what comes next.

Nothing here counts a big table: counts stop at CAP. What ended is the business of ``queries.throughput``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import (
    Boolean,
    Connection,
    RowMapping,
    and_,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
)

from wakeboard.core import leases
from wakeboard.core.states import Status
from wakeboard.database.tables import (
    effects,
    job_definitions,
    job_runs,
    job_types,
    missed_fires,
    workers,
)
from wakeboard.reporting import worker_states
from wakeboard.reporting.broken_schedules import IS_BROKEN
from wakeboard_dashboard.queries.effects import IS_UNCONFIRMED
from wakeboard_dashboard.queries.leases import select_lease_counts
from wakeboard_dashboard.queries.schedules import MISSED_LATELY
from wakeboard_dashboard.queries.statements import Column, Statement, fixed
from wakeboard_dashboard.text.verdict import CAP, Counts

GROUPS = 20
FIRES = 8
# What ``queries.attention.troubles`` counts by type, the worst first; and what it counts in passing.
BY_TYPE = ("stuck", "dead", "failed")
IN_PASSING = ("running", "silent", "finishing", "long")

runs = job_runs.c
ALIVE, IS_CLAIMING, IS_LEAVING = (
    literal_column(of(str(workers)), Boolean())
    for of in (leases.is_alive, worker_states.is_claiming, worker_states.is_leaving)
)
# Not of one that stops as well.
IS_DRAINING = literal_column(worker_states.is_draining(str(workers)), Boolean())

# The first row of every type and priority that have any, found by jumping along job_runs_claimable from one
# to the next: as many index probes as there are of these, however long the queue is.
OLDEST_DUE = """
WITH RECURSIVE first(job_type, priority, run_at, status) AS (
    (SELECT job_type, priority, run_at, status FROM wakeboard.job_runs WHERE status IN ('queued', 'failed')
     ORDER BY job_type, priority, run_at LIMIT 1)
    UNION ALL
    SELECT next.* FROM first CROSS JOIN LATERAL (
        SELECT r.job_type, r.priority, r.run_at, r.status FROM wakeboard.job_runs r
        WHERE r.status IN ('queued', 'failed') AND (r.job_type, r.priority) > (first.job_type, first.priority)
        ORDER BY r.job_type, r.priority, r.run_at LIMIT 1
    ) next
)
SELECT run_at, status = 'failed' FROM first WHERE run_at <= now()
    AND NOT EXISTS (
        SELECT 1 FROM wakeboard.job_types t WHERE t.name = first.job_type AND t.paused_at IS NOT NULL
    )
ORDER BY run_at LIMIT 1
"""


def _capped(statement: Statement) -> Column:
    """Return a scalar subquery that counts the rows of ``statement``, at most CAP + 1."""
    return select(func.count()).select_from(statement.limit(CAP + 1).subquery()).scalar_subquery()


def counts(connection: Connection, known: Mapping[str, int] | None = None) -> Counts:
    """Return the numbers of the overview's tiles.

    ``known``: what ``queries.attention.troubles`` has just counted, which need not be counted again.
    """
    row = connection.exec_driver_sql(_COUNTS if known is None else _OTHERS).one()
    oldest = connection.exec_driver_sql(OLDEST_DUE).one_or_none()
    oldest_due_at, is_retry = oldest or (None, False)
    found = {**row._mapping, **(known or {})}
    return Counts(**found, oldest_due_at=oldest_due_at, oldest_is_retry=is_retry)


def _newest(status: Status) -> Statement:
    """Select runs in ``status``, newest first, so that only an index by status gives the order.

    With a plain equality and a LIMIT the planner expects to meet matches everywhere and walks the table or
    the primary key, past millions of rows when the matches lie at the other end. What runs and what has
    succeeded is in no index by status. Selected is what the index has, as it has it: to make a row of
    anything else costs a fifth of counting it.
    """
    constant = literal(status.value, literal_execute=True)
    within = and_(runs.status >= constant, runs.status <= constant)
    return select(runs.status, runs.id).where(within).order_by(runs.status.desc(), runs.id.desc())


def _counts(*, left_out: Sequence[str] = ()) -> Statement:
    held = select_lease_counts(CAP + 1).subquery("standing")
    here = _here().subquery("here")
    missed = select(missed_fires.c.definition_id).where(MISSED_LATELY)
    scheduled = and_(job_definitions.c.enabled, job_definitions.c.schedule.is_not(None))
    numbers = {
        **{status.value: _capped(_newest(status)) for status in (Status.QUEUED, Status.FAILED, Status.DEAD)},
        **{column.name: column for column in held.c},
        "missed": _capped(missed),
        "schedules_missed": select(
            func.count(missed.limit(CAP + 1).subquery().c.definition_id.distinct())
        ).scalar_subquery(),
        "unfireable": _capped(select(job_definitions.c.id).where(text(IS_BROKEN))),
        "unconfirmed": _capped(select(effects.c.id).where(IS_UNCONFIRMED)),
        "paused": _capped(select(job_types.c.name).where(job_types.c.paused_at.is_not(None))),
        **{column.name: column for column in here.c},
        "worker_seen_at": select(func.max(workers.c.seen_at)).scalar_subquery(),
        "schedules": _capped(select(literal(1)).where(scheduled)),
    }
    return select(*(query.label(name) for name, query in numbers.items() if name not in left_out))


def _here() -> Statement:
    """Select one row about the workers that are heard: how many there are, which take work, since when."""
    here = workers.c
    told_at = func.least(here.drain_requested_at, here.stop_requested_at, here.stopping_at)
    slots = func.sum(here.concurrency)
    return select(
        func.count().label("workers"),
        func.coalesce(slots, 0).label("slots"),
        func.count().filter(IS_CLAIMING).label("claiming"),
        func.coalesce(slots.filter(IS_CLAIMING), 0).label("claiming_slots"),
        func.count().filter(IS_LEAVING).label("leaving"),
        func.count().filter(IS_DRAINING).label("draining"),
        func.max(told_at).filter(IS_LEAVING).label("left_at"),
    ).where(ALIVE)


_COUNTS, _OTHERS = fixed(_counts()), fixed(_counts(left_out=(*BY_TYPE, *IN_PASSING)))


# What was paused in one go has one moment: many types then are one line, not a line each.
NAMED = 3
_PAUSED = f"""
SELECT count(*) AS types, (array_agg(name ORDER BY name))[1:{NAMED}] AS names,
    paused_at, paused_by, paused_reason
FROM wakeboard.job_types WHERE paused_at IS NOT NULL
GROUP BY paused_at, paused_by, paused_reason ORDER BY paused_at, names LIMIT {GROUPS}
"""
definitions = job_definitions.c
_NEXT_FIRES = fixed(
    select(definitions.name, definitions.job_type, definitions.next_fire_at, definitions.error)
    .where(
        definitions.enabled,
        definitions.schedule.is_not(None),
        or_(definitions.next_fire_at.is_not(None), definitions.error.is_not(None)),
    )
    .order_by(definitions.next_fire_at)
    .limit(FIRES)
)


def pauses(connection: Connection) -> list[RowMapping]:
    """Return the pauses of job types: how many it holds, up to NAMED names, since when, by whom, why."""
    return list(connection.exec_driver_sql(_PAUSED).mappings())


def next_fires(connection: Connection) -> list[RowMapping]:
    """Return the next fires of enabled schedules, soonest first: name, job_type, next_fire_at, error."""
    return list(connection.exec_driver_sql(_NEXT_FIRES).mappings())
