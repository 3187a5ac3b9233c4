"""The operator's moves on runs: cancel, retry now, release a lease, run again. One guarded statement each.

Each function checks the role, moves, and writes its audit row, all in one transaction of its own (or in
the caller's). It answers in a sentence: what is so now, or why not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.rows import dict_row

from wakeboard.core.answer import Answer
from wakeboard.core.errors.error_groups import lost_group
from wakeboard.core.retry import Backoff
from wakeboard.core.run_spec import payload_limit, payload_text
from wakeboard.core.states import CANCELLABLE, CLAIMABLE, ENDED, VERBS, sql_list
from wakeboard.database.audit import Actor, record
from wakeboard.database.db import LOCKED
from wakeboard.database.poison_rows import is_refusal, retry_with_immediate_constraints
from wakeboard.queue import token_scope
from wakeboard.queue.engine.reaping import RELEASE_LEASE, RELEASE_UNBEGUN

Connection = psycopg.Connection[Any]
Row = dict[str, Any]
# The answer, and the state before and after it.
Moved = tuple[Answer, Row | None, Row | None]
Move = Callable[[], Moved]

WAKE_CHANNEL = "wakeboard_wake"
CANCEL_CHANNEL = "wakeboard_cancel"

# Sent before each move below. A lock waited for inside of the move's own statement is too late: the new row
# is first made of the version that the statement began with, and the CHECKs refuse that mixture.
LOCK = "SELECT 1 FROM wakeboard.job_runs WHERE id = %(id)s FOR NO KEY UPDATE"

_BEFORE = """
WITH before AS (
    SELECT id, status, run_at, failures, lease_epoch, finished_at, cancel_requested_at, locked_by,
        run_at > now() AS is_delayed, job_type, EXISTS (
            SELECT FROM wakeboard.job_types AS t WHERE t.name = job_runs.job_type AND t.paused_at IS NOT NULL
        ) AS is_paused
    FROM wakeboard.job_runs WHERE id = %(id)s
)"""
_AFTER = """
SELECT before.*, moved.status AS new_status, moved.run_at AS new_run_at,
    to_char(before.finished_at, 'YYYY-MM-DD HH24:MI:SS "UTC"') AS finished_text
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
    RETURNING id AS new_id, status, run_at
)
SELECT before.*, moved.new_id, moved.status AS new_status, moved.run_at AS new_run_at
FROM before LEFT JOIN moved ON true
"""

LEASE = """
SELECT r.status, r.job_type, r.lease_epoch, r.locked_by, r.failures,
    coalesce(r.max_attempts, t.max_attempts, 10) AS most,
    coalesce(t.backoff, 'exponential 10s cap 30m') AS backoff
FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
WHERE r.id = %(id)s FOR NO KEY UPDATE OF r
"""


def _row(connection: Connection, statement: str, values: Row) -> Row | None:
    """Return the one row of ``statement`` as a dictionary, None when there is none."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row: Row | None = cursor.execute(statement.encode(), values).fetchone()
        return row


def _move(connection: Connection, statement: str, values: Row) -> Row | None:
    """Lock the run ``values["id"]``, then send the move; return its row, None when there is no such run."""
    connection.execute(LOCK, values)
    return _row(connection, statement, values)


def permit(
    connection: Connection, actor: Actor, action: str, target_type: str, target_id: int | str
) -> Answer | None:
    """Return None when ``actor`` may do ``action``, else the refusal, which is audited.

    To a token for some job types a run of another type is one that is not there.
    """
    verb = VERBS[action]
    if not token_scope.holds(connection, actor, target_type, target_id):
        record(connection, actor, action, target_type, target_id, result="denied")
        if target_type == "run":
            return _missing(int(target_id))[0]
        return Answer(target_id, None, "denied", token_scope.says(actor))
    if actor.role.covers(verb.role):
        return None
    record(connection, actor, action, target_type, target_id, result="denied")
    message = f"'{actor.name}' is {actor.role.one}; to {verb.label.lower()} takes the role {verb.role}."
    return Answer(target_id, None, "denied", message)


