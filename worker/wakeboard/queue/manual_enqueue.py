"""A run that a person enqueues: ``enqueue`` with a role, a reason and an audit row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import NamedTuple

from psycopg import Connection

from wakeboard.core.answer import Answer
from wakeboard.core.builtin_payloads import is_builtin
from wakeboard.core.run_spec import EnqueueError, NewRun
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor, audited_transaction, record
from wakeboard.database.read import read_one
from wakeboard.queue.enqueue import KeyTaken, enqueue
from wakeboard.queue.operator import permit

JOB_TYPES = "SELECT name FROM wakeboard.job_types ORDER BY name"
# created_at is its transaction's now(): with another, the run was there before.
ENQUEUED = """
SELECT status, run_at, run_at > now() AS is_delayed, created_at = now() AS is_new
FROM wakeboard.job_runs WHERE id = %(id)s
"""


class EnqueuedRun(NamedTuple):
    """The run that was enqueued, or the one that has the key."""

    status: str
    run_at: datetime
    is_delayed: bool
    is_new: bool


def enqueue_by_hand(connection: Connection, run: NewRun, actor: Actor, reason: str | None = None) -> Answer:
    """Enqueue ``run`` for ``actor``, of a type that a worker has registered. ``Answer.id`` is the run's.

    Returns 'done', 'already' (a run has that key), 'invalid' (no such type) or 'denied'. Raises EnqueueError
    with a sentence when the run is refused; nothing is written then.
    """
    with audited_transaction(connection):
        if refusal := permit(connection, actor, "run.enqueue", "type", run.job_type):
            return refusal
        # The payload says which program is run: with WAKEBOARD_ALLOW_COMMANDS that is a shell.
        if is_builtin(run.job_type) and not actor.role.covers(Role.ADMIN):
            record(connection, actor, "run.enqueue", "type", run.job_type, reason=reason, result="denied")
            message = f"Runs of type '{run.job_type}' are enqueued by admins: their payload says what is run."
            return Answer(run.job_type, None, "denied", message)
        job_types = [name for (name,) in connection.execute(JOB_TYPES) if _may_see(actor, name)]
        if run.job_type not in job_types:
            message = (
                f"There is no job type '{run.job_type[:200]}': no worker has ever registered it."
                f"{suggest_names(run.job_type, job_types)} Nothing was enqueued."
            )
            return Answer(run.job_type, None, "invalid", message)
        run_id = _enqueue(connection, run, actor)
        row = read_one(connection, ENQUEUED, EnqueuedRun, {"id": run_id})
        assert row is not None
        if row.is_new:
            when = f"at {row.run_at.astimezone(UTC):%Y-%m-%d %H:%M:%S UTC}" if row.is_delayed else "now"
            answer = Answer(run_id, row.status, "done", f"Run {run_id} of type {run.job_type} is due {when}.")
            after = {"status": row.status, "job_type": run.job_type, "key": run.key}
        else:
            message = f"Run {run_id} has the key '{run.key}' already: nothing was enqueued."
            answer, after = Answer(run_id, row.status, "already", message), None
        record(
            connection, actor, "run.enqueue", "run", run_id, reason=reason, after=after, result=answer.result
        )
        return answer


def _may_see(actor: Actor, job_type: str) -> bool:
    return actor.job_types is None or job_type in actor.job_types


def _enqueue(connection: Connection, run: NewRun, actor: Actor) -> int:
    try:
        return enqueue(connection, **run._replace(enqueued_by=actor.name)._asdict())
    except KeyTaken as taken:
        if _may_see(actor, taken.job_type):
            raise
        # Keys are unique over all types; the run of a type that the actor may not see is not named.
        raise EnqueueError(f"The key '{run.key}' is taken; use another.") from None


def suggest_names(name: str, names: Sequence[str]) -> str:
    """Return a sentence, after a space, with up to three of ``names`` that are similar; empty without any."""
    similar = get_close_matches(name, names, 3)
    return f" Near it: {', '.join(similar)}." if similar else ""
