"""Starting an operation: the runs it is bound to are written down once, and it never moves another."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from wakeboard.bulk import rules
from wakeboard.core.answer import Answer
from wakeboard.database.audit import Actor, _short, audited_transaction, record
from wakeboard.queue.operator import permit

Connection = psycopg.Connection[Any]

# More than this many at once would hide each other.
MOST_OPEN = 20
OPEN = "SELECT count(*) FROM wakeboard.operations WHERE status IN ('running', 'paused')"
# One confirmation at a time, so that one that is sent twice finds what it has begun.
IN_TURN = "SELECT pg_advisory_xact_lock(7229190503)"
BEGUN = """
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
# Judged again here: what changed since it was counted is not among them.
BIND = f"""
INSERT INTO wakeboard.operation_runs (operation_id, run_id)
SELECT %(operation)s, r.id
FROM {rules.TAKEN}
WHERE {{verdict}} = 'moves'
"""
NOTE_CHANGED = """
UPDATE wakeboard.operations SET skipped = %(changed)s,
    skips = jsonb_build_object('changed', %(changed)s::bigint)
WHERE id = %(operation)s
"""


@dataclass(frozen=True, slots=True)
class ConfirmedOperation:
    """What a person confirmed: ``verb`` on ``counted`` runs, counted at ``as_of``.

    ``query`` is the filter as its query string, empty where the runs were chosen one by one; ``also`` is what
    is taken along (of rules.ALSO). ``per_minute`` None: as fast as it goes. ``stop_above_percent`` None: it
    does not stop for failures.
    """

    verb: str
    query: str
    as_of: datetime
    counted: int
    also: tuple[str, ...] = ()
    per_minute: int | None = None
    stop_above_percent: int | None = None
    canary: bool = False

    def described(self) -> dict[str, Any]:
        """Return what the audit log keeps of it."""
        given = {
            "verb": self.verb,
            "filter": self.query or "chosen runs",
            "runs": self.counted,
            "as_of": self.as_of.isoformat(),
            "also": list(self.also) or None,
            "per_minute": self.per_minute,
            "stop_above_percent": self.stop_above_percent,
            "canary": self.canary or None,
        }
        return {name: value for name, value in given.items() if value is not None}


def start(
    connection: Connection,
    wanted: ConfirmedOperation,
    ids: Sequence[int],
    actor: Actor,
    reason: str | None = None,
) -> Answer:
    """Make the operation on the runs ``ids``, as far as they still are what was counted; workers move them.

    ``Answer.id`` is the operation's. Returns 'done', 'already' (this confirmation began it before),
    'forbidden' (nothing or more than was counted is left, or too many operations are open), 'invalid' or
    'denied'.
    """
    if wanted.verb not in rules.VERB_MOVES:
        known = ", ".join(rules.VERB_MOVES)
        return Answer("new", None, "invalid", f"There is no verb “{wanted.verb[:50]}”; allowed: {known}.")
    with audited_transaction(connection):
        if refusal := permit(connection, actor, f"run.{wanted.verb}", "operation", "new"):
            return refusal
        wrong = _wrong(wanted)
        if wrong:
            return Answer("new", None, "invalid", wrong)
        connection.execute(IN_TURN)
        if begun := _begun(connection, wanted, actor):
            return begun
        if _one(connection, OPEN) >= MOST_OPEN:
            message = f"{MOST_OPEN} operations are under way: wait for one to end, or abort one."
            return Answer("new", None, "forbidden", message)
        answer = Answer("new", None, "forbidden", "")
        with connection.transaction() as attempt:
            answer = _bind(connection, wanted, ids, actor, reason)
            if not answer.changed:
                raise psycopg.Rollback(attempt)
        after = wanted.described()
        record(
            connection, actor, "operation.start", "operation", answer.id, reason=reason, after=after,
            result=answer.result,
        )  # fmt: skip
        return answer


