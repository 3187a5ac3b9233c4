"""The audit log: who asked for what, when, from where, why, and what came of it. Append-only.

A row is written in the transaction of the move it describes; nothing here updates or deletes. What a person
did is also a line in the log of the process, written when the transaction has committed
(``audited_transaction``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

import psycopg

from wakeboard.config import log
from wakeboard.core.process import os_user
from wakeboard.core.states import Role

Connection = psycopg.Connection

RECORD = """
INSERT INTO wakeboard.audit_log
    (actor, role, source, action, target_type, target_id, reason, before, after, result, request_id, ip)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s::jsonb, %s, %s, %s)
"""


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody who acts: a person, a token, a terminal user or the engine itself.

    ``source`` is 'web', 'api', 'cli' or 'engine'; ``ip`` and ``request_id`` are those of the HTTP request.
    ``job_types`` are those that a token is for (``wakeboard.queue.token_scope``), None for everybody else.
    """

    name: str
    role: Role
    source: str
    ip: str | None = None
    request_id: str | None = None
    job_types: tuple[str, ...] | None = None


# Log lines that wait for the end of a ``log_at_end`` block; None outside of one.
_pending: ContextVar[list[Callable[[], None]] | None] = ContextVar("pending", default=None)

ENGINE = Actor("engine", Role.ADMIN, "engine")
NOBODY = Actor("anonymous", Role.VIEWER, "web")


def terminal_actor() -> Actor:
    """Return the actor of a command typed in a terminal: ``cli:<os user>``, with every right."""
    return Actor(f"cli:{os_user.name()}", Role.ADMIN, "cli")


@contextmanager
def log_at_end() -> Iterator[None]:
    """Log what is recorded within the block when it ends, and nothing when it ends by an exception.

    For a block that commits, or is inside one that does: what is rolled back was not done.
    """
    outer = _pending.get()
    lines: list[Callable[[], None]] = []
    token = _pending.set(lines)
    try:
        yield
    finally:
        _pending.reset(token)
    if outer is not None:
        outer += lines
    else:
        for line in lines:
            line()


@contextmanager
def audited_transaction(connection: Connection) -> Iterator[None]:
    """Open a transaction; what is recorded in it is logged once it is committed."""
    with log_at_end(), connection.transaction():
        yield


def record(
    connection: Connection,
    actor: Actor,
    action: str,
    target_type: str | None = None,
    target_id: object = None,
    *,
    reason: str | None = None,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
    result: str = "done",
) -> None:
    """Append one row on ``connection``, in the transaction it is in, and log who did what to what.

    ``result`` is 'done', 'asked', 'already', 'forbidden' (the state says no), 'locked' (another transaction
    held the row), 'denied' (the role says no), 'refused' (a cross-site request) or 'missing'. Texts are cut
    to 500 characters.
    """
    values = (
        shorten(actor.name),
        actor.role.value,
        actor.source,
        action,
        target_type,
        None if target_id is None else shorten(str(target_id)),
        shorten(reason) if reason else None,
        _json(before),
        _json(after),
        result,
        actor.request_id,
        actor.ip,
    )
    connection.execute(RECORD, values)
    _log(actor, action, target_type, target_id, result)


def _log(actor: Actor, action: str, target_type: str | None, target_id: object, result: str) -> None:
    """Log the act without reason and payload, which may hold secrets. The engine logs its own moves."""
    if actor.source == ENGINE.source:
        return
    name = "" if target_id is None else f":{shorten(str(target_id))}"
    line = partial(
        log.note, action, by=shorten(actor.name), role=actor.role.value, source=actor.source,
        target=f"{target_type}{name}" if target_type else None, result=result, request_id=actor.request_id,
    )  # fmt: skip
    pending = _pending.get()
    if pending is None:
        line()
    else:
        pending.append(line)


def shorten(text: str) -> str:
    """Return ``text`` without control characters, at most 500 characters long."""
    clean = "".join(c if c.isprintable() else " " for c in text[:500])
    return clean.encode("utf-8", "replace").decode()


def _json(value: Mapping[str, object] | None) -> str | None:
    return None if value is None else json.dumps(value, default=str)
