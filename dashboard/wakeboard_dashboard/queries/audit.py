"""What the pages ask of the audit log: who did what to which thing, newest first, and who did so last; what
there is to choose.

Which rows match is ``wakeboard.reporting.filters.audit``'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, RowMapping, bindparam, func, select, text

from wakeboard.database.tables import audit_log
from wakeboard.reporting.filters.audit import search
from wakeboard.reporting.filters.search import Search, Start
from wakeboard_dashboard.queries.keyset import Rows, add_search_ends, read_page, read_start
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.runs import SECRET_IN_TEXT

# The pill says "100+ new" past this.
MOST_NEW = 100
# Choices are of the newest rows: what nobody did for that long is asked for by its address.
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
# A name that somebody typed at the door and that no account has is no choice.
_ACTORS = f"""
SELECT name FROM (
    SELECT DISTINCT actor AS name FROM (
        SELECT actor, action, result FROM wakeboard.audit_log ORDER BY id DESC LIMIT {RECENT}
    ) AS recent
    WHERE result = 'done' OR NOT starts_with(action, 'login')
    UNION SELECT name FROM wakeboard.users
) AS known
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


def list_entries(connection: Connection, filters: Filters, now: datetime, *, sees_secrets: bool) -> tuple[Rows, bool]:
    """Return rows of audit_log, newest first, and whether only some were searched. Raises FilterError.

    Who does not see secrets (``sees_secrets``) finds no reason by its words that has one.
    """
    start = read_start(filters)
    found = _search(filters, now, start, sees_secrets=sees_secrets)
    rows = read_page(connection, found.statement, [found.id], filters)
    if found.end is None:
        return rows, False
    last: int | None = connection.execute(found.end).scalar_one_or_none()
    return add_search_ends(rows, last, start), last is not None and len(rows.items) < filters.limit


def count_newer(
    connection: Connection, filters: Filters, now: datetime, after: int, *, sees_secrets: bool
) -> int:
    """Return how many matching rows came after the row ``after``, at most MOST_NEW + 1."""
    found = _search(filters, now, Start(after, newer=True), sees_secrets=sees_secrets)
    capped = found.statement.where(found.id > after).order_by(found.id.desc()).limit(MOST_NEW + 1)
    return int(connection.execute(select(func.count()).select_from(capped.subquery())).scalar_one())


_OF_ONE = (
    select(audit_log)
    .where(columns.target_type == bindparam("kind"), columns.target_id == bindparam("name"))
    .order_by(columns.id.desc())
    .limit(bindparam("most"))
)


def list_entries_of(connection: Connection, kind: str, name: str, *, most: int = MOST_OF_ONE) -> list[RowMapping]:
    """Return what was done to the thing ``name`` of a kind ('type', 'worker'), newest first."""
    values = {"kind": kind, "name": name, "most": most}
    return list(connection.execute(_OF_ONE, values).mappings().all())


def find_newest_id(connection: Connection) -> int:
    """Return the id of the newest row, 0 when there is none."""
    return int(connection.execute(_NEWEST).scalar_one())


def list_actions(connection: Connection) -> list[str]:
    """Return every action there is, by name."""
    return list(connection.exec_driver_sql(_ACTIONS).scalars().all())


def list_target_types(connection: Connection) -> list[str]:
    """Return every kind of thing that something was done to, by name."""
    return list(connection.exec_driver_sql(_KINDS).scalars().all())


def list_actors(connection: Connection) -> list[str]:
    """Return who has an account or did something lately, by name; at most MOST_ACTORS."""
    return list(connection.exec_driver_sql(_ACTORS).scalars().all())


def list_targets(connection: Connection) -> list[str]:
    """Return what something was done to lately, as ``run:48210``, the newest first."""
    return list(connection.exec_driver_sql(_TARGETS).scalars().all())


def _search(filters: Filters, now: datetime, start: Start | None, *, sees_secrets: bool) -> Search:
    return search(filters, now, start=start, hidden=None if sees_secrets else SECRET_IN_TEXT)


# Of one thing, the newest rows are looked at.
NEWEST_OF_ONE = 200

# The ranges of one value and the order leave the planner one way: audit_log_by_target.
_ASKED = """
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
SELECT w.name, asked.* FROM unnest(CAST(:names AS text[])) AS w (name)
CROSS JOIN LATERAL (
    SELECT DISTINCT ON (verb) verb, actor, at, reason {_ASKED} ORDER BY verb, id DESC
) AS asked
""")
# Of one verb the newest row is all there is to find: in the order in which rows come no other is read.
_LAST_OF_ONE = text(f"""
SELECT w.name, asked.* FROM unnest(CAST(:names AS text[])) AS w (name)
CROSS JOIN LATERAL (
    SELECT verb, actor, at, reason {_ASKED} ORDER BY target_type DESC, target_id DESC, id DESC LIMIT 1
) AS asked
""")


def find_last_actions(
    connection: Connection, kind: str, names: Sequence[str], actions: Sequence[str]
) -> Mapping[tuple[str, str], RowMapping]:
    """Return by (name, action) who did ``actions`` last to the things ``names`` of a kind: actor, at, reason.

    An edit that switches a schedule off counts as its pause.
    """
    if not names:
        return {}
    values = {"names": list(names), "kind": kind, "actions": list(actions), "newest": NEWEST_OF_ONE}
    statement = _LAST_OF_ONE if len(actions) == 1 else _LAST_OF_EACH
    return {(row["name"], row["verb"]): row for row in connection.execute(statement, values).mappings()}
