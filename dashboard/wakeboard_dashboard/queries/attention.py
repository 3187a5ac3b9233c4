"""What needs a person, by type and state: runs that are stuck, dead, far longer under way than usual, or that
will be tried again; and whether failures rise.

The numbers of these states are the sums of their types: a page that shows both counts once. A stuck run does
not count as a long one. What is usual is what the statistics say of a type's last day. Whether failures rise
is the question of the alert rule of that name, with the rule's own numbers; nothing here judges.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

import psycopg
from sqlalchemy import (
    Boolean,
    Connection,
    Integer,
    func,
    literal,
    literal_column,
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
from wakeboard.database.tables import alert_rules, job_runs, workers
from wakeboard_dashboard.queries.leases import IS_STUCK, LONG_MINUTES, select_lease_counts
from wakeboard_dashboard.queries.overview import BY_TYPE, GROUPS, IN_PASSING
from wakeboard_dashboard.queries.statements import Statement, fixed
from wakeboard_dashboard.queries.types import TypePace, paces
from wakeboard_dashboard.text.verdict import CAP

runs = job_runs.c
# The order of job_runs_leased, which has what runs and nothing else.
LEASED = (runs.job_type, runs.locked_until)
_seen_at = select(workers.c.seen_at).where(workers.c.id == runs.locked_by).correlate(job_runs)
# Since when: its worker was heard last, or its lease ended.
_STUCK_SINCE = func.least(runs.locked_until, _seen_at.scalar_subquery(), func.now())


@dataclass(frozen=True, slots=True)
class Trouble:
    """One line of "needs attention": so many runs of one type in one state, since when."""

    state: str
    job_type: str
    count: int
    since_at: datetime | None


@dataclass(frozen=True, slots=True)
class Troubles:
    """The lines, worst first, at most GROUPS; and how many runs are BY_TYPE and IN_PASSING."""

    lines: list[Trouble]
    counted: Mapping[str, int]


def troubles(connection: Connection) -> Troubles:
    """Return what needs a person: stuck, dead, then failing runs; of each state the newest CAP + 1."""
    rows = connection.exec_driver_sql(_TROUBLES).all()
    lines = [
        Trouble(row.state, row.job_type, row.runs, row.since_at) for row in rows if row.state is not None
    ]
    return Troubles(lines, {state: getattr(rows[0], f"all_{state}") for state in (*BY_TYPE, *IN_PASSING)})


def _troubles() -> Statement:
    held = select_lease_counts(CAP + 1).cte("standing")
    # Where nothing is stuck, which is nearly always, what runs is not walked over once more.
    is_any = select(held.c.stuck > 0).scalar_subquery()
    stuck = select(runs.job_type, _STUCK_SINCE.label("moment")).where(is_any, IS_STUCK).order_by(*LEASED)
    parts = {"stuck": stuck, "dead": _newest(Status.DEAD), "failed": _newest(Status.FAILED)}
    every = union_all(*(_grouped(state, rank, parts[state]) for rank, state in enumerate(BY_TYPE))).cte(
        "every"
    )
    sums = [
        func.coalesce(func.sum(every.c.runs).filter(every.c.state == state), 0)
        .cast(Integer)
        .label(f"all_{state}")
        for state in BY_TYPE
    ]
    passed = [select(held.c[name]).scalar_subquery().label(f"all_{name}") for name in IN_PASSING]
    counted = select(*sums, *passed).subquery()
    order = (every.c.rank, every.c.runs.desc(), every.c.job_type)
    worst = select(every).order_by(*order).limit(GROUPS).subquery()
    # One row where there is no line.
    return (
        select(counted, worst)
        .select_from(counted.outerjoin(worst, true()))
        .order_by(worst.c.rank, worst.c.runs.desc(), worst.c.job_type)
    )


def _newest(status: Status) -> Statement:
    """Select type and time of failure of the runs in ``status``, newest first, from job_runs_by_status alone.

    With a plain equality the planner walks past millions of rows that do not fail; with a range it takes an
    index that does not have the time, and reads each row.
    """
    within = literal_column(f"{job_runs}.status = ANY ('{{{status}}}')", Boolean())
    moment = runs.failed_at.label("moment")
    return select(runs.job_type, moment).where(within).order_by(runs.status.desc(), runs.id.desc())


def _grouped(state: str, rank: int, matching: Statement) -> Statement:
    """Return count and first ``moment`` by type of the first CAP + 1 rows of ``matching``."""
    newest = matching.limit(CAP + 1).subquery()
    return select(
        literal(state).label("state"),
        literal(rank, Integer).label("rank"),
        newest.c.job_type,
        func.count().label("runs"),
        func.min(newest.c.moment).label("since_at"),
    ).group_by(newest.c.job_type)


_TROUBLES = fixed(_troubles())


# The rule: over TIMES what 95 % of those that succeeded took, and over LEAST_SECONDS; of at least FEWEST.
TIMES = 5
LEAST_SECONDS = 60.0 * LONG_MINUTES
FEWEST = 20

_LONG = f"""
    SELECT r.job_type, r.started_at FROM wakeboard.job_runs AS r
    WHERE r.status = '{Status.RUNNING.value}' AND r.started_at < now() - make_interval(secs => :least)
        AND NOT {leases.is_stuck("r")}
    LIMIT {CAP + 1}"""
_TYPES = text(f"SELECT DISTINCT job_type FROM ({_LONG}) AS old")
_BEYOND = text(f"""
SELECT old.job_type, count(*) AS runs, min(old.started_at) AS since_at
FROM ({_LONG}
) AS old
JOIN unnest(CAST(:names AS text[]), CAST(:seconds AS float8[])) AS usual (name, seconds)
    ON usual.name = old.job_type
