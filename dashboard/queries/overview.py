"""What the overview asks: how things are, what needs a person, what comes next.

Nothing here counts a big table: counts stop at CAP, finished work is summed from the statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Boolean,
    Connection,
    Integer,
    Select,
    and_,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    union_all,
)

from worker import leases
from worker.states import FAILURES, Outcome, Status
from worker.tables import (
    effects,
    job_definitions,
    job_runs,
    job_types,
    missed_fires,
    statistics_deltas,
    statistics_rollups,
    workers,
)

CAP = 10_000
HOURS = 24
GROUPS = 20
FIRES = 8
# An hour is settled this long after it began: late batches have committed, a replica has caught up.
SETTLED = timedelta(minutes=90)

runs = job_runs.c
STUCK = and_(runs.status == Status.RUNNING, runs.locked_until < func.now())
ALIVE = literal_column(leases.is_heard(str(workers)), Boolean())

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
    missed: int
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
    in_state = {
        status.value: _capped(_newest(status))
        for status in (Status.QUEUED, Status.RUNNING, Status.FAILED, Status.DEAD)
    }
    alive = select(func.coalesce(func.sum(workers.c.concurrency), 0), func.count()).where(ALIVE)
    row = connection.execute(
        select(
            *(query.label(name) for name, query in in_state.items()),
            _capped(select(literal(1)).where(STUCK)).label("stuck"),
            _capped(select(missed_fires.c.id).where(_recent(missed_fires.c.noted_at))).label("missed"),
            _capped(_unconfirmed()).label("unconfirmed"),
            select(func.max(workers.c.seen_at)).scalar_subquery().label("worker_seen_at"),
            _capped(
                select(literal(1)).where(job_definitions.c.enabled, job_definitions.c.schedule.is_not(None))
            ).label("schedules"),
        )
    ).one()
    slots, living = connection.execute(alive).one()
    oldest = connection.execute(OLDEST_DUE).scalar_one_or_none()
    return Counts(**row._mapping, oldest_due_at=oldest, slots=slots, workers=living)


def _newest(status: Status, *columns: Any) -> Select[Any]:
    """Select runs in ``status``, newest first, so that only job_runs_by_status gives the order.

    With a plain equality and a LIMIT the planner expects to meet matches everywhere and walks the table or
    the primary key, past millions of rows when the matches lie at the other end.
    """
    within = and_(runs.status >= status.value, runs.status <= status.value)
    return select(*(columns or (literal(1),))).where(within).order_by(runs.status.desc(), runs.id.desc())


def _recent(moment: Any) -> Any:
    return moment >= func.now() - timedelta(hours=HOURS)


def _unconfirmed() -> Select[Any]:
    """Effects begun by an attempt that no longer runs: only a person can say whether they happened."""
    still_running = (
        select(literal(1))
        .where(
            runs.id == effects.c.run_id,
            runs.status == Status.RUNNING,
            runs.lease_epoch == effects.c.lease_epoch,
        )
        .exists()
    )
    return select(effects.c.id).where(effects.c.status == "started", ~still_running)


@dataclass(frozen=True, slots=True)
class Hour:
    """Ended attempts of one hour; a bar of the chart. ``label`` is filled in by the view."""

    start_at: datetime
    good: int
    bad: int
    label: str = ""

    @property
    def total(self) -> int:
        """All ended attempts of the hour."""
        return self.good + self.bad


def hours(connection: Connection, now: datetime, closed: dict[datetime, tuple[int, int]]) -> list[Hour]:
    """Return the attempts that ended in each of the last 24 clock hours, oldest first, none left out.

    ``closed`` keeps (good, bad) of hours that cannot change any more, from one call to the next: a busy
    day is 200,000 rows of statistics, its last hour 9,000.
    """
    first = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)
    starts = [first + timedelta(hours=step) for step in range(HOURS)]
    missing = next((start for start in starts if start not in closed), starts[-1])
    known = closed | _summed(connection, missing)
    for start in list(closed):
        if start < first:
            closed.pop(start, None)
    for start in starts:
        if start + SETTLED < now:
            closed[start] = known.get(start, (0, 0))
    return [Hour(start, *known.get(start, (0, 0))) for start in starts]


def _summed(connection: Connection, first: datetime) -> dict[datetime, tuple[int, int]]:
    """Return (good, bad) by clock hour from ``first`` on; hours without attempts are left out."""
    failed = [outcome.value for outcome in FAILURES]
    parts = [
        select(table.c.minute, table.c.outcome, table.c.runs).where(table.c.minute >= first)
        for table in (statistics_deltas, statistics_rollups)
    ]
    both = union_all(*parts).subquery()
    hour = func.date_trunc("hour", both.c.minute, "UTC").label("hour")
    found = connection.execute(
        select(
            hour,
            func.sum(case((both.c.outcome == Outcome.SUCCEEDED.value, both.c.runs), else_=0)).label("good"),
            func.sum(case((both.c.outcome.in_(failed), both.c.runs), else_=0)).label("bad"),
        ).group_by(hour)
    ).all()
    return {row.hour: (int(row.good), int(row.bad)) for row in found}


@dataclass(frozen=True, slots=True)
class Trouble:
    """One line of "needs attention": so many runs of one type in one state, since when."""

    state: str
    job_type: str
    count: int
    since_at: datetime | None


def troubles(connection: Connection) -> list[Trouble]:
    """Return what needs a person, worst first: stuck, dead, failing; grouped by type, at most 20 lines."""
    stuck = select(runs.job_type, runs.locked_until.label("moment")).where(STUCK)
    parts = [
        _grouped("stuck", 0, stuck),
        _grouped("dead", 1, _newest(Status.DEAD, runs.job_type, runs.finished_at.label("moment"))),
        _grouped("failed", 2, _newest(Status.FAILED, runs.job_type, runs.failed_at.label("moment"))),
    ]
    every = union_all(*parts).subquery()
    found = connection.execute(
        select(every).order_by(every.c.rank, every.c.runs.desc(), every.c.job_type).limit(GROUPS)
    )
    return [Trouble(row.state, row.job_type, row.runs, row.since_at) for row in found]


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
