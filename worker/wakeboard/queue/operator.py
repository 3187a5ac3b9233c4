"""The operator's moves on runs: cancel, retry now, release a lease, run again. One guarded statement each.

``act`` checks the role, makes a move and writes its audit row, in one transaction of its own (or in the
caller's). Every operator's move in this package goes through it. The answer says in a sentence what is so
now, or why not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

import psycopg
from psycopg import Connection

from wakeboard.core.answer import Answer
from wakeboard.core.errors.error_groups import lost_group
from wakeboard.core.retry import Backoff
from wakeboard.core.run_spec import payload_limit, payload_text
from wakeboard.core.states import CANCELLABLE, CLAIMABLE, ENDED, VERBS, sql_list
from wakeboard.database.audit import Actor, record
from wakeboard.database.db import LOCKED
from wakeboard.database.poison_rows import is_refusal, retry_with_immediate_constraints
from wakeboard.database.read import read_one
from wakeboard.queue import token_scope
from wakeboard.queue.engine.reaping import RELEASE_LEASE, RELEASE_UNBEGUN

WAKE_CHANNEL = "wakeboard_wake"
CANCEL_CHANNEL = "wakeboard_cancel"
NOTIFY = "SELECT pg_notify(%s, %s)"

# Sent before each move below. A lock waited for inside of the move's own statement is too late: the new row
# is first made of the version that the statement began with, and the CHECKs refuse that mixture.
LOCK = "SELECT 1 FROM wakeboard.job_runs WHERE id = %(id)s FOR NO KEY UPDATE"

_BEFORE = """
WITH before AS (
    SELECT id, status, run_at, finished_at, cancel_requested_at, run_at > now() AS is_delayed, job_type,
        EXISTS (
            SELECT FROM wakeboard.job_types AS t WHERE t.name = job_runs.job_type AND t.paused_at IS NOT NULL
        ) AS is_paused
    FROM wakeboard.job_runs WHERE id = %(id)s
)"""
_AFTER = """
SELECT before.status, before.run_at, before.job_type, before.is_paused, moved.status AS new_status,
    moved.run_at AS new_run_at, to_char(before.finished_at, 'YYYY-MM-DD HH24:MI:SS "UTC"') AS finished_text
FROM before LEFT JOIN moved ON true
"""

CANCEL = f"""{_BEFORE}, moved AS (
    UPDATE wakeboard.job_runs AS r
    SET status = CASE before.status WHEN 'running' THEN 'running' ELSE 'cancelled' END,
        finished_at = CASE before.status WHEN 'running' THEN NULL ELSE now() END,
        cancel_requested_at = now(), updated_at = now()
    FROM before
    WHERE r.id = before.id AND (before.status IN ({sql_list(CANCELLABLE)})
        OR (before.status = 'running' AND before.cancel_requested_at IS NULL))
    RETURNING r.status, r.run_at
){_AFTER}"""

RETRY_NOW = f"""{_BEFORE}, moved AS (
    UPDATE wakeboard.job_runs AS r
    SET status = CASE WHEN before.status IN ('dead', 'cancelled') THEN 'queued' ELSE before.status END,
        failures = CASE WHEN before.status IN ('dead', 'cancelled') THEN 0 ELSE r.failures END,
        run_at = now(), finished_at = NULL, cancel_requested_at = NULL, updated_at = now()
    FROM before
    WHERE r.id = before.id AND (before.status IN ('dead', 'cancelled')
        OR (before.status IN ({sql_list(CLAIMABLE)}) AND before.is_delayed))
    RETURNING r.status, r.run_at
){_AFTER}"""

RUN_AGAIN = f"""{_BEFORE}, moved AS (
    INSERT INTO wakeboard.job_runs (definition_id, job_type, payload, priority, max_attempts,
        timeout_seconds, enqueued_by, origin_run_id, traceparent)
    SELECT r.definition_id, r.job_type, coalesce(%(payload)s::jsonb, r.payload), r.priority, r.max_attempts,
        r.timeout_seconds, %(actor)s, r.id, r.traceparent
    FROM wakeboard.job_runs AS r JOIN before ON before.id = r.id
    WHERE before.status IN ({sql_list(ENDED)})
    RETURNING id AS new_id
)
SELECT before.status, before.run_at, before.job_type, before.is_paused, moved.new_id
FROM before LEFT JOIN moved ON true
"""

LEASE = """
SELECT r.status, r.job_type, r.lease_epoch, r.locked_by, r.failures,
    coalesce(r.max_attempts, t.max_attempts, 10) AS max_attempts,
    coalesce(t.backoff, 'exponential 10s cap 30m') AS backoff
FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
WHERE r.id = %(id)s FOR NO KEY UPDATE OF r
"""


class Transition(NamedTuple):
    """What a move did: its answer, and the state before and after for the audit log (None: not recorded)."""

    answer: Answer
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None


class RunRow(NamedTuple):
    """A run as a move found it, and what the move made of it (None: it did not fit)."""

    status: str
    run_at: datetime
    job_type: str
    is_paused: bool
    new_status: str | None = None
    new_run_at: datetime | None = None
    finished_text: str | None = None
    new_id: int | None = None

    @property
    def before(self) -> dict[str, object]:
        """The state that the audit log keeps."""
        return {"status": self.status, "run_at": self.run_at}

    @property
    def after(self) -> dict[str, object]:
        """The new state that the audit log keeps."""
        return {"status": self.new_status, "run_at": self.new_run_at}

    def sentence(self, words: str) -> str:
        """Return ``words`` as a sentence, which says of a paused type that its run waits all the same."""
        paused = f", but its type {self.job_type} is paused: it waits until somebody resumes that."
        return words + (paused if self.is_paused else ".")


class LeaseRow(NamedTuple):
    """The lease of a run, and the rule by which it is tried again."""

    status: str
    job_type: str
    lease_epoch: int
    locked_by: str | None
    failures: int
    max_attempts: int
    backoff: str


def permit(
    connection: Connection, actor: Actor, action: str, target_type: str, target_id: int | str
) -> Answer | None:
    """Return None when ``actor`` may do ``action``, else the refusal, which is audited.

    To a token for some job types a run of another type is one that is not there.
    """
    verb = VERBS[action]
    if not token_scope.is_in_scope(connection, actor, target_type, target_id):
        record(connection, actor, action, target_type, target_id, result="denied")
        if target_type == "run":
            return missing(int(target_id))
        return Answer(target_id, None, "denied", token_scope.describe(actor))
    if actor.role.covers(verb.role):
        return None
    record(connection, actor, action, target_type, target_id, result="denied")
    message = (
        f"'{actor.name}' is {actor.role.with_article}; to {verb.label.lower()} takes the role {verb.role}."
    )
    return Answer(target_id, None, "denied", message)


def act(
    connection: Connection,
    actor: Actor,
    action: str,
    target: tuple[str, int | str],
    reason: str | None,
    move: Callable[[], Transition],
) -> Answer:
    """Check the role, then run ``move`` and write its audit row, in one transaction.

    ``action`` is a key of VERBS, ``target`` the kind and the name of what is moved. What the database refuses
    is 'forbidden': plain SQL may have written an ended run that could not be due, or a rule of its owner is
    in the way. What another transaction holds for longer than the session's lock_timeout allows is 'locked'.
    """

    def attempt() -> Answer:
        with connection.transaction():
            if refusal := permit(connection, actor, action, *target):
                return refusal
            answer, before, after = _try_move(connection, target, move)
            record(
                connection, actor, action, *target, reason=reason, before=before, after=after,
                result=answer.result,
            )  # fmt: skip
            return answer

    return retry_with_immediate_constraints(connection, attempt)


def _try_move(
    connection: Connection, target: tuple[str, int | str], move: Callable[[], Transition]
) -> Transition:
    """Return what ``move`` returns, or the answer to what kept the database from it."""
    try:
        with connection.transaction():
            return move()
    except LOCKED:
        return Transition(_locked(target))
    except psycopg.Error as failure:
        if not is_refusal(failure):
            raise
        return Transition(_refused(target, failure))


def _refused(target: tuple[str, int | str], failure: psycopg.Error) -> Answer:
    """Return the answer to what the database refused, without the row that its message would show."""
    rule, text = failure.diag.constraint_name, failure.diag.message_primary or "no reason was given"
    why = f"the rule “{rule}” of its table is broken" if rule else text.rstrip(".")
    kind, name = target
    message = f"The database refuses this for {kind} {name}: {why}. Nothing was changed."
    return Answer(name, None, "forbidden", message, is_refused=True)


def _locked(target: tuple[str, int | str]) -> Answer:
    kind, name = target
    message = f"{kind.capitalize()} {name} was locked by another transaction: try again."
    return Answer(name, None, "locked", message)


def record_locked(
    connection: Connection, run_id: int, actor: Actor, action: str, reason: str | None
) -> Answer:
    """Leave a run that another transaction holds as it is, and audit that. Returns 'locked' or 'denied'."""
    target = ("run", run_id)
    return act(connection, actor, action, target, reason, lambda: Transition(_locked(target)))


def missing(run_id: int) -> Answer:
    """Return the answer about a run that does not exist."""
    return Answer(
        run_id, None, "missing", f"There is no run {run_id}; it may have been removed by retention."
    )


def wake_workers(connection: Connection) -> None:
    """Notify idle workers, when the transaction is committed, that something can be claimed."""
    connection.execute(NOTIFY, (WAKE_CHANNEL, ""))


def _move(connection: Connection, statement: str, values: Mapping[str, object]) -> RunRow | None:
    """Lock the run ``values["id"]``, then send the move; return its row, None when there is no such run."""
    connection.execute(LOCK, values)
    return read_one(connection, statement, RunRow, values)


def cancel(connection: Connection, run_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Cancel a run: at once when it waits or is dead; a running one is asked to stop and ends cancelled soon.

    Returns 'done', 'asked' (running), 'already', 'forbidden' (it succeeded), 'denied' or 'missing'.
    """

    def move() -> Transition:
        row = _move(connection, CANCEL, {"id": run_id})
        if row is None:
            return Transition(missing(run_id))
        if row.new_status == "running":
            connection.execute(NOTIFY, (CANCEL_CHANNEL, str(run_id)))
            answer = Answer(run_id, "running", "asked", f"Run {run_id} was asked to stop.")
            return Transition(answer, row.before, row.after | {"cancel_requested": True})
        if row.new_status:
            answer = Answer(run_id, "cancelled", "done", f"Run {run_id} is cancelled.")
            return Transition(answer, row.before, row.after)
        if row.status == "running":
            answer = Answer(run_id, "running", "already", f"Run {run_id} was already asked to stop.")
        elif row.status == "cancelled":
            message = f"Run {run_id} was already cancelled at {row.finished_text}."
            answer = Answer(run_id, "cancelled", "already", message)
        else:
            message = f"Run {run_id} already ended: {row.status} at {row.finished_text}."
            answer = Answer(run_id, row.status, "forbidden", message)
        return Transition(answer, row.before)

    return act(connection, actor, "run.cancel", ("run", run_id), reason, move)


