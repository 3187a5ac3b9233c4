"""Who asked for what, the last time: from the audit log, for the things of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, RowMapping, text

# Of one thing, the newest rows are looked at.
NEWEST = 200

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
_LATEST = text(f"""
SELECT w.name, asked.* FROM unnest(CAST(:names AS text[])) AS w (name)
CROSS JOIN LATERAL (
    SELECT DISTINCT ON (verb) verb, actor, at, reason {_ASKED} ORDER BY verb, id DESC
) AS asked
""")
# Of one verb the newest row is all there is to find: in the order in which rows come no other is read.
_LATEST_OF_ONE = text(f"""
SELECT w.name, asked.* FROM unnest(CAST(:names AS text[])) AS w (name)
CROSS JOIN LATERAL (
    SELECT verb, actor, at, reason {_ASKED} ORDER BY target_type DESC, target_id DESC, id DESC LIMIT 1
) AS asked
""")


def latest(
    connection: Connection, kind: str, names: Sequence[str], actions: Sequence[str]
) -> Mapping[tuple[str, str], RowMapping]:
    """Return by (name, action) who did ``actions`` last to the things ``names`` of a kind: actor, at, reason.

    An edit that switches a schedule off counts as its pause.
    """
    if not names:
        return {}
    values = {"names": list(names), "kind": kind, "actions": list(actions), "newest": NEWEST}
    statement = _LATEST_OF_ONE if len(actions) == 1 else _LATEST
    return {(row["name"], row["verb"]): row for row in connection.execute(statement, values).mappings()}
