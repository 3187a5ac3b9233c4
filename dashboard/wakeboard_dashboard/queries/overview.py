"""What the overview shows: numbers of the tiles, what needs a person, pauses and next fires.

Nothing here counts a big table: counts stop at CAP. What ended is in ``queries.throughput``.

What needs a person is counted by type and state: runs that are stuck, dead, overlong, or that will be tried
again. The numbers of these states are the sums of their types, so a page that shows both counts once. A stuck
run does not count as an overlong one. Whether failures rise is the question of the alert rule of that name,
with the rule's own numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import psycopg
from sqlalchemy import (
    Boolean,
    Connection,
    Integer,
    RowMapping,
    and_,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    true,
    union_all,
)

from wakeboard.alerts import checks
from wakeboard.alerts.finding import Finding
from wakeboard.core import leases
from wakeboard.core.rule_types import KINDS
from wakeboard.core.states import Status
from wakeboard.database.index_predicates import IS_CLAIMABLE
from wakeboard.database.tables import (
    alert_rules,
    effects,
    job_definitions,
    job_runs,
    job_types,
    missed_fires,
    workers,
)
from wakeboard.reporting.broken_schedules import IS_BROKEN
from wakeboard_dashboard.queries.effects import IS_UNCONFIRMED
from wakeboard_dashboard.queries.leases import IS_STUCK, select_lease_counts
from wakeboard_dashboard.queries.schedules import MISSED_LATELY
from wakeboard_dashboard.queries.statements import Column, Statement, fixed
from wakeboard_dashboard.queries.types import OVERLONG_LEAST_SECONDS, TypePace, read_usual_paces
from wakeboard_dashboard.queries.workers import IS_CLAIMING, IS_DRAINING, IS_HEARD, IS_LEAVING
from wakeboard_dashboard.text.verdict import CAP, Counts

MOST_LINES = 20
MOST_FIRES = 8
# The states of the lines of ``read_attention_lines``, the worst first, and what it counts beside them.
BY_TYPE = ("stuck", "dead", "failed")
IN_PASSING = ("running", "silent", "finishing", "long")

runs = job_runs.c

# The first row of each type and priority, by one hop in job_runs_claimable for each, however long the queue
# is.
OLDEST_DUE = f"""
WITH RECURSIVE first(job_type, priority, run_at, status) AS (
    (SELECT job_type, priority, run_at, status FROM wakeboard.job_runs WHERE {IS_CLAIMABLE}
     ORDER BY job_type, priority, run_at LIMIT 1)
    UNION ALL
    SELECT next.* FROM first CROSS JOIN LATERAL (
        SELECT r.job_type, r.priority, r.run_at, r.status FROM wakeboard.job_runs r
        WHERE r.{IS_CLAIMABLE} AND (r.job_type, r.priority) > (first.job_type, first.priority)
        ORDER BY r.job_type, r.priority, r.run_at LIMIT 1
    ) next
)
SELECT run_at, status = '{Status.FAILED}' FROM first WHERE run_at <= now()
    AND NOT EXISTS (
        SELECT 1 FROM wakeboard.job_types t WHERE t.name = first.job_type AND t.paused_at IS NOT NULL
    )
