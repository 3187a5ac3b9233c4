"""Reads the audit log: pages of its rows, the last action on each thing, and the values that filters offer.

``wakeboard.reporting.filters.audit`` makes the conditions of the filters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, RowMapping, bindparam, func, select, text

from wakeboard.database.tables import audit_log
from wakeboard.reporting.filters.audit import search as make_search
from wakeboard.reporting.filters.search import Search, Start
from wakeboard_dashboard.queries.keyset import Rows, add_search_ends, read_page, read_start
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.runs import SECRET_IN_TEXT

# The pill says "100+ new" past this.
MOST_NEW = 100
# Filters offer values of the newest rows. Older values work in an address.
RECENT = 5000
MOST_ACTORS = 200
MOST_TARGETS = 50
MOST_OF_ONE = 20

columns = audit_log.c
_NEWEST = select(func.coalesce(func.max(columns.id), 0))


def _distinct(column: str, most: int) -> str:
    """Return the SQL of the first ``most`` values of ``column``: one hop in its index for each value."""
    return f"""
WITH RECURSIVE each (value, n) AS (
    (SELECT {column}, 1 FROM wakeboard.audit_log ORDER BY {column} LIMIT 1)
    UNION ALL
    SELECT (SELECT a.{column} FROM wakeboard.audit_log AS a WHERE a.{column} > each.value
        ORDER BY a.{column} LIMIT 1), n + 1
    FROM each WHERE value IS NOT NULL AND n < {most}
)
SELECT value FROM each WHERE value IS NOT NULL ORDER BY value
"""


_ACTIONS = _distinct("action", 200)
_KINDS = _distinct("target_type", 100)
# The name of a failed sign-in is offered only where an account has it.
_ACTORS = f"""
SELECT name FROM (
    SELECT DISTINCT actor AS name FROM (
        SELECT actor, action, result FROM wakeboard.audit_log ORDER BY id DESC LIMIT {RECENT}
    ) AS recent
    WHERE result = 'done' OR NOT starts_with(action, 'login')
    UNION SELECT name FROM wakeboard.users
) AS actors
ORDER BY name LIMIT {MOST_ACTORS}
"""
_TARGETS = f"""
SELECT target_type || ':' || target_id FROM (
    SELECT target_type, target_id, max(id) AS id FROM (
        SELECT target_type, target_id, id FROM wakeboard.audit_log ORDER BY id DESC LIMIT 500
    ) AS recent
    WHERE target_id IS NOT NULL AND target_type <> 'page' GROUP BY 1, 2
) AS target
ORDER BY id DESC LIMIT {MOST_TARGETS}
"""


def list_entries(
    connection: Connection, filters: Filters, now: datetime, *, sees_secrets: bool
) -> tuple[Rows, bool]:
    """Return a page of audit_log, newest first, and whether the search ended before its last row.

    Without ``sees_secrets`` a search for text skips reasons with secrets. Raises FilterError.
    """
    start = read_start(filters)
    search = _make_search(filters, now, start, sees_secrets=sees_secrets)
    rows = read_page(connection, search.statement, [search.id], filters)
    if search.end is None:
        return rows, False
    last: int | None = connection.execute(search.end).scalar_one_or_none()
    return add_search_ends(rows, last, start), last is not None and len(rows.items) < filters.limit


def count_newer(
    connection: Connection, filters: Filters, now: datetime, after: int, *, sees_secrets: bool
) -> int:
    """Return how many matching rows are newer than the row ``after``, at most MOST_NEW + 1."""
    search = _make_search(filters, now, Start(after, newer=True), sees_secrets=sees_secrets)
    capped = search.statement.where(search.id > after).order_by(search.id.desc()).limit(MOST_NEW + 1)
    return int(connection.execute(select(func.count()).select_from(capped.subquery())).scalar_one())


_OF_ONE = (
    select(audit_log)
    .where(columns.target_type == bindparam("kind"), columns.target_id == bindparam("name"))
    .order_by(columns.id.desc())
    .limit(bindparam("most"))
)


def list_entries_of(
    connection: Connection, kind: str, name: str, *, most: int = MOST_OF_ONE
) -> list[RowMapping]:
    """Return the rows of the thing ``name`` of a kind ('type', 'worker'), newest first."""
    values = {"kind": kind, "name": name, "most": most}
    return list(connection.execute(_OF_ONE, values).mappings())


def find_newest_id(connection: Connection) -> int:
    """Return the id of the newest row, 0 when there is none."""
    return int(connection.execute(_NEWEST).scalar_one())


def list_actions(connection: Connection) -> list[str]:
    """Return the actions in the log, by name."""
    return list(connection.exec_driver_sql(_ACTIONS).scalars())


def list_target_types(connection: Connection) -> list[str]:
    """Return the kinds of things in the log, by name."""
    return list(connection.exec_driver_sql(_KINDS).scalars())


def list_actors(connection: Connection) -> list[str]:
    """Return the names of accounts and of recent actors, at most MOST_ACTORS."""
    return list(connection.exec_driver_sql(_ACTORS).scalars())


def list_targets(connection: Connection) -> list[str]:
    """Return the recent targets as ``run:48210``, newest first."""
    return list(connection.exec_driver_sql(_TARGETS).scalars())


def _make_search(filters: Filters, now: datetime, start: Start | None, *, sees_secrets: bool) -> Search:
    return make_search(filters, now, start=start, hidden=None if sees_secrets else SECRET_IN_TEXT)


# Of each thing so many of the newest rows are read.
NEWEST_OF_ONE = 200

# The ranges of one value and the order leave the planner one way: audit_log_by_target.
_NEWEST_ACTIONS = """
    FROM (
        SELECT r.action, r.actor, r.at, r.reason, r.id, r.result, r.after, r.target_type, r.target_id
        FROM wakeboard.audit_log AS r
        WHERE r.target_type BETWEEN :kind AND :kind AND r.target_id BETWEEN w.name AND w.name
        ORDER BY r.target_type DESC, r.target_id DESC, r.id DESC LIMIT :newest
    ) AS newest CROSS JOIN LATERAL (
        SELECT CASE WHEN action = 'schedule.edit' AND after ->> 'enabled' = 'false' THEN 'schedule.pause'
            ELSE action END AS verb
    ) AS worded
    WHERE verb = ANY(CAST(:actions AS text[])) AND result IN ('done', 'asked')
