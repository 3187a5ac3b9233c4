"""Starts an operation: its runs are written down once, and it never moves another."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import Connection

from wakeboard.bulk import rules
from wakeboard.core.answer import Answer
from wakeboard.database.audit import Actor, audited_transaction, record, shorten
from wakeboard.queue.operator import permit

# More open operations at once would be hard to follow.
MOST_OPEN = 20
OPEN = "SELECT count(*) FROM wakeboard.operations WHERE status IN ('running', 'paused')"
# One confirmation at a time, so that one that is sent twice finds the operation that it has started.
LOCK_STARTS = "SELECT pg_advisory_xact_lock(7229190503)"
STARTED = """
SELECT id, status FROM wakeboard.operations
WHERE verb = %(verb)s AND as_of = %(as_of)s AND filter = %(filter)s::jsonb AND actor = %(actor)s
ORDER BY id LIMIT 1
"""
INSERT = """
INSERT INTO wakeboard.operations
    (verb, filter, as_of, total, per_minute, stop_above_percent, canary, actor, role, source, reason)
VALUES (%(verb)s, %(filter)s::jsonb, %(as_of)s, %(total)s, %(per_minute)s, %(stop_above_percent)s, %(canary)s,
    %(actor)s, %(role)s, %(source)s, %(reason)s)
RETURNING id
"""
# Judged again: a run that has changed since it was counted is not bound.
BIND = f"""
INSERT INTO wakeboard.operation_runs (operation_id, run_id)
SELECT %(operation)s, r.id
FROM {rules.RUNS_BY_ID}
WHERE {{verdict}} = 'moves'
"""
RECORD_CHANGED = """
UPDATE wakeboard.operations SET skipped = %(changed)s,
    skips = jsonb_build_object('changed', %(changed)s::bigint)