ORDER BY run_at LIMIT 1
"""


def _capped(statement: Statement) -> Column:
    """Return a scalar subquery that counts the rows of ``statement``, at most CAP + 1."""
    return select(func.count()).select_from(statement.limit(CAP + 1).subquery()).scalar_subquery()


def read_counts(connection: Connection, counted: Mapping[str, int] | None = None) -> Counts:
    """Return the numbers of the overview's tiles.

    ``counted``: what ``read_attention_lines`` has just counted and is not counted again.
    """
    row = connection.exec_driver_sql(_COUNTS if counted is None else _OTHER_COUNTS).one()
    oldest = connection.exec_driver_sql(OLDEST_DUE).one_or_none()
    oldest_due_at, is_retry = oldest or (None, False)
    numbers = {**row._mapping, **(counted or {})}
    return Counts(**numbers, oldest_due_at=oldest_due_at, oldest_is_retry=is_retry)


def _newest(status: Status) -> Statement:
    """Select runs in ``status``, newest first, so that only an index by status gives the order.

    With a plain equality and a LIMIT the planner expects matches everywhere and walks the table or the
    primary key, past millions of rows when the matches lie at the other end. No index by status has running
    and succeeded runs. The columns are those of the index: other ones make counting a fifth slower.
    """
    constant = literal(status.value, literal_execute=True)
    within = and_(runs.status >= constant, runs.status <= constant)
    return select(runs.status, runs.id).where(within).order_by(runs.status.desc(), runs.id.desc())


def _select_counts(*, left_out: Sequence[str] = ()) -> Statement:
    leased = select_lease_counts(CAP + 1).subquery("leased")
    live = _select_live_workers().subquery("live")
    missed = select(missed_fires.c.definition_id).where(MISSED_LATELY)
    scheduled = and_(job_definitions.c.enabled, job_definitions.c.schedule.is_not(None))
    numbers = {
        **{status.value: _capped(_newest(status)) for status in (Status.QUEUED, Status.FAILED, Status.DEAD)},
        **{column.name: column for column in leased.c},
        "missed": _capped(missed),
        "schedules_missed": select(
            func.count(missed.limit(CAP + 1).subquery().c.definition_id.distinct())
        ).scalar_subquery(),
        "unfireable": _capped(select(job_definitions.c.id).where(text(IS_BROKEN))),
        "unconfirmed": _capped(select(effects.c.id).where(IS_UNCONFIRMED)),
        "paused": _capped(select(job_types.c.name).where(job_types.c.paused_at.is_not(None))),
        **{column.name: column for column in live.c},
        "worker_seen_at": select(func.max(workers.c.seen_at)).scalar_subquery(),
        "schedules": _capped(select(literal(1)).where(scheduled)),
    }
    return select(*(query.label(name) for name, query in numbers.items() if name not in left_out))


def _select_live_workers() -> Statement:
    """Select one row of numbers of the live workers."""
    columns = workers.c
    leaving_at = func.least(columns.drain_requested_at, columns.stop_requested_at, columns.stopping_at)
    slots = func.sum(columns.concurrency)
    return select(
        func.count().label("workers"),
        func.coalesce(slots, 0).label("slots"),
        func.count().filter(IS_CLAIMING).label("claiming"),
        func.coalesce(slots.filter(IS_CLAIMING), 0).label("claiming_slots"),
        func.count().filter(IS_LEAVING).label("leaving"),
        func.count().filter(IS_DRAINING).label("draining"),
        func.max(leaving_at).filter(IS_LEAVING).label("left_at"),
    ).where(IS_HEARD)


_COUNTS, _OTHER_COUNTS = fixed(_select_counts()), fixed(_select_counts(left_out=(*BY_TYPE, *IN_PASSING)))


# The order of job_runs_leased, which has the running runs alone.
LEASED = (runs.job_type, runs.locked_until)
_SEEN_AT = select(workers.c.seen_at).where(workers.c.id == runs.locked_by).correlate(job_runs)
# The last heartbeat of its worker, or the end of its lease.
_STUCK_SINCE = func.least(runs.locked_until, _SEEN_AT.scalar_subquery(), func.now())


@dataclass(frozen=True, slots=True)
class AttentionLine:
    """One line of "needs attention": ``count`` runs of one type in one state."""

    state: str
    job_type: str
    count: int
    since_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttentionLines:
    """The lines, worst first, at most MOST_LINES; ``counted`` has the runs of BY_TYPE and IN_PASSING."""

    lines: list[AttentionLine]
    counted: Mapping[str, int]


def read_attention_lines(connection: Connection) -> AttentionLines:
    """Return stuck, dead, then failed runs by type, of each state the newest CAP + 1."""
    rows = connection.exec_driver_sql(_ATTENTION_LINES).all()
    lines = [
        AttentionLine(row.state, row.job_type, row.runs, row.since_at)
        for row in rows
        if row.state is not None
    ]
    counted = {state: getattr(rows[0], f"all_{state}") for state in (*BY_TYPE, *IN_PASSING)}
    return AttentionLines(lines, counted)


def _select_attention_lines() -> Statement:
    leased = select_lease_counts(CAP + 1).cte("leased")
    # Where nothing is stuck, which is nearly always, running runs are not walked over once more.
    is_any = select(leased.c.stuck > 0).scalar_subquery()
    stuck = select(runs.job_type, _STUCK_SINCE.label("moment")).where(is_any, IS_STUCK).order_by(*LEASED)
    parts = {"stuck": stuck, "dead": _newest_failures(Status.DEAD), "failed": _newest_failures(Status.FAILED)}
    lines = union_all(*(_group_by_type(state, rank, parts[state]) for rank, state in enumerate(BY_TYPE))).cte(
        "lines"
    )
    sums = [
        func.coalesce(func.sum(lines.c.runs).filter(lines.c.state == state), 0)
        .cast(Integer)
        .label(f"all_{state}")
        for state in BY_TYPE
    ]
    others = [select(leased.c[name]).scalar_subquery().label(f"all_{name}") for name in IN_PASSING]
    counted = select(*sums, *others).subquery()
    order = (lines.c.rank, lines.c.runs.desc(), lines.c.job_type)
    worst = select(lines).order_by(*order).limit(MOST_LINES).subquery()
    # One row where there is no line.
    return (
        select(counted, worst)
        .select_from(counted.outerjoin(worst, true()))
        .order_by(worst.c.rank, worst.c.runs.desc(), worst.c.job_type)
    )


def _newest_failures(status: Status) -> Statement:
    """Select type and time of failure of the runs in ``status``, newest first, from job_runs_by_status alone.

    With a plain equality the planner walks past millions of rows that do not fail; with a range it takes an
    index without the time, and reads each row.
    """
    within = literal_column(f"{job_runs}.status = ANY ('{{{status}}}')", Boolean())
    moment = runs.failed_at.label("moment")
    return select(runs.job_type, moment).where(within).order_by(runs.status.desc(), runs.id.desc())


def _group_by_type(state: str, rank: int, matching: Statement) -> Statement:
    """Return count and first ``moment`` by type of the first CAP + 1 rows of ``matching``."""
    newest = matching.limit(CAP + 1).subquery()
    return select(
        literal(state).label("state"),
        literal(rank, Integer).label("rank"),
        newest.c.job_type,
        func.count().label("runs"),
        func.min(newest.c.moment).label("since_at"),
    ).group_by(newest.c.job_type)


_ATTENTION_LINES = fixed(_select_attention_lines())


_LONG_RUNS = f"""
    SELECT r.job_type, r.started_at FROM wakeboard.job_runs AS r
    WHERE r.status = '{Status.RUNNING.value}' AND r.started_at < now() - make_interval(secs => :least)
        AND NOT {leases.is_stuck("r")}
    LIMIT {CAP + 1}"""
_LONG_TYPES = text(f"SELECT DISTINCT job_type FROM ({_LONG_RUNS}) AS long")
_OVERLONG = text(f"""
SELECT long.job_type, count(*) AS runs, min(long.started_at) AS since_at
FROM ({_LONG_RUNS}
) AS long
JOIN unnest(CAST(:names AS text[]), CAST(:seconds AS float8[])) AS usual (name, seconds)
    ON usual.name = long.job_type
