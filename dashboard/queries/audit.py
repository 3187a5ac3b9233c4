"""What the page of the audit log asks: who did what to which thing, newest first."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, func, select, text

from dashboard.params import Filters
from dashboard.queries.keyset import Rows, keyset_page
from worker.tables import audit_log

# The pill says "100+ new" past this.
MOST_NEW = 100
# A row's time is when its transaction began, its id is given later: ids may run ahead by this much.
ID_SLACK = timedelta(minutes=10)

columns = audit_log.c

# The largest id so that it and all before it are older than :moment, found by halving: ``at`` has no index
# of its own, but grows with the id.
_LAST_BEFORE = text("""
WITH RECURSIVE search (low, high) AS (
    SELECT greatest(min(id), 1) - 1, max(id) FROM wakeboard.audit_log
    UNION ALL
    SELECT CASE WHEN probe.at < :moment THEN probe.id ELSE low END,
        CASE WHEN probe.at < :moment THEN high ELSE low + (high - low + 1) / 2 - 1 END
    FROM search CROSS JOIN LATERAL (
        SELECT a.id, a.at FROM wakeboard.audit_log AS a
        WHERE a.id >= low + (high - low + 1) / 2 ORDER BY a.id LIMIT 1
    ) AS probe
    WHERE low < high
)
SELECT low FROM search WHERE low >= high
""")


def page(connection: Connection, filters: Filters, now: datetime) -> Rows:
    """Return rows of audit_log, newest first."""
    return keyset_page(connection, _matching(connection, filters, now), [columns.id], filters)


def newcomers(connection: Connection, filters: Filters, now: datetime, after: int) -> int:
    """Return how many matching rows came after the row ``after``, at most MOST_NEW + 1."""
    found = _matching(connection, filters, now).where(columns.id > after).limit(MOST_NEW + 1)
    return int(connection.execute(select(func.count()).select_from(found.subquery())).scalar_one())


def newest(connection: Connection) -> int:
    """Return the id of the newest row, 0 when there is none."""
    return int(connection.execute(select(func.coalesce(func.max(columns.id), 0))).scalar_one())


def actions(connection: Connection) -> list[str]:
    """Return the actions among the newest rows, by name."""
    newest_rows = select(columns.action).order_by(columns.id.desc()).limit(5000).subquery()
    return list(connection.execute(select(newest_rows.c.action).distinct().order_by("action")).scalars())


def _matching(connection: Connection, filters: Filters, now: datetime) -> Select[Any]:
    statement = select(audit_log)
    plain = {"who": columns.actor, "what": columns.action, "result": columns.result}
    for name, column in plain.items():
        if value := filters.get(name):
            statement = statement.where(column == value)
    if target := filters.get("target"):
        kind, target_id = target
        statement = statement.where(columns.target_type == kind)
        if target_id is not None:
            statement = statement.where(columns.target_id == target_id)
    if since := filters.get("since"):
        moment = since.at(now)
        statement = statement.where(
            columns.at >= moment, columns.id > _last_before(connection, moment - ID_SLACK)
        )
    if until := filters.get("until"):
        moment = until.at(now)
        statement = statement.where(
            columns.at < moment, columns.id <= _last_before(connection, moment + ID_SLACK)
        )
    return statement


def _last_before(connection: Connection, moment: datetime) -> int:
    return connection.execute(_LAST_BEFORE, {"moment": moment}).scalar_one_or_none() or 0