def act(
    connection: Connection,
    actor: Actor,
    action: str,
    target: tuple[str, int | str],
    reason: str | None,
    move: Move,
) -> Answer:
    """Run ``move`` and its audit row in one transaction; the role is checked first.

    ``move`` returns the answer and the state before and after, as the audit log shows them. What the database
    refuses is 'forbidden': plain SQL may have written an ended run that could not be due, or a rule of its
    owner is in the way. What another transaction holds for longer than the session's lock_timeout allows is
    'locked'.
    """

    def acted() -> Answer:
        with connection.transaction():
            if refusal := permit(connection, actor, action, *target):
                return refusal
            answer, before, after = _moved(connection, target, move)
            record(
                connection, actor, action, *target, reason=reason, before=before, after=after,
                result=answer.result,
            )  # fmt: skip
            return answer

    return retry_with_immediate_constraints(connection, acted)


def _moved(connection: Connection, target: tuple[str, int | str], move: Move) -> Moved:
    """Return what ``move`` returns, or the answer to what kept the database from it."""
    try:
        with connection.transaction():
            return move()
    except LOCKED:
        return _locked(target), None, None
    except psycopg.Error as refused:
        if not is_refusal(refused):
            raise
        return _refused(target, refused), None, None


def _refused(target: tuple[str, int | str], refused: psycopg.Error) -> Answer:
    """Return the answer to what the database refused, without the row that it would tell with it."""
    rule, said = refused.diag.constraint_name, refused.diag.message_primary or "no reason was given"
    why = f"the rule “{rule}” of its table is broken" if rule else said.rstrip(".")
    kind, name = target
    message = f"The database refuses this for {kind} {name}: {why}. Nothing was changed."
    return Answer(name, None, "forbidden", message, is_refused=True)


def _locked(target: tuple[str, int | str]) -> Answer:
    kind, name = target
    message = f"{kind.capitalize()} {name} was locked by another transaction: try again."
    return Answer(name, None, "locked", message)


def leave(connection: Connection, run_id: int, actor: Actor, action: str, reason: str | None) -> Answer:
    """Leave a run that another transaction holds as it is. Returns 'locked' or 'denied'."""
    target = ("run", run_id)
    return act(connection, actor, action, target, reason, lambda: (_locked(target), None, None))


def _state(row: Row, prefix: str = "") -> Row:
    return {"status": row[f"{prefix}status"], "run_at": row[f"{prefix}run_at"]}


def _so(words: str, row: Row) -> str:
    """Return ``words`` as a sentence, which says of a paused type that its run waits all the same."""
    paused = f", but its type {row['job_type']} is paused: it waits until somebody resumes that."
    return words + (paused if row["is_paused"] else ".")


def _missing(run_id: int) -> tuple[Answer, None, None]:
    return (
        Answer(run_id, None, "missing", f"There is no run {run_id}; it may have been removed by retention."),
        None,
        None,
    )