WHERE id = %(operation)s
"""


@dataclass(frozen=True, slots=True)
class ConfirmedOperation:
    """What a person confirmed: ``verb`` on ``counted`` runs, counted at ``as_of``.

    ``query`` is the filter as its query string, empty where the runs were chosen one by one; ``also`` is what
    is included (of rules.INCLUDABLE). ``per_minute`` None: as fast as possible. ``stop_above_percent`` None:
    failures do not stop it.
    """

    verb: str
    query: str
    as_of: datetime
    counted: int
    also: tuple[str, ...] = ()
    per_minute: int | None = None
    stop_above_percent: int | None = None
    canary: bool = False

    def audit_values(self) -> dict[str, object]:
        """Return what the audit log keeps of it."""
        values = {
            "verb": self.verb,
            "filter": self.query or "chosen runs",
            "runs": self.counted,
            "as_of": self.as_of.isoformat(),
            "also": list(self.also) or None,
            "per_minute": self.per_minute,
            "stop_above_percent": self.stop_above_percent,
            "canary": self.canary or None,
        }
        return {name: value for name, value in values.items() if value is not None}


def start(
    connection: Connection,
    operation: ConfirmedOperation,
    ids: Sequence[int],
    actor: Actor,
    reason: str | None = None,
) -> Answer:
    """Create the operation on those of the runs ``ids`` that are as they were counted; workers move them.

    ``Answer.id`` is the operation's. Returns 'done', 'already' (this confirmation started it before),
    'forbidden' (no runs match any more, or more than were counted, or too many operations are open),
    'invalid' or 'denied'.
    """
    if operation.verb not in rules.VERB_MOVES:
        known = ", ".join(rules.VERB_MOVES)
        return Answer("new", None, "invalid", f"There is no verb “{operation.verb[:50]}”; allowed: {known}.")
    with audited_transaction(connection):
        if refusal := permit(connection, actor, f"run.{operation.verb}", "operation", "new"):
            return refusal
        if fault := _find_fault(operation):
            return Answer("new", None, "invalid", fault)
        connection.execute(LOCK_STARTS)
        if started := _find_started(connection, operation, actor):
            return started
        (count,) = connection.execute(OPEN).fetchone() or (0,)
        if count >= MOST_OPEN:
            message = f"{MOST_OPEN} operations are under way: wait for one to end, or abort one."
            return Answer("new", None, "forbidden", message)
        answer = Answer("new", None, "forbidden", "")
        with connection.transaction() as attempt:
            answer = _bind(connection, operation, ids, actor, reason)
            if not answer.changed:
                raise psycopg.Rollback(attempt)
        after = operation.audit_values()
        record(
            connection, actor, "operation.start", "operation", answer.id, reason=reason, after=after,
            result=answer.result,
        )  # fmt: skip
        return answer


def check_confirmation(counted: int, typed: str | None) -> str | None:
    """Return the sentence that says what to type, unless the number of runs was ``typed``.

    None when it was, and when nothing was typed (``typed`` None) for so few runs that nothing has to be.
    """
    runs = "1 run" if counted == 1 else f"{counted} runs"
    # Pages write it with narrow spaces between thousands.
    number = None if typed is None else re.sub(r"[\s,]", "", typed)
    if number == str(counted) or (number is None and counted <= rules.TYPED_ABOVE):
        return None
    given = ""
    if number:
        given = (
            f", not {number[:20]}" if re.fullmatch("[0-9]+", number) else f", “{number[:50]}” is no number"
        )
    return f"{runs}{given}: type {counted} to confirm. Nothing was changed."


def _find_started(connection: Connection, operation: ConfirmedOperation, actor: Actor) -> Answer | None:
    """Return the answer about the operation that the same confirmation has started before, if it has.

    So a form that is sent twice starts nothing again.
    """
    values = {
        "verb": operation.verb,
        "as_of": operation.as_of,
        "filter": _filter(operation),
        "actor": actor.name,
    }
    row = connection.execute(STARTED, values).fetchone()
    if row is None:
        return None
    operation_id, status = row
    message = f"This began operation {operation_id} before, which is {status}. Look again to begin another."
    return Answer(operation_id, status, "already", message)


def _filter(operation: ConfirmedOperation) -> str:
    return json.dumps({"query": operation.query, "also": list(operation.also)})


def _bind(
    connection: Connection,
    operation: ConfirmedOperation,
    ids: Sequence[int],
    actor: Actor,
    reason: str | None,
) -> Answer:
    values = {
        "verb": operation.verb,
        "filter": _filter(operation),
        "as_of": operation.as_of,
        "total": operation.counted,
        "per_minute": operation.per_minute,
        "stop_above_percent": operation.stop_above_percent,
        "canary": operation.canary and operation.verb in rules.WATCHED,
        "actor": actor.name,
        "role": actor.role.value,
        "source": actor.source,
        "reason": shorten(reason) if reason else None,
    }
    (operation_id,) = connection.execute(INSERT, values).fetchone() or (0,)
    values = {
        "operation": operation_id,
        "ids": list(ids),
        "as_of": operation.as_of,
        "also": list(operation.also),
    }
    statement = BIND.format(verdict=rules.verdict(operation.verb))
    bound = connection.execute(statement.encode(), values).rowcount
    if bound == 0:
        message = "Nothing is left to do: no run still is what was counted. Look again."
        return Answer("new", None, "forbidden", message)
    if bound > operation.counted:
        message = f"{bound} runs match now and {operation.counted} were confirmed: look again, then confirm."
        return Answer("new", None, "forbidden", message)
    if bound < operation.counted:
        connection.execute(RECORD_CHANGED, {"operation": operation_id, "changed": operation.counted - bound})
    runs = "1 run" if bound == 1 else f"{bound} runs"
    message = f"Operation {operation_id} has begun: {operation.verb} {runs}."
    return Answer(operation_id, "running", "done", message)


def _find_fault(operation: ConfirmedOperation) -> str | None:
    """Return what is wrong with the numbers in a sentence, None when nothing is."""
    if not 1 <= operation.counted <= rules.MOST_RUNS:
        return f"An operation is on 1 to {rules.MOST_RUNS} runs, not on {operation.counted}."
    if operation.per_minute is not None and not 1 <= operation.per_minute <= rules.FASTEST:
        return f"The pace is {operation.per_minute} a minute; allowed: 1 to {rules.FASTEST}."
    if operation.stop_above_percent is not None and not 0 <= operation.stop_above_percent <= 99:
        return f"Stop above {operation.stop_above_percent} % is not allowed; allowed: 0 to 99."
    if unknown := set(operation.also) - set(rules.INCLUDABLE):
        return f"“{sorted(unknown)[0][:50]}” cannot be included; allowed: {', '.join(rules.INCLUDABLE)}."
    return None
