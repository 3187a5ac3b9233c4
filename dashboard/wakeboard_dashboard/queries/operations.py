"""Reads operations and the runs that they move."""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, and_, exists, select

from wakeboard.database.tables import job_runs, operation_runs, operations, workers
from wakeboard_dashboard.queries.keyset import Rows, read_page
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.statements import Statement
from wakeboard_dashboard.queries.workers import IS_HEARD

columns = operations.c
moved = operation_runs.c
# The condition of each word of the filter ``result``.
RESULTS = {
    "waiting": moved.result.is_(None),
    "moved": moved.result.in_(("moved", "asked")),
    "skipped": moved.result == "skipped",
    "succeeded": moved.outcome == "succeeded",
    "failed": moved.outcome == "failed",
}


def list_operations(connection: Connection, filters: Filters) -> Rows:
    """Return a page of operations, newest first."""
    statement = select(operations)
    plain = {"status": columns.status, "verb": columns.verb, "who": columns.actor}
    for name, column in plain.items():
        if value := filters.get(name):
            statement = statement.where(column == value)
    return read_page(connection, statement, [columns.id], filters)


def find_operation(connection: Connection, operation_id: int) -> RowMapping | None:
    """Return an operation, None when there is none."""
    return connection.execute(select(operations).where(columns.id == operation_id)).mappings().one_or_none()


def list_runs(connection: Connection, operation_id: int, filters: Filters) -> Rows:
    """Return a page of the runs of an operation, in the order in which they are moved: oldest first.

    Rows have run_id, result, why, outcome, watched_run_id, handled_at, and of the run (NULL where it is
    gone) status and job_type.
    """
    statement: Statement = (
        select(
            moved.run_id,
            moved.result,
            moved.why,
            moved.outcome,
            moved.watched_run_id,
            moved.handled_at,
            job_runs.c.status,
            job_runs.c.job_type,
        )
        .select_from(operation_runs)
        .outerjoin(job_runs, job_runs.c.id == moved.run_id)
        .where(moved.operation_id == operation_id)
    )
    if result := filters.get("result"):
        statement = statement.where(and_(RESULTS[result]))
    return read_page(connection, statement, [moved.run_id], filters, ascending=True)


def has_live_worker(connection: Connection) -> bool:
    """Return whether any worker is alive to move runs."""
    return bool(connection.execute(select(exists().select_from(workers).where(IS_HEARD))).scalar_one())
