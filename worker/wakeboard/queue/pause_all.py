"""Pauses all types together, and resumes them together. Pauses of single types stay as they are.

Types paused together have the moment of their pause in common: what somebody had paused before, and why, is
not touched by either move. The last one left of them has it in common with the audit log, as long as that
remembers; after that it is like any that was paused by itself. Mails and calls of alerts go on.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from wakeboard.core.answer import Answer
from wakeboard.core.rule_types import JOB_TYPE as ALERTS
from wakeboard.database.audit import Actor, audited_transaction, record
from wakeboard.queue import pauses
from wakeboard.queue.operator import Connection, permit

HOLD, LET_GO = "type.hold", "type.let_go"
TARGET = ("types", "all")
ACTIVE = """
SELECT name FROM wakeboard.job_types WHERE paused_at IS NULL AND name <> %(alerts)s ORDER BY name
FOR NO KEY UPDATE
"""
# Of rows that one transaction wrote, now() is the same.
TOGETHER = f"""
(t.paused_at IN (
        SELECT o.paused_at FROM wakeboard.job_types AS o WHERE o.paused_at IS NOT NULL
        GROUP BY o.paused_at HAVING count(*) > 1
    ) OR t.paused_at IN (
        SELECT a.at FROM wakeboard.audit_log AS a WHERE a.action = '{HOLD}' AND a.result = 'done'
        ORDER BY a.id DESC LIMIT 100
    ))
"""
HELD = f"SELECT t.name FROM wakeboard.job_types AS t WHERE {TOGETHER} ORDER BY t.name FOR NO KEY UPDATE"


def hold(
    connection: Connection, actor: Actor, reason: str | None = None, *, until: datetime | None = None
) -> Answer:
    """Pause every type that is not paused, but for alerts; ``until`` as in ``pauses.pause``.

    Returns 'done', 'already' (nothing was left to pause), 'invalid' (an end that cannot be) or 'denied'. Each
    type has a row of its own in the audit log, and the whole has one.
    """
    with audited_transaction(connection):
        if refusal := permit(connection, actor, HOLD, *TARGET):
            return refusal
        names = _names(connection, ACTIVE)
        for name in names:
            answer = pauses.pause(connection, name, actor, reason, until=until)
            if answer.result == "invalid":
                return Answer("all", None, "invalid", answer.message)
        return _record(connection, actor, HOLD, reason, names, until)


def let_go(connection: Connection, actor: Actor, reason: str | None = None) -> Answer:
    """Resume the types that were paused together; those that were paused by themselves stay so."""
    with audited_transaction(connection):
        if refusal := permit(connection, actor, LET_GO, *TARGET):
            return refusal
        names = _names(connection, HELD)
        for name in names:
            pauses.resume(connection, name, actor, reason)
        return _record(connection, actor, LET_GO, reason, names, None)


def _names(connection: Connection, statement: str) -> list[str]:
    return [str(row[0]) for row in connection.execute(statement.encode(), {"alerts": ALERTS})]


def _record(
    connection: Connection, actor: Actor, action: str, reason: str | None, names: list[str], until: Any
) -> Answer:
    """Write the row of the whole and say what was done."""
    is_hold = action == HOLD
    types = "1 type is" if len(names) == 1 else f"{len(names)} types are"
    if names:
        message = f"{types} {'paused; what runs goes on' if is_hold else 'claimed again'}."
        after = {"paused": is_hold, "types": names} | ({"paused_until": until} if until else {})
        answer = Answer("all", "paused" if is_hold else "active", "done", message)
    else:
        message = "Every type is paused already." if is_hold else "No types are paused together."
        after = {}
        answer = Answer("all", None, "already", message)
    record(connection, actor, action, *TARGET, reason=reason, after=after or None, result=answer.result)
    return answer
