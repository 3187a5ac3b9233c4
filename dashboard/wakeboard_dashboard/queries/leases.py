"""What the page of leases asks: which runs run, who holds them, until when, and what came too late.

All runs that run are counted by one walk over the leases. Under load thousands of runs are claimed, and as
many entries of the index are of runs that have just ended: a walk for each number would be most of what a
page asks.
"""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Connection,
    Double,
    Integer,
    RowMapping,
    and_,
    any_,
    bindparam,
    func,
    literal,
    literal_column,
    not_,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import TIMESTAMP

from wakeboard.core import leases
from wakeboard.core.states import Status
from wakeboard.database.tables import job_attempts, job_runs, job_types, workers
from wakeboard.reporting import worker_states
from wakeboard.reporting.filters.search import IS_RUNNING
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.keyset import Rows, read_page
from wakeboard_dashboard.queries.statements import Column, Statement

_HAS_ENDED, _IS_SILENT, _IS_STUCK, _IS_FINISHING = (
    literal_column(of(str(job_runs)), Boolean())
    for of in (leases.is_ended, leases.is_silent, leases.is_stuck, worker_states.is_finishing)
)
# Whether a run may run far longer than usual is asked of these alone.
LONG_MINUTES = 10
_IS_LONG = job_runs.c.started_at < func.now() - text(f"interval '{LONG_MINUTES} minutes'")
IS_LEASE_ENDED = and_(IS_RUNNING, _HAS_ENDED)
IS_SILENT = and_(IS_RUNNING, _IS_SILENT)
IS_STUCK = and_(IS_RUNNING, _IS_STUCK)


def select_lease_counts(cap: int) -> Statement:
    """Select one row: how many runs are running, stuck, silent, finishing and long, each ``cap`` at most.

    Those that are stuck run too, and the silent ones are stuck ones whose leases still last: until these end
    no other worker takes them. The finishing ones are not stuck: their workers drain or stop. The long ones,
    of all, run for over LONG_MINUTES.
    """
    counted = (
        select(
            func.count().label("running"),
            func.count().filter(_HAS_ENDED).label("ended"),
            func.count().filter(not_(_HAS_ENDED), _IS_SILENT).label("silent"),
            func.count().filter(not_(_HAS_ENDED), _IS_FINISHING).label("finishing"),
            func.count().filter(_IS_LONG).label("long"),
        )
        .where(IS_RUNNING)
        .subquery("leased")
        .c
    )
    numbers = {
        "running": counted.running,
        "stuck": counted.ended + counted.silent,
        "silent": counted.silent,
        "finishing": counted.finishing,
        "long": counted.long,
    }
    columns: list[Column] = [func.least(n, cap, type_=BigInteger).label(name) for name, n in numbers.items()]
    return select(*columns)


MOST_REFUSED = 50
# The count stops there: after a long outage nobody needs it exact.
COUNTED_REFUSED = 1000

# Under the names that the SQL of wakeboard.core.leases knows.
_r, _t, _w = job_runs.alias("r"), job_types.alias("t"), workers.alias("w")
_held = _r.outerjoin(_t, _t.c.name == _r.c.job_type).outerjoin(_w, _w.c.id == _r.c.locked_by)
_is_running = _r.c.status == literal(Status.RUNNING.value, literal_execute=True)
_moment = TIMESTAMP(timezone=True)

rank = literal_column(f"({leases.RANK})", Integer).label("rank")
_standing = (
    _r.c.locked_by,
    _r.c.locked_until,
    _r.c.cancel_requested_at,
    _w.c.name.label("worker_name"),
    _w.c.hostname.label("worker_hostname"),
    _w.c.pid.label("worker_pid"),
    _w.c.seen_at.label("worker_seen_at"),
    literal_column(leases.SECONDS, Double).label("lease_seconds"),
    literal_column(leases.RENEWED_AT, _moment).label("renewed_at"),
    literal_column(leases.TAKEOVER_AT, _moment).label("takeover_at"),
    literal_column(leases.TAKERS, Integer).label("takers"),
    rank,
)


def list_leases(connection: Connection, filters: Filters) -> Rows:
    """Return running runs, those in danger first, then the longest running.

    Rows carry id, job_type, attempts, lease_epoch, started_at, and how the lease stands: see ``standing``.
    """
    statement: Statement = (
        select(_r.c.id, _r.c.job_type, _r.c.attempts, _r.c.lease_epoch, _r.c.started_at, *_standing)
        .select_from(_held)
        .where(_is_running)
    )
    if wanted := filters.get("state"):
        ranks = [leases.NAMES.index(state) for state in wanted]
        statement = statement.where(any_(literal(ranks, ARRAY(Integer))) == rank.element)
    if job_type := filters.get("type"):
        statement = statement.where(_r.c.job_type == job_type)
    if worker := filters.get("worker"):
        statement = statement.where(_r.c.locked_by == worker)
    # What runs has a start, by a CHECK; those are few, so that no index needs to have the order.
    return read_page(connection, statement, [rank, _r.c.started_at, _r.c.id], filters, ascending=True)


_OF_RUN = select(*_standing).select_from(_held).where(_r.c.id == bindparam("run_id"), _is_running)


def find_lease(connection: Connection, run_id: int) -> RowMapping | None:
    """Return how the lease of run ``run_id`` stands, None when it does not run.

    locked_by, locked_until, cancel_requested_at, worker_name/hostname/pid/seen_at, lease_seconds (how long a
    renewal holds), renewed_at, takeover_at (when another worker will have looked), takers (how many others
    are alive) and rank (an index of wakeboard.core.leases.STATES).
    """
    return connection.execute(_OF_RUN, {"run_id": run_id}).mappings().one_or_none()


_lately = job_attempts.c.refused_at > func.now() - text("interval '24 hours'")


def list_refused(connection: Connection) -> list[RowMapping]:
    """Return late answers that were refused in 24 h, newest first, at most MOST_REFUSED.

    run_id, attempt, lease_epoch, job_type, worker_id, worker_name, finished_at (when the lease was found
    ended), refused_at, refused_outcome.
    """
    rows = job_attempts.c
    statement = (
        select(
            rows.run_id, rows.attempt, rows.lease_epoch, rows.job_type, rows.worker_id, rows.finished_at,
            rows.refused_at, rows.refused_outcome, workers.c.name.label("worker_name"),
        )
        .outerjoin(workers, workers.c.id == rows.worker_id)
        .where(_lately)
        .order_by(rows.refused_at.desc(), rows.run_id.desc())
        .limit(MOST_REFUSED)
    )  # fmt: skip
    return list(connection.execute(statement).mappings().all())


def count_refused(connection: Connection, most: int = COUNTED_REFUSED) -> int:
    """Return how many late answers were refused in 24 h, at most ``most`` + 1."""
    capped = select(job_attempts.c.run_id).where(_lately).limit(most + 1).subquery()
    return int(connection.execute(select(func.count()).select_from(capped)).scalar_one())
