"""The operator's moves on error groups: mute one until an end, unmute it. Each writes its audit row.

What a group is and when it was seen is written by the engine alone, together with the failure.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from psycopg import Connection

from wakeboard.core.answer import Answer
from wakeboard.core.errors.error_groups import parse_fingerprint
from wakeboard.core.time.durations import format_duration
from wakeboard.database.audit import Actor
from wakeboard.database.read import read_one
from wakeboard.queue.operator import Transition, act

SHORTEST_SECONDS = 60.0
LONGEST_SECONDS = 90 * 86_400.0
ALLOWED = "1 minute to 90 days"

GROUP = """
SELECT id, error_code, job_type, muted_until, muted_by, coalesce(muted_until > now(), false) AS is_muted
FROM wakeboard.error_groups WHERE id = %(id)s FOR UPDATE
"""
MUTE = """
UPDATE wakeboard.error_groups
SET muted_until = now() + make_interval(secs => %(seconds)s), muted_at = now(), muted_by = %(by)s,
    muted_reason = %(reason)s
WHERE id = %(id)s
RETURNING muted_until, to_char(muted_until, 'YYYY-MM-DD HH24:MI "UTC"')
"""
UNMUTE = """
UPDATE wakeboard.error_groups
SET muted_until = NULL, muted_at = NULL, muted_by = NULL, muted_reason = NULL WHERE id = %(id)s
"""


class GroupRow(NamedTuple):
    """An error group and its mute."""

    id: int
    error_code: str
    job_type: str
    muted_until: datetime | None
    muted_by: str | None
    is_muted: bool

    @property
    def title(self) -> str:
        """What sentences call the group."""
        return f"{self.error_code[:60]} of {self.job_type[:60]}"


def mute(
    connection: Connection, fingerprint: str, seconds: float, actor: Actor, reason: str | None = None
) -> Answer:
    """Leave a group out of the alerts that ask for it, for ``seconds`` from now (ALLOWED).

    Its runs go on as before. Muting again moves the end and names whoever did it last. Returns 'done',
    'invalid' (the end), 'denied' or 'missing'.
    """

    def move() -> Transition:
        group = _find(connection, fingerprint)
        if group is None:
            return Transition(missing(fingerprint))
        # Not a number is outside of every bound too.
        if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
            length = format_duration(seconds) if 0 <= seconds < 1e12 else "that long"
            message = f"A mute of {length} is not allowed; allowed: {ALLOWED}. It always has an end."
            status = "muted" if group.is_muted else "heard"
            return Transition(Answer(fingerprint, status, "invalid", message))
        values = {"id": group.id, "seconds": seconds, "by": actor.name, "reason": reason}
        until, words = connection.execute(MUTE, values).fetchone() or (None, None)
        message = f"{group.title} is muted until {words}."
        answer = Answer(fingerprint, "muted", "done", message)
        return Transition(answer, _audited(group.muted_until, group.muted_by), _audited(until, actor.name))

    return act(connection, actor, "error.mute", ("error", fingerprint), reason, move)


def unmute(connection: Connection, fingerprint: str, actor: Actor, reason: str | None = None) -> Answer:
    """End a group's mute now. Returns 'done', 'already' (it is not muted), 'denied' or 'missing'."""

    def move() -> Transition:
        group = _find(connection, fingerprint)
        if group is None:
            return Transition(missing(fingerprint))
        if not group.is_muted:
            return Transition(Answer(fingerprint, "heard", "already", f"{group.title} is not muted."))
        connection.execute(UNMUTE, {"id": group.id})
        answer = Answer(fingerprint, "heard", "done", f"{group.title} is heard again.")
        return Transition(answer, _audited(group.muted_until, group.muted_by), _audited(None, None))

    return act(connection, actor, "error.unmute", ("error", fingerprint), reason, move)


def missing(fingerprint: str) -> Answer:
    """Return the answer about a group that does not exist."""
    message = f"There is no error group {fingerprint[:40]}; retention may have removed it."
    return Answer(fingerprint, None, "missing", message)


def _find(connection: Connection, fingerprint: str) -> GroupRow | None:
    """Lock and return the group; None when there is none, or the text is no fingerprint at all."""
    try:
        number = parse_fingerprint(fingerprint)
    except ValueError:
        return None
    return read_one(connection, GROUP, GroupRow, {"id": number})


def _audited(until: datetime | None, name: str | None) -> dict[str, object]:
    return {"muted_until": until and until.isoformat(), "muted_by": name}
