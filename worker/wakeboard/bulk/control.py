"""The operator's moves on operations: pause, resume, abort. What was moved stays moved. Each is audited."""

from __future__ import annotations

from typing import NamedTuple

from psycopg import Connection

from wakeboard.core.answer import Answer
from wakeboard.database.audit import Actor
from wakeboard.database.read import read_one
from wakeboard.queue.operator import Transition, act

BY_ID = """
SELECT id, status, total, done, skipped,
    to_char(finished_at, 'YYYY-MM-DD HH24:MI:SS "UTC"') AS finished_text
FROM wakeboard.operations WHERE id = %(id)s FOR UPDATE
"""
PAUSE = "UPDATE wakeboard.operations SET status = 'paused' WHERE id = %(id)s"
# The pace begins anew: the time of the pause is not made up for.
RESUME = """
UPDATE wakeboard.operations SET status = 'running', look_at = now(), paced_at = now(), is_open = true
WHERE id = %(id)s
"""
ABORT = "UPDATE wakeboard.operations SET status = 'aborted', finished_at = now() WHERE id = %(id)s"
MISSING = "There is no operation {}; ended ones are kept for 90 days."


class OperationRow(NamedTuple):
    """What sentences and the audit log say of an operation."""

    id: int
    status: str
    total: int
    done: int
    skipped: int
    finished_text: str | None

    @property
    def before(self) -> dict[str, object]:
        """The state that the audit log keeps."""
        return {"status": self.status, "moved": self.done, "left": self.skipped}


def pause(connection: Connection, operation_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Move no further run until somebody resumes; what was moved goes on."""
    return _change_status(connection, operation_id, actor, reason, "pause", "running", "paused", PAUSE)


def resume(connection: Connection, operation_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Go on where it was paused, at its pace."""
    return _change_status(connection, operation_id, actor, reason, "resume", "paused", "running", RESUME)


def _change_status(
    connection: Connection, operation_id: int, actor: Actor, reason: str | None, verb: str, source: str,
    target: str, statement: str,
) -> Answer:  # fmt: skip
    def move() -> Transition:
        row = read_one(connection, BY_ID, OperationRow, {"id": operation_id})
        if row is None:
            return Transition(missing(operation_id))
        if row.status == target:
            message = f"Operation {operation_id} is {target} already."
            return Transition(Answer(operation_id, target, "already", message), row.before)
        if row.status != source:
            return Transition(_ended(row), row.before)
        connection.execute(statement.encode(), {"id": operation_id})
        word = "is paused" if target == "paused" else "goes on"
        answer = Answer(operation_id, target, "done", f"Operation {operation_id} {word}.")
        return Transition(answer, row.before, {"status": target})

    return act(connection, actor, f"operation.{verb}", ("operation", operation_id), reason, move)


def abort(connection: Connection, operation_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """End it here; what was not moved is left as it is."""

    def move() -> Transition:
        row = read_one(connection, BY_ID, OperationRow, {"id": operation_id})
        if row is None:
            return Transition(missing(operation_id))
        if row.status == "aborted":
            message = f"Operation {operation_id} was already aborted at {row.finished_text}."
            return Transition(Answer(operation_id, "aborted", "already", message), row.before)
        if row.status not in ("running", "paused"):
            return Transition(_ended(row), row.before)
        connection.execute(ABORT, {"id": operation_id})
        rest = row.total - row.done - row.skipped
        message = f"Operation {operation_id} is aborted: {row.done} moved, {rest} left as they are."
        after = {"status": "aborted", "moved": row.done, "not_moved": rest}
        return Transition(Answer(operation_id, "aborted", "done", message), row.before, after)

    return act(connection, actor, "operation.abort", ("operation", operation_id), reason, move)


def missing(operation_id: int) -> Answer:
    """Return the answer about an operation that does not exist."""
    return Answer(operation_id, None, "missing", MISSING.format(operation_id))


def _ended(row: OperationRow) -> Answer:
    message = f"Operation {row.id} has ended: it is {row.status} since {row.finished_text}."
    return Answer(row.id, row.status, "forbidden", message)
