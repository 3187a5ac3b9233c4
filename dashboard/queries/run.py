"""What the page of one run asks: the run, its attempts, what it prints now, its relatives, its audit."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, RowMapping, func, select

from dashboard.queries.runs import IS_LEASE_ENDED, IS_SILENT, MOST_ATTEMPTS
from worker.tables import (
    audit_log,
    effects,
    job_attempts,
    job_definitions,
    job_runs,
    job_types,
    run_output,
    workers,
)

MOST_SHOWN = 50
DEFAULT_BACKOFF = "exponential 10s cap 30m"
DEFAULT_TIMEOUT_SECONDS = 300

runs = job_runs.c


def one(connection: Connection, run_id: int) -> RowMapping | None:
    """Return run ``run_id`` or None.

    Columns of job_runs, and: most_attempts, timeout (seconds in force), backoff, definition (its name),
    paused_at/by/reason and most_running of its type, is_type_known, worker_* of who holds it,
    is_lease_ended, is_silent.
    """
    types, definitions = job_types.c, job_definitions.c
    statement = (
        select(
            job_runs,
            MOST_ATTEMPTS.label("most_attempts"),
            func.coalesce(runs.timeout_seconds, types.timeout_seconds, DEFAULT_TIMEOUT_SECONDS).label(
                "timeout"
            ),
            func.coalesce(types.backoff, DEFAULT_BACKOFF).label("backoff"),
            func.coalesce(types.max_running_operator, types.max_running).label("most_running"),
            types.name.is_not(None).label("is_type_known"),
            types.paused_at,
            types.paused_by,
            types.paused_reason,
            definitions.name.label("definition"),
            workers.c.name.label("worker_name"),
            workers.c.hostname.label("worker_hostname"),
            workers.c.seen_at.label("worker_seen_at"),
            IS_LEASE_ENDED.label("is_lease_ended"),
            IS_SILENT.label("is_silent"),
        )
        .select_from(job_runs)
        .outerjoin(job_types, types.name == runs.job_type)
        .outerjoin(job_definitions, definitions.id == runs.definition_id)
        .outerjoin(workers, workers.c.id == runs.locked_by)
        .where(runs.id == run_id)
    )
    return connection.execute(statement).mappings().one_or_none()


def attempts(connection: Connection, run_id: int) -> list[RowMapping]:
    """Return the newest ended attempts of a run, newest first, at most MOST_SHOWN, with worker_name."""
    statement = (
        select(job_attempts, workers.c.name.label("worker_name"))
        .outerjoin(workers, workers.c.id == job_attempts.c.worker_id)
        .where(job_attempts.c.run_id == run_id)
        .order_by(job_attempts.c.lease_epoch.desc())
        .limit(MOST_SHOWN)
    )
    return list(connection.execute(statement).mappings())


def output(connection: Connection, run_id: int, lease_epoch: int) -> str | None:
    """Return what the running attempt printed last; None when it has printed nothing."""
    statement = select(run_output.c.tail).where(
        run_output.c.run_id == run_id, run_output.c.lease_epoch == lease_epoch
    )
    return connection.execute(statement).scalar_one_or_none()


def audit(connection: Connection, run_id: int) -> list[RowMapping]:
    """Return what people asked of this run, newest first, at most MOST_SHOWN."""
    rows = audit_log.c
    statement = (
        select(audit_log)
        .where(rows.target_type == "run", rows.target_id == str(run_id))
        .order_by(rows.id.desc())
        .limit(MOST_SHOWN)
    )
    return list(connection.execute(statement).mappings())


def descendants(connection: Connection, run_id: int) -> list[Any]:
    """Return the ids of runs made from this one by "run again", oldest first."""
    runs = job_runs.c
    statement = select(runs.id).where(runs.origin_run_id == run_id).order_by(runs.id).limit(MOST_SHOWN)
    return list(connection.execute(statement).scalars())


def effects_of(connection: Connection, run_id: int) -> list[RowMapping]:
    """Return the ledger's rows of this run: what its attempts did once."""
    statement = (
        select(effects).where(effects.c.run_id == run_id).order_by(effects.c.id.desc()).limit(MOST_SHOWN)
    )
    return list(connection.execute(statement).mappings())