WHERE old.started_at < now() - make_interval(secs => usual.seconds)
GROUP BY old.job_type ORDER BY runs DESC, old.job_type LIMIT {GROUPS}
""")


@dataclass(frozen=True, slots=True)
class OverlongRuns:
    """So many runs of one type have run far longer than usual, the first of them since when."""

    job_type: str
    count: int
    since_at: datetime
    pace: TypePace


def limit_seconds(pace: TypePace) -> float | None:
    """Return after how many seconds a run has run far longer than usual; None where too few are known."""
    if pace.runs < FEWEST or pace.p95 is None:
        return None
    return max(LEAST_SECONDS, TIMES * pace.p95)


def is_overlong(started_at: datetime, now: datetime, pace: TypePace | None) -> bool:
    """Return whether a run that runs since ``started_at`` has run far longer than ``pace`` at ``now``."""
    limit = None if pace is None else limit_seconds(pace)
    return limit is not None and (now - started_at).total_seconds() > limit


def usual_paces(connection: Connection, now: datetime, names: Collection[str]) -> dict[str, TypePace]:
    """Return how long runs of ``names`` took in the last day; types of which none succeeded are left out."""
    return {name: pace for name, pace in paces(connection, now, names).items() if pace.runs} if names else {}


def overlong(connection: Connection, now: datetime) -> list[OverlongRuns]:
    """Return the types of which runs have run far longer than usual, at most GROUPS, most runs first."""
    names = connection.execute(_TYPES, {"least": LEAST_SECONDS}).scalars().all()
    usual = usual_paces(connection, now, names)
    limits = {name: limit for name, pace in usual.items() if (limit := limit_seconds(pace)) is not None}
    if not limits:
        return []
    values = {"least": LEAST_SECONDS, "names": list(limits), "seconds": list(limits.values())}
    return [
        OverlongRuns(row.job_type, row.runs, row.since_at, usual[row.job_type])
        for row in connection.execute(_BEYOND, values)
    ]


RISING = "failures_rise"


def failures_rise(connection: Connection) -> Finding:
    """Return what the alert rule of that name finds now, asked with the rule's own numbers."""
    rules = alert_rules.c
    given = connection.execute(
        select(rules.settings).where(rules.kind == RISING).order_by(rules.enabled.desc(), rules.id).limit(1)
    ).scalar_one_or_none()
    # The same connection, so the same transaction: one moment for the whole page.
    own = connection.connection.driver_connection
    assert isinstance(own, psycopg.Connection)
    return checks.check_rule(own, RISING, KINDS[RISING].values(given or {}))
