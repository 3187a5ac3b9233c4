"""The permission to change people and tokens; a refusal is audited and raised as a sentence."""

from __future__ import annotations

from psycopg import Connection

from wakeboard.database.audit import Actor
from wakeboard.queue.operator import permit


class AccountError(ValueError):
    """A change of people or tokens is not possible; ``str()`` is a sentence that says what is allowed."""


def require(connection: Connection, actor: Actor, action: str, kind: str, name: str) -> None:
    """Raise AccountError, audited as denied, unless ``actor`` may do ``action`` on the ``kind`` ``name``."""
    refusal = permit(connection, actor, action, kind, name)
    if refusal is not None:
        raise AccountError(refusal.message)
