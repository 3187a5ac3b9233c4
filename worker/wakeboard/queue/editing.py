"""An edit of a schedule by a person: what they changed, on the version that they saw, or nothing.

``definitions.add`` says what a definition should be as a whole; an edit says what of it is different now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wakeboard.core.answer import Answer
from wakeboard.core.text.json_equality import same_value
from wakeboard.database.audit import Actor
from wakeboard.queue.definitions import Definition, DefinitionError, next_fire
from wakeboard.queue.operator import Connection, Row, _row, act

FIELDS = (
    "schedule", "timezone", "payload", "misfire", "grace_seconds", "overlap", "max_attempts",
    "timeout_seconds", "priority", "enabled",
)  # fmt: skip
# Names what a definition says, whoever wrote it: plain SQL does not move updated_at.
VERSION = f"md5(ROW(job_type, {', '.join(FIELDS)})::text)"

BY_NAME = f"""
SELECT id, name, job_type, {", ".join(FIELDS)}, next_fire_at, {VERSION} AS version
FROM wakeboard.job_definitions WHERE name = %(name)s FOR UPDATE
"""
EDIT = """
UPDATE wakeboard.job_definitions SET schedule = %(schedule)s, timezone = %(timezone)s,
    payload = coalesce(%(payload)s::jsonb, payload), misfire = %(misfire)s, grace_seconds = %(grace_seconds)s,
    overlap = %(overlap)s, max_attempts = %(max_attempts)s, timeout_seconds = %(timeout_seconds)s,
    priority = %(priority)s, enabled = %(enabled)s, error = NULL, updated_at = now(),
    next_fire_at = CASE WHEN %(keeps_time)s THEN next_fire_at ELSE %(next_fire_at)s END
WHERE id = %(id)s
"""
CHANGED = "Schedule {} was changed since you opened it; nothing was saved."
# What moves the next fire, when it changes.
TIME = ("schedule", "timezone", "enabled")


def edit(
    connection: Connection,
    name: str,
    changes: Mapping[str, Any],
    actor: Actor,
    reason: str | None = None,
    *,
    version: str | None = None,
) -> Answer:
    """Change columns (FIELDS) of a definition; the audit keeps what was different before.

    version: ``VERSION`` of the row that the person saw; None: whatever it says now. Enabling starts from
    now, as ``resume`` does. Returns 'done', 'already', 'forbidden' (another version), 'invalid', 'denied' or
    'missing'.
    """

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _row(connection, BY_NAME, {"name": name})
        if row is None:
            return Answer(name, None, "missing", f"There is no schedule '{name}'."), None, None
        if version is not None and version != row["version"]:
            return Answer(name, "changed", "forbidden", CHANGED.format(name)), None, None
        different = {
            key: value for key, value in changes.items() if key in FIELDS and not same_value(row[key], value)
        }
        if not different:
            return Answer(name, "unchanged", "already", f"Schedule {name} says that already."), None, None
        try:
            _checked(row | different)
        except DefinitionError as wrong:
            return Answer(name, None, "invalid", str(wrong)), None, None
        _write(connection, row, different)
        before = {key: row[key] for key in different}
        return Answer(name, "changed", "done", f"Schedule {name} was changed."), before, different

    return act(connection, actor, "schedule.edit", ("schedule", name), reason, move)


def _checked(row: Row) -> None:
    """Raise DefinitionError unless a definition may be as ``row``."""
    values = {key: row[key] for key in ("name", "job_type", *FIELDS) if key != "enabled"}
    Definition(**values).checked()


def _write(connection: Connection, row: Row, different: Mapping[str, Any]) -> None:
    wanted = row | dict(different)
    keeps_time = row["next_fire_at"] is not None and not any(key in different for key in TIME)
    fire = None if keeps_time else next_fire(connection, wanted["schedule"], wanted["timezone"])
    values = {
        **wanted,
        # Read and written back, a number would lose the digits that Python's floats cannot hold.
        "payload": json.dumps(wanted["payload"]) if "payload" in different else None,
        "keeps_time": keeps_time,
        "next_fire_at": fire,
    }
    connection.execute(EDIT.encode(), values)
