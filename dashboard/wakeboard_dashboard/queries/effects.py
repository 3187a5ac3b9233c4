"""Reads effects that were begun and never confirmed."""

from __future__ import annotations

from sqlalchemy import Boolean, Connection, RowMapping, literal_column, select

from wakeboard.database.tables import effects, job_runs
from wakeboard.queue import effect_store
from wakeboard_dashboard.queries.keyset import Rows, read_page
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.statements import Statement

runs = job_runs.c
IS_UNCONFIRMED = literal_column(effect_store.is_unconfirmed(str(effects)), Boolean())


def list_effects(connection: Connection, filters: Filters) -> Rows:
    """Return a page of effects begun by attempts that no longer run, newest first.

    Rows have id, scope, key, run_id, attempt, lease_epoch, status, created_at, and of the run (NULL where it
    is gone) job_type and run_status.
    """
    columns = effects.c
    statement: Statement = (
        select(
            columns.id,
            columns.scope,
            columns.key,
            columns.run_id,
            columns.attempt,
            columns.lease_epoch,
            columns.status,
            columns.created_at,
            runs.job_type,
            runs.status.label("run_status"),
        )
        .select_from(effects)
        .outerjoin(job_runs, runs.id == columns.run_id)
        .where(IS_UNCONFIRMED)
    )
    if key := filters.get("key"):
        statement = statement.where(columns.key.icontains(key, autoescape=True))
    if job_type := filters.get("type"):
        statement = statement.where(runs.job_type == job_type)
    if run_id := filters.get("run"):
        statement = statement.where(columns.run_id == run_id)
    return read_page(connection, statement, [columns.created_at, columns.id], filters)


def find_effect(connection: Connection, effect_id: int) -> RowMapping | None:
    """Return the effect ``effect_id``, None when it is gone."""
    statement = select(effects).where(effects.c.id == effect_id)
    return connection.execute(statement).mappings().one_or_none()
