"""What the page of leases asks: which runs are running, who holds them and until when."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Integer, case, func, literal, select

from dashboard.params import Filters
from dashboard.queries.keyset import Rows, keyset_page
from dashboard.queries.runs import IS_LEASE_ENDED, IS_SILENT
from worker.states import Status
from worker.tables import job_runs, job_types, workers

# In the order in which they are listed: what needs a person comes first.
STATES = ("ended", "silent", "stopping", "renewed")

# A lease is by default three heartbeats long; only the length of a bar depends on it.
HEARTBEATS_PER_LEASE = 3
DEFAULT_LEASE_SECONDS = 30

runs = job_runs.c
_rank = case(
    (IS_LEASE_ENDED, literal(0, Integer, literal_execute=True)),
    (IS_SILENT, literal(1, Integer, literal_execute=True)),
    (runs.cancel_requested_at.is_not(None), literal(2, Integer, literal_execute=True)),
    else_=literal(3, Integer, literal_execute=True),
).label("rank")


def page(connection: Connection, filters: Filters) -> Rows:
    """Return running runs, those in danger first, then the longest running.

    Rows carry id, job_type, attempts, lease_epoch, locked_by, locked_until, started_at, cancel_requested_at,
    worker_name, worker_hostname, worker_pid, worker_seen_at, lease_seconds (how long a renewal holds, about)
    and rank (an index of STATES).
    """
    statement: Any = (
        select(
            runs.id,
            runs.job_type,
            runs.attempts,
            runs.lease_epoch,
            runs.locked_by,
            runs.locked_until,
            runs.started_at,
            runs.cancel_requested_at,
            workers.c.name.label("worker_name"),
            workers.c.hostname.label("worker_hostname"),
            workers.c.pid.label("worker_pid"),
            workers.c.seen_at.label("worker_seen_at"),
            func.coalesce(
                job_types.c.lease_seconds,
                HEARTBEATS_PER_LEASE * workers.c.heartbeat_seconds,
                DEFAULT_LEASE_SECONDS,
            ).label("lease_seconds"),
            _rank,
        )
        .select_from(job_runs)
        .outerjoin(job_types, job_types.c.name == runs.job_type)
        .outerjoin(workers, workers.c.id == runs.locked_by)
        .where(runs.status == literal(Status.RUNNING.value, literal_execute=True))
    )
    if wanted := filters.get("state"):
        statement = statement.where(_rank.in_([STATES.index(state) for state in wanted]))
    if job_type := filters.get("type"):
        statement = statement.where(runs.job_type == job_type)
    if worker := filters.get("worker"):
        statement = statement.where(runs.locked_by == worker)
    return keyset_page(connection, statement, [_rank, runs.id], filters, ascending=True)