"""
_LAST_OF_EACH = text(f"""
SELECT w.name, last.* FROM unnest(CAST(:names AS text[])) AS w (name)
CROSS JOIN LATERAL (
    SELECT DISTINCT ON (verb) verb, actor, at, reason {_NEWEST_ACTIONS} ORDER BY verb, id DESC
) AS last
""")
# For one verb the first row in the order of the index ends the search.
_LAST_OF_ONE = text(f"""
SELECT w.name, last.* FROM unnest(CAST(:names AS text[])) AS w (name)
CROSS JOIN LATERAL (
    SELECT verb, actor, at, reason {_NEWEST_ACTIONS}
    ORDER BY target_type DESC, target_id DESC, id DESC LIMIT 1
) AS last
""")


def find_last_actions(
    connection: Connection, kind: str, names: Sequence[str], actions: Sequence[str]
) -> Mapping[tuple[str, str], RowMapping]:
    """Return by (name, action) the last of ``actions`` on each of the things ``names``: actor, at, reason.

    An edit that switches a schedule off counts as its pause.
    """
    if not names:
        return {}
    values = {"names": list(names), "kind": kind, "actions": list(actions), "newest": NEWEST_OF_ONE}
    statement = _LAST_OF_ONE if len(actions) == 1 else _LAST_OF_EACH
    return {(row["name"], row["verb"]): row for row in connection.execute(statement, values).mappings()}
