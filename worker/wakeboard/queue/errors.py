"""The operator's moves on error groups: mute one until an end, unmute it. Each writes its audit row.

What a group is and when it was seen is written by the engine alone, together with the failure.
"""

from __future__ import annotations

from typing import Any

from wakeboard.core.answer import Answer
from wakeboard.core.errors.error_groups import read
from wakeboard.core.time.durations import format_duration
from wakeboard.database.audit import Actor
from wakeboard.queue.operator import Connection, Row, _row, act

SHORTEST_SECONDS = 60.0
LONGEST_SECONDS = 90 * 86_400.0
ALLOWED = "1 minute to 90 days"

GROUP = """
SELECT id, fingerprint, error_code, job_type, muted_until, muted_by, muted_reason,
    coalesce(muted_until > now(), false) AS is_muted,
    to_char(muted_until, 'YYYY-MM-DD HH24:MI "UTC"') AS until_text
FROM wakeboard.error_groups WHERE id = %(id)s FOR UPDATE
"""
MUTE = """
UPDATE wakeboard.error_groups
SET muted_until = now() + make_interval(secs => %(seconds)s), muted_at = now(), muted_by = %(by)s,
    muted_reason = %(reason)s
WHERE id = %(id)s
RETURNING muted_until, muted_by, muted_reason, to_char(muted_until, 'YYYY-MM-DD HH24:MI "UTC"') AS until_text
"""
UNMUTE = """
UPDATE wakeboard.error_groups
SET muted_until = NULL, muted_at = NULL, muted_by = NULL, muted_reason = NULL WHERE id = %(id)s
"""

Move = tuple[Answer, Row | None, Row | None]


def mute(
    connection: Connection, fingerprint: str, seconds: float, actor: Actor, reason: str | None = None
) -> Answer:
    """Leave a group out of the alerts that ask for it, for ``seconds`` from now (ALLOWED).

    Its runs go on as before. Muting again moves the end and names whoever did it last. Returns 'done',
    'invalid' (the end), 'denied' or 'missing'.
    """

    def move() -> Move:
        found = _group(connection, fingerprint)
        if found is None:
            return missing(fingerprint), None, None
        # Not a number is outside of every bound too.
        if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
            given = format_duration(seconds) if 0 <= seconds < 1e12 else "that long"
            message = f"A mute of {given} is not allowed; allowed: {ALLOWED}. It always has an end."
            return Answer(fingerprint, _status(found), "invalid", message), None, None
        values = {"id": found["id"], "seconds": seconds, "by": actor.name, "reason": reason}
        after = _row(connection, MUTE, values) or {}
        message = f"{_title(found)} is muted until {after.get('until_text')}."
        return Answer(fingerprint, "muted", "done", message), _shown(found), _shown(after)

    return act(connection, actor, "error.mute", ("error", fingerprint), reason, move)


def unmute(connection: Connection, fingerprint: str, actor: Actor, reason: str | None = None) -> Answer:
    """End a group's mute now. Returns 'done', 'already' (it is not muted), 'denied' or 'missing'."""

    def move() -> Move:
        found = _group(connection, fingerprint)
        if found is None:
            return missing(fingerprint), None, None
        if not found["is_muted"]:
            message = f"{_title(found)} is not muted."
            return Answer(fingerprint, "heard", "already", message), None, None
        connection.execute(UNMUTE, {"id": found["id"]})
        message = f"{_title(found)} is heard again."
        return Answer(fingerprint, "heard", "done", message), _shown(found), _shown({})

    return act(connection, actor, "error.unmute", ("error", fingerprint), reason, move)


def missing(fingerprint: str) -> Answer:
    """Return the answer about a group that does not exist."""
    message = f"There is no error group {fingerprint[:40]}; retention may have removed it."
    return Answer(fingerprint, None, "missing", message)


def _group(connection: Connection, fingerprint: str) -> Row | None:
    """Lock and return the group; None when there is none, or the text is no fingerprint at all."""
    try:
        number = read(fingerprint)
    except ValueError:
        return None
    return _row(connection, GROUP, {"id": number})


def _status(found: Row) -> str:
    return "muted" if found["is_muted"] else "heard"


def _title(found: Row) -> str:
    return f"{found['error_code'][:60]} of {found['job_type'][:60]}"


def _shown(row: Row) -> Row:
    until: Any = row.get("muted_until")
    return {"muted_until": until and until.isoformat(), "muted_by": row.get("muted_by")}


__all__ = ["ALLOWED", "LONGEST_SECONDS", "SHORTEST_SECONDS", "missing", "mute", "unmute"]
