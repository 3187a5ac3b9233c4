"""A run that a person asks for: the front door of ``enqueue`` with a role, a reason and an audit row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from difflib import get_close_matches

from wakeboard.core.answer import Answer
from wakeboard.core.builtin_payloads import is_builtin
from wakeboard.core.run_spec import EnqueueError, NewRun
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor, audited_transaction, record
from wakeboard.queue.enqueue import KeyTaken, enqueue
from wakeboard.queue.operator import Connection, Row, _row, permit

KNOWN = "SELECT name FROM wakeboard.job_types ORDER BY name"
# created_at is its transaction's now(): with another, the key was known before.
MADE = """
SELECT status, run_at, run_at > now() AS is_delayed, created_at = now() AS is_new
FROM wakeboard.job_runs WHERE id = %(id)s
"""


def enqueue_by_hand(connection: Connection, new: NewRun, actor: Actor, reason: str | None = None) -> Answer:
    """Enqueue ``new`` for ``actor``, of a type that a worker has registered. ``Answer.id`` is the run's.

    Returns 'done', 'already' (a run has that key), 'invalid' (no such type) or 'denied'. Raises EnqueueError
    with a sentence when the run is refused; nothing is written then.
    """
    with audited_transaction(connection):
        if refusal := permit(connection, actor, "run.enqueue", "type", new.job_type):
            return refusal
        # What they run stands in the payload: with WAKEBOARD_ALLOW_COMMANDS that is a shell.
        if is_builtin(new.job_type) and not actor.role.covers(Role.ADMIN):
            record(connection, actor, "run.enqueue", "type", new.job_type, reason=reason, result="denied")
            message = f"Runs of type '{new.job_type}' are enqueued by admins: their payload says what is run."
            return Answer(new.job_type, None, "denied", message)
        known = [name for (name,) in connection.execute(KNOWN) if _sees(actor, name)]
        if new.job_type not in known:
            return Answer(new.job_type, None, "invalid", _unknown(new.job_type, known))
        run_id = _enqueued(connection, new, actor)
        made = _row(connection, MADE, {"id": run_id})
        assert made is not None
        answer = _told(run_id, new, made)
        after = (
            {"status": made["status"], "job_type": new.job_type, "key": new.key} if made["is_new"] else None
        )
        record(
            connection, actor, "run.enqueue", "run", run_id, reason=reason, after=after, result=answer.result
        )
        return answer


def _sees(actor: Actor, job_type: str) -> bool:
    return actor.job_types is None or job_type in actor.job_types


def _enqueued(connection: Connection, new: NewRun, actor: Actor) -> int:
    try:
        return enqueue(
            connection, new.job_type, new.payload, run_at=new.run_at, delay=new.delay, key=new.key,
            priority=new.priority, max_attempts=new.max_attempts, enqueued_by=actor.name,
        )  # fmt: skip
    except KeyTaken as taken:
        if _sees(actor, taken.job_type):
            raise
        # Keys are of all types together; whose run has it is not told.
        raise EnqueueError(f"The key '{new.key}' is taken; use another.") from None


def _told(run_id: int, new: NewRun, made: Row) -> Answer:
    if not made["is_new"]:
        message = f"Run {run_id} has the key '{new.key}' already: nothing was enqueued."
        return Answer(run_id, made["status"], "already", message)
    when = f"at {made['run_at'].astimezone(UTC):%Y-%m-%d %H:%M:%S UTC}" if made["is_delayed"] else "now"
    return Answer(run_id, made["status"], "done", f"Run {run_id} of type {new.job_type} is due {when}.")


def near(name: str, known: Sequence[str]) -> str:
    """Return a sentence, after a space, that names up to three of ``known`` much like ``name``, if any is."""
    alike = get_close_matches(name, known, 3)
    return f" Near it: {', '.join(alike)}." if alike else ""


def _unknown(name: str, known: Sequence[str]) -> str:
    return (
        f"There is no job type '{name[:200]}': no worker has ever registered it.{near(name, known)} "
        "Nothing was enqueued."
    )