def unconfirmed(counted: int, typed: str | None) -> str | None:
    """Return what to type, in a sentence, where it is not the number of runs that was ``typed``.

    None when it is, and when nothing was typed (``typed`` None) for so few that nothing has to be.
    """
    runs = "1 run" if counted == 1 else f"{counted} runs"
    # Pages write it with narrow spaces between thousands.
    number = None if typed is None else re.sub(r"[\s,]", "", typed)
    if number == str(counted) or (number is None and counted <= rules.TYPED_ABOVE):
        return None
    said = ""
    if number:
        said = f", not {number[:20]}" if re.fullmatch("[0-9]+", number) else f", “{number[:50]}” is no number"
    return f"{runs}{said}: type {counted} to confirm. Nothing was changed."


def _begun(connection: Connection, wanted: ConfirmedOperation, actor: Actor) -> Answer | None:
    """Return what the same confirmation has begun before: a form sent twice runs nothing again."""
    values = {
        "verb": wanted.verb,
        "as_of": wanted.as_of,
        "filter": _filter(wanted),
        "actor": actor.name,
    }
    found = connection.execute(BEGUN, values).fetchone()
    if found is None:
        return None
    message = f"This began operation {found[0]} before, which is {found[1]}. Look again to begin another."
    return Answer(found[0], found[1], "already", message)


def _filter(wanted: ConfirmedOperation) -> str:
    return json.dumps({"query": wanted.query, "also": list(wanted.also)})


def _bind(
    connection: Connection, wanted: ConfirmedOperation, ids: Sequence[int], actor: Actor, reason: str | None
) -> Answer:
    values = {
        "verb": wanted.verb,
        "filter": _filter(wanted),
        "as_of": wanted.as_of,
        "total": wanted.counted,
        "per_minute": wanted.per_minute,
        "stop_above_percent": wanted.stop_above_percent,
        "canary": wanted.canary and wanted.verb in rules.WATCHED,
        "actor": actor.name,
        "role": actor.role.value,
        "source": actor.source,
        "reason": _short(reason) if reason else None,
    }
    operation = _one(connection, INSERT, values)
    values = {"operation": operation, "ids": list(ids), "as_of": wanted.as_of, "also": list(wanted.also)}
    statement = BIND.format(verdict=rules.verdict(wanted.verb))
    bound = connection.execute(statement.encode(), values).rowcount
    if bound == 0:
        message = "Nothing is left to do: no run still is what was counted. Look again."
        return Answer("new", None, "forbidden", message)
    if bound > wanted.counted:
        message = f"{bound} runs match now and {wanted.counted} were confirmed: look again, then confirm."
        return Answer("new", None, "forbidden", message)
    if bound < wanted.counted:
        connection.execute(NOTE_CHANGED, {"operation": operation, "changed": wanted.counted - bound})
    runs = "1 run" if bound == 1 else f"{bound} runs"
    return Answer(operation, "running", "done", f"Operation {operation} has begun: {wanted.verb} {runs}.")


def _wrong(wanted: ConfirmedOperation) -> str | None:
    """Return what is wrong with the numbers in a sentence, None when nothing is."""
    if not 1 <= wanted.counted <= rules.MOST_RUNS:
        return f"An operation is on 1 to {rules.MOST_RUNS} runs, not on {wanted.counted}."
    if wanted.per_minute is not None and not 1 <= wanted.per_minute <= rules.FASTEST:
        return f"The pace is {wanted.per_minute} a minute; allowed: 1 to {rules.FASTEST}."
    if wanted.stop_above_percent is not None and not 0 <= wanted.stop_above_percent <= 99:
        return f"Stop above {wanted.stop_above_percent} % is not allowed; allowed: 0 to 99."
    if unknown := set(wanted.also) - set(rules.ALSO):
        return f"“{sorted(unknown)[0][:50]}” cannot be included; allowed: {', '.join(rules.ALSO)}."
    return None


def _one(connection: Connection, statement: str, values: dict[str, Any] | None = None) -> int:
    row = connection.execute(statement.encode(), values or {}).fetchone()
    assert row is not None
    return int(row[0])
