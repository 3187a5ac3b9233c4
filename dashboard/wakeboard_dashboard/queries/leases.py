"""Reads running runs with their leases, and late answers that were refused.

One walk over the leases counts all running runs. Under load thousands are claimed, and as many index entries
are of runs that have just ended: a walk for each number would be most of the time of a page.
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
from wakeboard_dashboard.queries.keyset import Rows, read_page
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.statements import Column, Statement

_HAS_ENDED, _IS_SILENT, _IS_STUCK, _IS_FINISHING = (
    literal_column(condition(str(job_runs)), Boolean())
    for condition in (leases.is_ended, leases.is_silent, leases.is_stuck, worker_states.is_finishing)
)
# Only runs older than this can be overlong.
LONG_MINUTES = 10
_IS_LONG = job_runs.c.started_at < func.now() - text(f"interval '{LONG_MINUTES} minutes'")
IS_LEASE_ENDED = and_(IS_RUNNING, _HAS_ENDED)
IS_SILENT = and_(IS_RUNNING, _IS_SILENT)
IS_STUCK = and_(IS_RUNNING, _IS_STUCK)


def select_lease_counts(cap: int) -> Statement:
    """Select one row: how many runs are running, stuck, silent, finishing and long, at most ``cap`` each.

    ``running`` counts all of them. ``silent`` are stuck runs whose leases last: no other worker takes them
    before these end. ``finishing`` runs are not stuck, and their workers drain or stop. ``long`` runs have
    run for over LONG_MINUTES.
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

# The SQL of wakeboard.core.leases names these tables r, t and w.
_r, _t, _w = job_runs.alias("r"), job_types.alias("t"), workers.alias("w")
_leased = _r.outerjoin(_t, _t.c.name == _r.c.job_type).outerjoin(_w, _w.c.id == _r.c.locked_by)
_is_running = _r.c.status == literal(Status.RUNNING.value, literal_execute=True)
_moment = TIMESTAMP(timezone=True)

rank = literal_column(f"({leases.RANK})", Integer).label("rank")
_LEASE_COLUMNS = (
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
    """Return a page of running runs, those in danger first, then the longest running.

    Rows have id, job_type, attempts, lease_epoch, started_at and the columns of ``find_lease``.
    """
    statement: Statement = (
        select(_r.c.id, _r.c.job_type, _r.c.attempts, _r.c.lease_epoch, _r.c.started_at, *_LEASE_COLUMNS)
        .select_from(_leased)
        .where(_is_running)
    )
    if wanted := filters.get("state"):
        ranks = [leases.NAMES.index(state) for state in wanted]
        statement = statement.where(any_(literal(ranks, ARRAY(Integer))) == rank.element)
    if job_type := filters.get("type"):
        statement = statement.where(_r.c.job_type == job_type)
    if worker := filters.get("worker"):
        statement = statement.where(_r.c.locked_by == worker)
    # A CHECK gives running runs a start. They are few, so no index needs to have this order.
    return read_page(connection, statement, [rank, _r.c.started_at, _r.c.id], filters, ascending=True)


_OF_RUN = select(*_LEASE_COLUMNS).select_from(_leased).where(_r.c.id == bindparam("run_id"), _is_running)


def find_lease(connection: Connection, run_id: int) -> RowMapping | None:
    """Return the lease of run ``run_id``, None when it does not run.

    Columns: locked_by, locked_until, cancel_requested_at, worker_name/hostname/pid/seen_at, lease_seconds (of
    a renewal), renewed_at, takeover_at (when another worker will have looked), takers (how many other workers
    are alive) and rank (an index of wakeboard.core.leases.STATES).
    """
    return connection.execute(_OF_RUN, {"run_id": run_id}).mappings().one_or_none()


_lately = job_attempts.c.refused_at > func.now() - text("interval '24 hours'")


def list_refused(connection: Connection) -> list[RowMapping]:
    """Return late answers that were refused in 24 h, newest first, at most MOST_REFUSED.

    Columns: run_id, attempt, lease_epoch, job_type, worker_id, worker_name, finished_at (when the lease was
    found ended), refused_at, refused_outcome.
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
    return list(connection.execute(statement).mappings())


def count_refused(connection: Connection, most: int = COUNTED_REFUSED) -> int:
    """Return how many late answers were refused in 24 h, at most ``most`` + 1."""
    capped = select(job_attempts.c.run_id).where(_lately).limit(most + 1).subquery()
    return int(connection.execute(select(func.count()).select_from(capped)).scalar_one())
