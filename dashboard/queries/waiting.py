"""Why a run that waits is not running: what stands between it and a worker, from the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, any_, func, literal, select, tuple_

from dashboard.queries.overview import ALIVE
from worker.states import CLAIMABLE, Status
from worker.tables import job_runs, workers

# Counting stops here; the page says "1 000+".
CAP = 1000
_claimable = job_runs.c.status.in_([literal(status.value, literal_execute=True) for status in CLAIMABLE])


@dataclass(frozen=True, slots=True)
class Obstacles:
    """What a due run waits for.

    ``running`` runs of its type now, ``ahead`` due runs of its type that are claimed first (both at most
    CAP + 1), ``workers`` alive that run its type and take work, their ``slots``, how many are ``busy``,
    ``others`` alive workers of any type.
    """

    running: int
    ahead: int
    workers: int
    slots: int
    busy: int
    others: int


def obstacles(connection: Connection, run: RowMapping) -> Obstacles:
    """Return what stands in the way of ``run`` (a row of ``queries.run.one``)."""
    takes = and_(
        ALIVE,
        workers.c.stopping_at.is_(None),
        workers.c.stop_requested_at.is_(None),
        workers.c.drain_requested_at.is_(None),
    )
    mine = and_(takes, literal(run["job_type"]) == any_(workers.c.job_types))
    counts: Any = select(
        func.count().filter(mine),
        func.coalesce(func.sum(workers.c.concurrency).filter(mine), 0),
        func.coalesce(func.sum(workers.c.running).filter(mine), 0),
        func.count(),
    ).where(ALIVE)
    able, slots, busy, others = connection.execute(counts).one()
    return Obstacles(_running(connection, run), _ahead(connection, run), able, int(slots), int(busy), others)


def _running(connection: Connection, run: RowMapping) -> int:
    is_running = job_runs.c.status == literal(Status.RUNNING.value, literal_execute=True)
    return _capped(connection, and_(is_running, job_runs.c.job_type == run["job_type"]))


def _ahead(connection: Connection, run: RowMapping) -> int:
    """Count the due runs of the type that come first: better priority, then due earlier."""
    column = job_runs.c
    here = tuple_(literal(run["priority"]), literal(run["run_at"]), literal(run["id"]))
    before = tuple_(column.priority, column.run_at, column.id) < here
    due = and_(_claimable, column.job_type == run["job_type"], column.run_at <= func.now())
    return _capped(connection, and_(due, before))


def _capped(connection: Connection, condition: Any) -> int:
    found = select(literal(1)).where(condition).limit(CAP + 1).subquery()
    return int(connection.execute(select(func.count()).select_from(found)).scalar_one())