def retry_now(connection: Connection, run_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Make a run due now: from dead and cancelled with a fresh count of failures, from a backoff at once.

    Returns 'done', 'already' (due already), 'forbidden' (running or succeeded), 'denied' or 'missing'.
    """

    def move() -> Transition:
        row = _move(connection, RETRY_NOW, {"id": run_id})
        if row is None:
            return Transition(missing(run_id))
        if row.new_status:
            wake_workers(connection)
            message = row.sentence(f"Run {run_id} is due now")
            answer = Answer(run_id, row.new_status, "done", message, is_held=row.is_paused)
            return Transition(answer, row.before, row.after)
        if row.status in CLAIMABLE:
            message = row.sentence(f"Run {run_id} is already due")
            return Transition(Answer(run_id, row.status, "already", message), row.before)
        when = f" at {row.finished_text}" if row.finished_text else ""
        message = {
            "running": f"Run {run_id} is running; cancel it first or wait for it to end.",
            "succeeded": f"Run {run_id} already succeeded{when}; run it again to make a new run.",
        }[row.status]
        return Transition(Answer(run_id, row.status, "forbidden", message), row.before)

    return act(connection, actor, "run.retry", ("run", run_id), reason, move)


def release_lease(connection: Connection, run_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Take a run from a worker that is silent or whose lease has ended, as the reaper would.

    Returns 'done', 'forbidden' (not running, or its worker is alive), 'denied' or 'missing'.
    """

    def move() -> Transition:
        lease = read_one(connection, LEASE, LeaseRow, {"id": run_id})
        if lease is None:
            return Transition(missing(run_id))
        if lease.status != "running":
            message = f"Run {run_id} holds no lease: it is {lease.status}."
            return Transition(Answer(run_id, lease.status, "forbidden", message))
        delay = Backoff.parse_or_default(lease.backoff).delay_seconds(lease.failures + 1)
        why = f"lease released by {actor.name}: worker {lease.locked_by} was silent"
        group = lost_group(lease.job_type)
        values = (
            [run_id], [lease.lease_epoch], [delay], [lease.max_attempts], why, [group.id], group.template,
        )  # fmt: skip
        cursor = psycopg.RawCursor(connection)
        released = (
            cursor.execute(RELEASE_UNBEGUN.encode(), values[:2]).fetchone()
            or cursor.execute(RELEASE_LEASE.encode(), values).fetchone()
        )
        before = {"status": "running", "locked_by": lease.locked_by}
        if released is None:
            message = f"The worker of run {run_id} is alive and renews its lease; cancel the run instead."
            return Transition(Answer(run_id, "running", "forbidden", message), before)
        wake_workers(connection)
        _, status, run_at, *_ = released
        message = f"Run {run_id} was taken back; it is {status} now."
        return Transition(
            Answer(run_id, status, "done", message), before, {"status": status, "run_at": run_at}
        )

    return act(connection, actor, "lease.release", ("run", run_id), reason, move)


def run_again(
    connection: Connection,
    run_id: int,
    actor: Actor,
    reason: str | None = None,
    payload: Mapping[str, object] | None = None,
) -> Answer:
    """Enqueue a new run like an ended one: same definition, type and payload; no key, no fire.

    ``payload`` replaces the old one (admins only). ``Answer.id`` is the new run's. Returns 'done',
    'forbidden' (the old one has not ended), 'denied' or 'missing'. Raises EnqueueError for a payload that
    is too large or that PostgreSQL cannot hold.
    """

    def move() -> Transition:
        if payload is not None and (refusal := permit(connection, actor, "schedule.edit", "run", run_id)):
            return Transition(refusal)
        text = None if payload is None else payload_text(payload, payload_limit())
        row = _move(connection, RUN_AGAIN, {"id": run_id, "payload": text, "actor": actor.name})
        if row is None:
            return Transition(missing(run_id))
        if row.new_id is None:
            message = f"Run {run_id} has not ended: it is {row.status}. Retry or cancel it instead."
            return Transition(Answer(run_id, row.status, "forbidden", message), row.before)
        message = row.sentence(f"Run {row.new_id} was enqueued, like run {run_id}")
        answer = Answer(row.new_id, "queued", "done", message, is_held=row.is_paused)
        return Transition(answer, row.before, {"run": row.new_id})

    return act(connection, actor, "run.again", ("run", run_id), reason, move)
