"""The pauses of job types: begin one, with an end if a person names one, and end it by hand or by the clock.

A pause holds for all workers. The database's clock ends it: a duty of every worker looks for ends that have
come, so what asks whether a type is paused need not know of ends.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from psycopg.rows import dict_row

from wakeboard.config import log
from wakeboard.core.answer import Answer
from wakeboard.database.audit import ENGINE, Actor, record
from wakeboard.queue.operator import WAKE_CHANNEL, Connection, Row, _row, act

BY_NAME = """
SELECT name, paused_at, paused_by, paused_reason, paused_until,
    paused_at IS NOT NULL AND coalesce(paused_until > now(), true) AS is_paused,
    %(until)s::timestamptz <= now() AS is_over,
    %(until)s::timestamptz > now() + interval '1 year' AS is_far
FROM wakeboard.job_types WHERE name = %(name)s FOR NO KEY UPDATE
"""
PAUSE = """
UPDATE wakeboard.job_types SET paused_at = now(), paused_by = %(actor)s, paused_reason = %(reason)s,
    paused_until = %(until)s
WHERE name = %(name)s
"""
MOVE_END = """
UPDATE wakeboard.job_types SET paused_until = %(until)s, paused_by = %(actor)s,
    paused_reason = coalesce(%(reason)s, paused_reason)
WHERE name = %(name)s
"""
RESUME = """
UPDATE wakeboard.job_types
SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, paused_until = NULL
WHERE name = %(name)s
"""
# An older version knows nothing of ends: what it resumed may keep one, which would end the next pause.
ENDED = """
WITH ended AS (
    SELECT name, paused_at, paused_by, paused_reason, paused_until FROM wakeboard.job_types
    WHERE paused_until IS NOT NULL AND (paused_at IS NULL OR paused_until <= now())
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE wakeboard.job_types AS t
SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, paused_until = NULL
FROM ended WHERE t.name = ended.name
RETURNING ended.name, ended.paused_at, ended.paused_by, ended.paused_reason, ended.paused_until
"""
WHY = "the end of the pause has come"

# "Leave that as it is."
Same = Literal["same"]


def missing(name: str) -> tuple[Answer, None, None]:
    """Return what a move of a type answers that nobody knows."""
    message = f"There is no job type '{name}': no worker has ever registered it."
    return Answer(name, None, "missing", message), None, None


def pause(
    connection: Connection,
    name: str,
    actor: Actor,
    reason: str | None = None,
    *,
    until: datetime | Same | None = "same",
) -> Answer:
    """Stop claims of a type over all workers; what runs goes on.

    until: when the pause ends by itself (aware, later than the database's now, at most a year away); None:
    when somebody resumes the type. 'same' leaves the end of a pause that goes on as it is. Pausing a paused
    type moves its end.
    """

    def move() -> tuple[Answer, Row | None, Row | None]:
        end = None if until == "same" else until
        row = _row(connection, BY_NAME, {"name": name, "until": end})
        if row is None:
            return missing(name)
        if row["is_over"] or row["is_far"]:
            message = f"The pause would end {_text(end)}; allowed: later than now, at most a year away."
            return Answer(name, None, "invalid", message), None, None
        values = {"name": name, "actor": actor.name, "reason": reason, "until": end}
        # A pause whose end has come is over, though no worker was there to end it.
        if not row["is_paused"]:
            connection.execute(PAUSE, values)
            said = f"Type {name} is paused{_ending(end)}."
            after = {"paused": True} | ({"paused_until": end} if end else {})
            return Answer(name, "paused", "done", said), {"paused": False}, after
        if until == "same" or end == row["paused_until"]:
            said = f"Type {name} is already paused{_ending(row['paused_until'])}."
            return Answer(name, "paused", "already", said), None, None
        connection.execute(MOVE_END, values)
        said = f"Type {name} stays paused{_ending(end) or ' until somebody resumes it'}."
        before = {"paused_until": row["paused_until"]}
        return Answer(name, "paused", "done", said), before, {"paused_until": end}

    return act(connection, actor, "type.pause", ("type", name), reason, move)


def resume(connection: Connection, name: str, actor: Actor, reason: str | None = None) -> Answer:
    """Allow claims of a type again."""

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _row(connection, BY_NAME, {"name": name, "until": None})
        if row is None:
            return missing(name)
        if row["paused_at"] is None:
            return Answer(name, "active", "already", f"Type {name} is not paused."), None, None
        connection.execute(RESUME, {"name": name})
        connection.execute("SELECT pg_notify(%s, '')", (WAKE_CHANNEL,))
        message = f"Type {name} is claimed again."
        return Answer(name, "active", "done", message), {"paused": True}, {"paused": False}

    return act(connection, actor, "type.resume", ("type", name), reason, move)


def end_due(connection: Connection) -> dict[str, int]:
    """End the pauses whose end has come; return how many. Any number of processes may do so at once."""
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        ended = [row for row in cursor.execute(ENDED).fetchall() if row["paused_at"] is not None]
        for row in ended:
            _tell(connection, row)
        if ended:
            connection.execute("SELECT pg_notify(%s, '')", (WAKE_CHANNEL,))
    return {"ended": len(ended)}


def _tell(connection: Connection, row: dict[str, Any]) -> None:
    before = {"paused": True, "paused_until": row["paused_until"]}
    record(
        connection, ENGINE, "type.resume", "type", row["name"],
        reason=WHY, before=before, after={"paused": False},
    )  # fmt: skip
    log.note("A type is claimed again: its pause has ended.", job_type=row["name"])


def _ending(until: datetime | None) -> str:
    return f" until {_text(until)}" if until else ""


def _text(moment: datetime | None) -> str:
    assert moment is not None
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
