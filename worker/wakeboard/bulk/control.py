"""The operator's moves on operations: pause, resume, abort. What was moved stays moved. Each is audited."""

from __future__ import annotations

from wakeboard.core.answer import Answer
from wakeboard.database.audit import Actor
from wakeboard.queue.operator import Connection, Row, _row, act

BY_ID = """
SELECT id, status, total, done, skipped,
    to_char(finished_at, 'YYYY-MM-DD HH24:MI:SS "UTC"') AS finished_text
FROM wakeboard.operations WHERE id = %(id)s FOR UPDATE
"""
PAUSE = "UPDATE wakeboard.operations SET status = 'paused' WHERE id = %(id)s"
# The pace begins anew: what was not moved meanwhile is not made up.
RESUME = """
UPDATE wakeboard.operations SET status = 'running', look_at = now(), paced_at = now(), is_open = true
WHERE id = %(id)s
"""
ABORT = "UPDATE wakeboard.operations SET status = 'aborted', finished_at = now() WHERE id = %(id)s"
MISSING = "There is no operation {}; ended ones are kept for 90 days."

Move = tuple[Answer, Row | None, Row | None]


def pause(connection: Connection, operation_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Move no further run until somebody resumes; what was moved goes on."""
    return _move(connection, operation_id, actor, reason, "pause", "running", "paused", PAUSE)


def resume(connection: Connection, operation_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Go on where it was paused, at its pace."""
    return _move(connection, operation_id, actor, reason, "resume", "paused", "running", RESUME)


def _move(
    connection: Connection, operation_id: int, actor: Actor, reason: str | None, verb: str, source: str,
    target: str, statement: str,
) -> Answer:  # fmt: skip
    def move() -> Move:
        row = _row(connection, BY_ID, {"id": operation_id})
        if row is None:
            return missing(operation_id), None, None
        if row["status"] == target:
            return (
                Answer(operation_id, target, "already", f"Operation {operation_id} is {target} already."),
                _shown(row),
                None,
            )
        if row["status"] != source:
            return _ended(row), _shown(row), None
        connection.execute(statement.encode(), {"id": operation_id})
        word = "is paused" if target == "paused" else "goes on"
        answer = Answer(operation_id, target, "done", f"Operation {operation_id} {word}.")
        return answer, _shown(row), {"status": target}

    return act(connection, actor, f"operation.{verb}", ("operation", operation_id), reason, move)


def abort(connection: Connection, operation_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """End it here; what was not moved is left as it is."""

    def move() -> Move:
        row = _row(connection, BY_ID, {"id": operation_id})
        if row is None:
            return missing(operation_id), None, None
        if row["status"] == "aborted":
            message = f"Operation {operation_id} was already aborted at {row['finished_text']}."
            return Answer(operation_id, "aborted", "already", message), _shown(row), None
        if row["status"] not in ("running", "paused"):
            return _ended(row), _shown(row), None
        connection.execute(ABORT.encode(), {"id": operation_id})
        rest = row["total"] - row["done"] - row["skipped"]
        message = f"Operation {operation_id} is aborted: {row['done']} moved, {rest} left as they are."
        return (
            Answer(operation_id, "aborted", "done", message),
            _shown(row),
            {"status": "aborted", "moved": row["done"], "not_moved": rest},
        )

    return act(connection, actor, "operation.abort", ("operation", operation_id), reason, move)


def missing(operation_id: int) -> Answer:
    """Return the answer about an operation that does not exist."""
    return Answer(operation_id, None, "missing", MISSING.format(operation_id))


def _ended(row: Row) -> Answer:
    message = f"Operation {row['id']} has ended: it is {row['status']} since {row['finished_text']}."
    return Answer(row["id"], row["status"], "forbidden", message)


def _shown(row: Row) -> Row:
    return {"status": row["status"], "moved": row["done"], "left": row["skipped"]}


__all__ = ["abort", "missing", "pause", "resume"]
