"""What the pages of workers ask of single workers: what each runs now, and how its last attempts ended.

Attempts have no index by worker: the newest of all are looked at, and the page says so.
"""

from __future__ import annotations

from sqlalchemy import (
    Connection,
    RowMapping,
    bindparam,
    select,
    text,
)

from wakeboard.core.states import FAILURES, sql_list
from wakeboard.database.tables import job_runs, loops, workers
from wakeboard.reporting.filters.search import IS_RUNNING
from wakeboard_dashboard.queries.workers import MOST_RUNNING, rank

# Of the newest attempts of all workers, so many are looked at for those of one.
NEWEST = 5000
ENDS = 20

runs = job_runs.c


def one(connection: Connection, worker_id: str) -> RowMapping | None:
    """Return the worker ``worker_id`` with its rank, an index of ``workers.STATES``; None if unknown."""
    statement = select(workers, rank).where(workers.c.id == worker_id)
    return connection.execute(statement).mappings().one_or_none()


# Ordered by the index of what runs, so that nothing else is read.
_RUNNING = (
    select(runs.id, runs.locked_by, runs.job_type, runs.attempts, runs.started_at, runs.locked_until,
           runs.cancel_requested_at, runs.progress_done, runs.progress_total)
    .where(IS_RUNNING, runs.locked_by == bindparam("worker"))
    .order_by(runs.job_type, runs.locked_until)
    .limit(MOST_RUNNING)
)  # fmt: skip


def running(connection: Connection, worker_id: str) -> list[RowMapping]:
    """Return what a worker runs now, the longest first, at most MOST_RUNNING.

    id, locked_by, job_type, attempts, started_at, locked_until, cancel_requested_at, progress_done,
    progress_total.
    """
    rows = connection.execute(_RUNNING, {"worker": worker_id}).mappings()
    return sorted(rows, key=lambda row: (row["started_at"], row["id"]))


# Failed ones come in the order of the page, so that nothing is read behind the first ENDS of this worker.
_ENDS = text(f"""
SELECT a.run_id, a.attempt, a.lease_epoch, a.job_type, a.started_at, a.finished_at, a.outcome, a.error_code,
    a.error, a.refused_at, a.refused_outcome
FROM (
    SELECT run_id, lease_epoch FROM (
        SELECT run_id, lease_epoch, finished_at FROM (
            SELECT run_id, lease_epoch, worker_id, finished_at FROM wakeboard.job_attempts
            ORDER BY run_id DESC, lease_epoch DESC LIMIT :newest
        ) AS newest WHERE worker_id = :worker
        UNION
        (SELECT run_id, lease_epoch, finished_at FROM (
            SELECT run_id, lease_epoch, worker_id, finished_at FROM wakeboard.job_attempts
            WHERE outcome IN ({sql_list(FAILURES)}) ORDER BY finished_at DESC LIMIT :newest
        ) AS failed WHERE worker_id = :worker ORDER BY finished_at DESC FETCH FIRST :most ROWS WITH TIES)
    ) AS found ORDER BY finished_at DESC, run_id DESC LIMIT :most
) AS last JOIN wakeboard.job_attempts AS a USING (run_id, lease_epoch)
ORDER BY a.finished_at DESC, a.run_id DESC
""")


def ends(connection: Connection, worker_id: str) -> list[RowMapping]:
    """Return the last ENDS attempts of a worker, among the NEWEST of all and the NEWEST failed ones."""
    values = {"worker": worker_id, "newest": NEWEST, "most": ENDS}
    return list(connection.execute(_ENDS, values).mappings().all())


def loops_of(connection: Connection, worker_id: str) -> list[RowMapping]:
    """Return the background duties of a worker: name, interval_seconds, last_success_at, last_error(_at)."""
    here = loops.c
    statement = (
        select(here.name, here.interval_seconds, here.last_success_at, here.last_error, here.last_error_at)
        .where(here.process_id == worker_id)
        .order_by(here.name)
    )
    return list(connection.execute(statement).mappings().all())