def cancel(connection: Connection, run_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Cancel a run: at once when it waits or is dead; a running one is asked to stop and ends cancelled soon.

    Returns 'done', 'asked' (running), 'already', 'forbidden' (it succeeded), 'denied' or 'missing'.
    """

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _move(connection, CANCEL, {"id": run_id})
        if row is None:
            return _missing(run_id)
        if row["new_status"] == "running":
            connection.execute("SELECT pg_notify(%s, %s)", (CANCEL_CHANNEL, str(run_id)))
            answer = Answer(run_id, "running", "asked", f"Run {run_id} was asked to stop.")
        elif row["new_status"]:
            answer = Answer(run_id, "cancelled", "done", f"Run {run_id} is cancelled.")
        elif row["status"] == "running":
            return (
                Answer(run_id, "running", "already", f"Run {run_id} was already asked to stop."),
                _state(row),
                None,
            )
        elif row["status"] == "cancelled":
            message = f"Run {run_id} was already cancelled at {row['finished_text']}."
            return Answer(run_id, "cancelled", "already", message), _state(row), None
        else:
            message = f"Run {run_id} already ended: {row['status']} at {row['finished_text']}."
            return Answer(run_id, row["status"], "forbidden", message), _state(row), None
        after = _state(row, "new_") | ({"cancel_requested": True} if answer.result == "asked" else {})
        return answer, _state(row), after

    return act(connection, actor, "run.cancel", ("run", run_id), reason, move)


def retry_now(connection: Connection, run_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Make a run due now: from dead and cancelled with a fresh count of failures, from a backoff at once.

    Returns 'done', 'already' (due already), 'forbidden' (running or succeeded), 'denied' or 'missing'.
    """

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _move(connection, RETRY_NOW, {"id": run_id})
        if row is None:
            return _missing(run_id)
        if row["new_status"]:
            connection.execute("SELECT pg_notify(%s, '')", (WAKE_CHANNEL,))
            said = _so(f"Run {run_id} is due now", row)
            answer = Answer(run_id, row["new_status"], "done", said, is_held=row["is_paused"])
            return answer, _state(row), _state(row, "new_")
        if row["status"] in CLAIMABLE:
            return (
                Answer(run_id, row["status"], "already", _so(f"Run {run_id} is already due", row)),
                _state(row),
                None,
            )
        when = f" at {row['finished_text']}" if row["finished_text"] else ""
        message = {
            "running": f"Run {run_id} is running; cancel it first or wait for it to end.",
            "succeeded": f"Run {run_id} already succeeded{when}; run it again to make a new run.",
        }[row["status"]]
        return Answer(run_id, row["status"], "forbidden", message), _state(row), None

    return act(connection, actor, "run.retry", ("run", run_id), reason, move)


def release_lease(connection: Connection, run_id: int, actor: Actor, reason: str | None = None) -> Answer:
    """Take a run from a worker that is silent or whose lease has ended, as the reaper would.

    Returns 'done', 'forbidden' (not running, or its worker is alive), 'denied' or 'missing'.
    """

    def move() -> tuple[Answer, Row | None, Row | None]:
        lease = _row(connection, LEASE, {"id": run_id})
        if lease is None:
            return _missing(run_id)
        if lease["status"] != "running":
            message = f"Run {run_id} holds no lease: it is {lease['status']}."
            return Answer(run_id, lease["status"], "forbidden", message), None, None
        delay = Backoff.parse_or_default(lease["backoff"]).delay_seconds(lease["failures"] + 1)
        why = f"lease released by {actor.name}: worker {lease['locked_by']} was silent"
        group = lost_group(lease["job_type"])
        values = (
            [run_id], [lease["lease_epoch"]], [delay], [lease["most"]], why, [group.id], group.template,
        )  # fmt: skip
        cursor = psycopg.RawCursor(connection)
        moved = (
            cursor.execute(RELEASE_UNBEGUN.encode(), values[:2]).fetchone()
            or cursor.execute(RELEASE_LEASE.encode(), values).fetchone()
        )
        before = {"status": "running", "locked_by": lease["locked_by"]}
        if moved is None:
            message = f"The worker of run {run_id} is alive and renews its lease; cancel the run instead."
            return Answer(run_id, "running", "forbidden", message), before, None
        connection.execute("SELECT pg_notify(%s, '')", (WAKE_CHANNEL,))
        after = {"status": moved[1], "run_at": moved[2]}
        return (
            Answer(run_id, moved[1], "done", f"Run {run_id} was taken back; it is {moved[1]} now."),
            before,
            after,
        )

    return act(connection, actor, "lease.release", ("run", run_id), reason, move)


def run_again(
    connection: Connection, run_id: int, actor: Actor, reason: str | None = None, payload: Row | None = None
) -> Answer:
    """Enqueue a new run like an ended one: same definition, type and payload; no key, no fire.

    ``payload`` replaces the old one (admins only). ``Answer.id`` is the new run's. Returns 'done',
    'forbidden' (the old one has not ended), 'denied' or 'missing'. Raises EnqueueError for a payload that
    is too large or that PostgreSQL cannot hold.
    """

    def move() -> tuple[Answer, Row | None, Row | None]:
        if payload is not None and (refusal := permit(connection, actor, "schedule.edit", "run", run_id)):
            return refusal, None, None
        text = None if payload is None else payload_text(payload, payload_limit())
        row = _move(connection, RUN_AGAIN, {"id": run_id, "payload": text, "actor": actor.name})
        if row is None:
            return _missing(run_id)
        if row["new_id"] is None:
            message = f"Run {run_id} has not ended: it is {row['status']}. Retry or cancel it instead."
            return Answer(run_id, row["status"], "forbidden", message), _state(row), None
        message = _so(f"Run {row['new_id']} was enqueued, like run {run_id}", row)
        answer = Answer(row["new_id"], "queued", "done", message, is_held=row["is_paused"])
        return answer, _state(row), {"run": row["new_id"]}

    return act(connection, actor, "run.again", ("run", run_id), reason, move)
