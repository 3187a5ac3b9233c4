"""Reads workers: their rows, what they run now, their last attempts and duties.

Attempts have no index by worker: the newest of all are read, and the page says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    Boolean,
    Connection,
    Integer,
    RowMapping,
    bindparam,
    literal_column,
    or_,
    select,
    text,
)

from wakeboard.core import leases
from wakeboard.core.states import FAILURES, Status, sql_list
from wakeboard.database.tables import job_runs, loops, workers
from wakeboard.reporting import worker_states
from wakeboard.reporting.filters.search import IS_RUNNING
from wakeboard_dashboard.queries.keyset import Rows, read_page
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.statements import Statement

STATES = worker_states.NAMES
MOST_RUNNING = 1000
# Of the runs of a worker so many have a link of their own.
MOST_NAMED = 3

columns = workers.c
rank = literal_column(worker_states.rank(str(workers)), Integer()).label("rank")
# IS_DRAINING is false of a worker that stops as well.
IS_HEARD, IS_CLAIMING, IS_LEAVING, IS_DRAINING, _IS_RECENT = (
    literal_column(condition(str(workers)), Boolean())
    for condition in (
        leases.is_alive,
        worker_states.is_claiming,
        worker_states.is_leaving,
        worker_states.is_draining,
        worker_states.is_recent,
    )
)

# Of the type that is bound as ``type``.
RUNS_TYPE = text(worker_states.runs_type(str(workers), ":type"))


def list_workers(connection: Connection, filters: Filters) -> Rows:
    """Return a page of workers, silent ones first: the columns of workers and rank, an index of STATES.

    Without a filter by state, workers that stopped a while ago are left out.
    """
    statement: Statement = select(workers, rank)
    if wanted := filters.get("state"):
        statement = statement.where(rank.in_([STATES.index(state) for state in wanted]))
    else:
        statement = statement.where(_IS_RECENT)
    if words := filters.get("q"):
        named = (columns.id, columns.name, columns.hostname)
        statement = statement.where(or_(*(each.icontains(words, autoescape=True) for each in named)))
    if job_type := filters.get("type"):
        statement = statement.where(RUNS_TYPE.bindparams(type=job_type))
    return read_page(connection, statement, [rank, columns.id], filters, ascending=True)


# The inner limit is in the order of the index of running runs, so nothing else is read.
_RUNNING = text(f"""
SELECT locked_by, array_agg(id ORDER BY started_at, id) AS ids,
    (array_agg(job_type ORDER BY started_at, id))[1 \\: {MOST_NAMED}] AS job_types
FROM (
    SELECT r.locked_by, r.id, r.job_type, r.started_at FROM wakeboard.job_runs AS r
    WHERE r.status = '{Status.RUNNING.value}' AND r.locked_by = ANY (CAST(:ids AS text[]))
    ORDER BY r.job_type, r.locked_until LIMIT {MOST_RUNNING + 1}
) AS running
GROUP BY locked_by
""")


@dataclass(frozen=True, slots=True)
class WorkerRuns:
    """The runs of a worker, the longest first: the ``ids`` of all, the types of the first MOST_NAMED.

    ``is_cut``: not all runs were read, the worker may run others.
    """

    ids: Sequence[int] = ()
    job_types: Sequence[str] = ()
    is_cut: bool = False

    @property
    def first(self) -> list[tuple[int, str]]:
        """(id, type) of the first MOST_NAMED."""
        return list(zip(self.ids, self.job_types, strict=False))


def read_running(connection: Connection, ids: Sequence[str]) -> Mapping[str, WorkerRuns]:
    """Return the runs of each of the workers ``ids``, MOST_RUNNING + 1 at most in all."""
    rows = connection.execute(_RUNNING, {"ids": list(ids)}).all() if ids else []
    is_cut = sum([len(row.ids) for row in rows]) > MOST_RUNNING
    by_worker = {row.locked_by: WorkerRuns(row.ids, row.job_types, is_cut) for row in rows}
    return {worker_id: by_worker.get(worker_id) or WorkerRuns(is_cut=is_cut) for worker_id in ids}


_VERSIONS = select(columns.version).distinct().where(IS_HEARD, columns.version.is_not(None))


def list_versions(connection: Connection) -> list[str]:
    """Return the versions that live workers run."""
    return sorted(connection.execute(_VERSIONS).scalars())


# The attempts of a worker are looked for among so many of the newest of all workers.
NEWEST = 5000
MOST_ATTEMPTS = 20

runs = job_runs.c


def find_worker(connection: Connection, worker_id: str) -> RowMapping | None:
    """Return the worker ``worker_id`` with its rank, an index of STATES; None when there is none."""
    statement = select(workers, rank).where(workers.c.id == worker_id)
    return connection.execute(statement).mappings().one_or_none()


# The order is that of the index of running runs, so nothing else is read.
_RUNS_OF_WORKER = (
    select(runs.id, runs.locked_by, runs.job_type, runs.attempts, runs.started_at, runs.locked_until,
           runs.cancel_requested_at, runs.progress_done, runs.progress_total)
    .where(IS_RUNNING, runs.locked_by == bindparam("worker"))
    .order_by(runs.job_type, runs.locked_until)
    .limit(MOST_RUNNING)
)  # fmt: skip


def list_runs(connection: Connection, worker_id: str) -> list[RowMapping]:
    """Return the runs that a worker runs now, the longest first, at most MOST_RUNNING.

    Columns: id, locked_by, job_type, attempts, started_at, locked_until, cancel_requested_at, progress_done,
    progress_total.
    """
    rows = connection.execute(_RUNS_OF_WORKER, {"worker": worker_id}).mappings()
    return sorted(rows, key=lambda row: (row["started_at"], row["id"]))


# Failed ones are in the order of the page, so nothing is read behind the first MOST_ATTEMPTS of the worker.
_LAST_ATTEMPTS = text(f"""
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
    ) AS newest ORDER BY finished_at DESC, run_id DESC LIMIT :most
) AS last JOIN wakeboard.job_attempts AS a USING (run_id, lease_epoch)
ORDER BY a.finished_at DESC, a.run_id DESC
""")


def list_attempts(connection: Connection, worker_id: str) -> list[RowMapping]:
    """Return the last MOST_ATTEMPTS attempts of a worker, of the NEWEST of all and the NEWEST failed ones."""
    values = {"worker": worker_id, "newest": NEWEST, "most": MOST_ATTEMPTS}
    return list(connection.execute(_LAST_ATTEMPTS, values).mappings())


def list_loops(connection: Connection, worker_id: str) -> list[RowMapping]:
    """Return the duties of a worker by name: name, interval_seconds, last_success_at, last_error(_at)."""
    duties = loops.c
    statement = (
        select(
            duties.name,
            duties.interval_seconds,
            duties.last_success_at,
            duties.last_error,
            duties.last_error_at,
        )
        .where(duties.process_id == worker_id)
        .order_by(duties.name)
    )
    return list(connection.execute(statement).mappings())
