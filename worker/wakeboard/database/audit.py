"""The audit log: who asked for what, when, from where, why, and what came of it. Append-only.

Rows are written in the same transaction as the move they tell of; nothing here updates or deletes. What a
person did is a line in the log of the process as well: there it stands among what the workers did. It is
written once the row stands (``acting``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from wakeboard.config import log
from wakeboard.core.process import os_user
from wakeboard.core.states import Role

Connection = psycopg.Connection[Any]

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


# Lines of the log that wait for the end of a block; None outside of one.
_waiting: ContextVar[list[Callable[[], None]] | None] = ContextVar("waiting", default=None)

ENGINE = Actor("engine", Role.ADMIN, "engine")
NOBODY = Actor("anonymous", Role.VIEWER, "web")


def terminal_actor() -> Actor:
    """Return the actor of a command typed in a terminal: ``cli:<os user>``, with every right."""
    return Actor(f"cli:{os_user.name()}", Role.ADMIN, "cli")


@contextmanager
def told_at_the_end() -> Iterator[None]:
    """Log what is recorded within the block when it ends, and not where it ends by an exception.

    For a block that commits, or leaves that to a block around it: what is rolled back was not done.
    """
    outer = _waiting.get()
    lines: list[Callable[[], None]] = []
    token = _waiting.set(lines)
    try:
        yield
    finally:
        _waiting.reset(token)
    if outer is not None:
        outer += lines
    else:
        for line in lines:
            line()


@contextmanager
def acting(connection: Connection) -> Iterator[None]:
    """Open the transaction of an act: what is recorded in it is logged once it is committed."""
    with told_at_the_end(), connection.transaction():
        yield


def record(
    connection: Connection,
    actor: Actor,
    action: str,
    target_type: str | None = None,
    target_id: object = None,
    *,
    reason: str | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    result: str = "done",
) -> None:
    """Append one row on ``connection``, inside whatever transaction it is in, and log who did what to what.

    ``result`` is 'done', 'asked', 'already', 'forbidden' (the state says no), 'locked' (another
    transaction held it), 'denied' (the role says no),
    'refused' (a cross-site request) or 'missing'. Text is cut to bounds a page can show.
    """
    values = (
        _short(actor.name),
        actor.role.value,
        actor.source,
        action,
        target_type,
        None if target_id is None else _short(str(target_id)),
        _short(reason) if reason else None,
        _json(before),
        _json(after),
        result,
        actor.request_id,
        actor.ip,
    )
    connection.execute(RECORD, values)
    _log(actor, action, target_type, target_id, result)


def _log(actor: Actor, action: str, target_type: str | None, target_id: object, result: str) -> None:
    """Write the line: no reason and no payload, in which secrets may be. The engine tells of itself."""
    if actor.source == ENGINE.source:
        return
    name = "" if target_id is None else f":{_short(str(target_id))}"
    line = partial(
        log.note, action, by=_short(actor.name), role=actor.role.value, source=actor.source,
        target=f"{target_type}{name}" if target_type else None, result=result, request_id=actor.request_id,
    )  # fmt: skip
    waiting = _waiting.get()
    if waiting is None:
        line()
    else:
        waiting.append(line)


def _short(text: str) -> str:
    """Return ``text`` without control characters, at most 500 characters long."""
    clean = "".join(c if c.isprintable() else " " for c in text[:500])
    return clean.encode("utf-8", "replace").decode()


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value, default=str)
