"""What the page of one job type asks: who runs it, what makes it, how its latest runs and failures went."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, RowMapping, any_, func, literal, select

from dashboard.queries.overview import ALIVE
from dashboard.queries.types import NEWEST
from worker.states import FAILURES
from worker.tables import audit_log, job_attempts, job_definitions, job_runs, workers

LATEST = 10
MOST_SHOWN = 50

runs = job_runs.c


def workers_of(connection: Connection, name: str) -> list[RowMapping]:
    """Return the live workers that can run a type, the busiest first, at most MOST_SHOWN."""
    here = workers.c
    statement = (
        select(here.id, here.name, here.hostname, here.pid, here.concurrency, here.running, here.seen_at,
               here.drain_requested_at, here.stop_requested_at, here.stopping_at)
        .where(ALIVE, literal(name) == any_(here.job_types))
        .order_by(here.running.desc(), here.id)
        .limit(MOST_SHOWN)
    )  # fmt: skip
    return list(connection.execute(statement).mappings())


def schedules_of(connection: Connection, name: str) -> list[RowMapping]:
    """Return the schedules that make runs of a type, by name, at most MOST_SHOWN."""
    here = job_definitions.c
    statement = (
        select(here.name, here.schedule, here.timezone, here.enabled, here.error, here.next_fire_at)
        .where(here.job_type == name)
        .order_by(here.name)
        .limit(MOST_SHOWN)
    )
    return list(connection.execute(statement).mappings())


def latest_runs(connection: Connection, name: str) -> list[RowMapping]:
    """Return the LATEST runs of a type, the newest first: what a table of runs shows."""
    # The range of one value and the order leave the planner one way: job_runs_by_type.
    statement = (
        select(runs.id, runs.status, runs.attempts, runs.started_at, runs.finished_at, runs.failed_at,
               runs.run_at, runs.error_code, runs.last_error)
        .where(runs.job_type.between(name, name))
        .order_by(runs.job_type.desc(), runs.id.desc())
        .limit(LATEST)
    )  # fmt: skip
    return list(connection.execute(statement).mappings())


def failures_of(connection: Connection, name: str) -> list[RowMapping]:
    """Return the latest failed attempts of a type among the NEWEST of all types, by code: how many, the last.

    error_code, attempts, finished_at and run_id of the last one; the most frequent first.
    """
    attempts = job_attempts.c
    outcomes = [literal(outcome.value, literal_execute=True) for outcome in FAILURES]
    newest = (
        select(attempts.job_type, attempts.run_id, attempts.error_code, attempts.finished_at)
        .where(attempts.outcome.in_(outcomes))
        .order_by(attempts.finished_at.desc())
        .limit(NEWEST)
    ).subquery()
    last = func.max(newest.c.finished_at)
    statement: Any = (
        select(
            newest.c.error_code,
            func.count().label("attempts"),
            last.label("finished_at"),
            func.max(newest.c.run_id).label("run_id"),
        )
        .where(newest.c.job_type == name)
        .group_by(newest.c.error_code)
        .order_by(func.count().desc(), last.desc())
        .limit(LATEST)
    )
    return list(connection.execute(statement).mappings())


def audit_of(connection: Connection, kind: str, name: str) -> list[RowMapping]:
    """Return what was done to the thing ``name`` of a kind ('type', 'worker'), newest first, at most 20."""
    rows = audit_log.c
    statement = (
        select(audit_log)
        .where(rows.target_type == kind, rows.target_id == name)
        .order_by(rows.id.desc())
        .limit(2 * LATEST)
    )
    return list(connection.execute(statement).mappings())