WHERE long.started_at < now() - make_interval(secs => usual.seconds)
GROUP BY long.job_type ORDER BY runs DESC, long.job_type LIMIT {MOST_LINES}
""")


@dataclass(frozen=True, slots=True)
class OverlongRuns:
    """``count`` runs of one type have run far longer than usual, the first of them since ``since_at``."""

    job_type: str
    count: int
    since_at: datetime
    pace: TypePace


def list_overlong(connection: Connection, now: datetime) -> list[OverlongRuns]:
    """Return the types with overlong runs, most runs first, at most MOST_LINES."""
    names = connection.execute(_LONG_TYPES, {"least": OVERLONG_LEAST_SECONDS}).scalars().all()
    usual = read_usual_paces(connection, now, names)
    limits = {name: limit for name, pace in usual.items() if (limit := pace.overlong_seconds) is not None}
    if not limits:
        return []
    values = {"least": OVERLONG_LEAST_SECONDS, "names": list(limits), "seconds": list(limits.values())}
    return [
        OverlongRuns(row.job_type, row.runs, row.since_at, usual[row.job_type])
        for row in connection.execute(_OVERLONG, values)
    ]


RISING = "failures_rise"


def check_rising_failures(connection: Connection) -> Finding:
    """Return what the alert rule RISING finds now, with the rule's own settings."""
    rules = alert_rules.c
    settings = connection.execute(
        select(rules.settings).where(rules.kind == RISING).order_by(rules.enabled.desc(), rules.id).limit(1)
    ).scalar_one_or_none()
    # The same connection is the same transaction: one moment for the whole page.
    driver_connection = connection.connection.driver_connection
    assert isinstance(driver_connection, psycopg.Connection)
    return checks.check_rule(driver_connection, RISING, KINDS[RISING].values(settings or {}))


# Types that were paused together have one moment: they are one line.
MOST_NAMED = 3
_PAUSED = f"""
SELECT count(*) AS types, (array_agg(name ORDER BY name))[1:{MOST_NAMED}] AS names,
    paused_at, paused_by, paused_reason
FROM wakeboard.job_types WHERE paused_at IS NOT NULL
GROUP BY paused_at, paused_by, paused_reason ORDER BY paused_at, names LIMIT {MOST_LINES}
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
    .limit(MOST_FIRES)
)


def list_pauses(connection: Connection) -> list[RowMapping]:
    """Return the pauses of job types: types (how many), names (at most MOST_NAMED), paused_at, paused_by,
    paused_reason."""
    return list(connection.exec_driver_sql(_PAUSED).mappings())


def list_next_fires(connection: Connection) -> list[RowMapping]:
    """Return the next fires of enabled schedules, soonest first: name, job_type, next_fire_at, error."""
    return list(connection.exec_driver_sql(_NEXT_FIRES).mappings())
