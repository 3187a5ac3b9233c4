"""API tokens: named, bound to a role, shown once, kept as a hash, revocable. Every change is audited."""

from __future__ import annotations

import re
import secrets
from typing import Any

import psycopg
from psycopg.rows import dict_row

from worker.audit import Actor, record
from worker.people.permission import AccountError, require
from worker.people.sessions import hash_of
from worker.states import Role

Connection = psycopg.Connection[Any]
PREFIX = "wb_"

CREATE = """
INSERT INTO wakeboard.tokens (name, role, token_hash, created_by, expires_at)
VALUES (%s, %s, %s, %s, now() + make_interval(days => %s)) ON CONFLICT (name) DO NOTHING RETURNING id
"""
REVOKE = (
    "UPDATE wakeboard.tokens SET revoked_at = now() WHERE name = %s AND revoked_at IS NULL RETURNING role"
)
LIST = """
SELECT name, role, created_by, created_at, expires_at, revoked_at, used_at,
    revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) AS is_valid
FROM wakeboard.tokens ORDER BY name
"""
FIND = """
SELECT id, name, role, used_at IS NULL OR used_at < now() - interval '1 minute'
FROM wakeboard.tokens
WHERE token_hash = %s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
"""


def create_token(connection: Connection, actor: Actor, name: str, role: Role, days: int | None = None) -> str:
    """Return a new token (``wb_…``), which cannot be shown again; it ends after ``days``, None: never.

    Raises AccountError when the name is taken or wrong, or the actor may not.
    """
    require(connection, actor, "token.change", "token", name)
    if not re.fullmatch(r"[^\x00-\x1f\x7f-\x9f]{1,100}", name):
        raise AccountError("A token's name has 1 to 100 characters and no control characters.")
    if days is not None and not 1 <= days <= 3650:
        raise AccountError(f"A token lasts 1 to 3650 days, not {days}; leave it out for one that never ends.")
    token = PREFIX + secrets.token_urlsafe(32)
    with connection.transaction():
        made = connection.execute(CREATE, (name, role.value, hash_of(token), actor.name, days)).fetchone()
        if made is None:
            raise AccountError(f"There is a token '{name}' already (perhaps revoked); choose another name.")
        after = {"change": "create", "role": role.value, "days": days}
        record(connection, actor, "token.change", "token", name, after=after)
    return token


def revoke_token(connection: Connection, actor: Actor, name: str) -> bool:
    """End the token ``name`` now; False when it was revoked before. Raises AccountError if there is none."""
    require(connection, actor, "token.change", "token", name)
    with connection.transaction():
        row = connection.execute(REVOKE, (name,)).fetchone()
        if row is None:
            if connection.execute("SELECT 1 FROM wakeboard.tokens WHERE name = %s", (name,)).fetchone():
                return False
            raise AccountError(f"There is no token '{name}'. See: wakeboard token list")
        record(connection, actor, "token.change", "token", name, after={"change": "revoke"})
    return True


def list_tokens(connection: Connection) -> list[dict[str, Any]]:
    """Return every token without its secret: name, role, created_by, the times, is_valid."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(LIST).fetchall()


def authenticate_token(connection: Connection, token: str) -> Actor | None:
    """Return the actor ``token:<name>`` of a token that is valid now, else None."""
    if not token.startswith(PREFIX):
        return None
    row = connection.execute(FIND, (hash_of(token),)).fetchone()
    if row is None:
        return None
    token_id, name, role, is_stale = row
    if is_stale:
        connection.execute("UPDATE wakeboard.tokens SET used_at = now() WHERE id = %s", (token_id,))
    return Actor(f"token:{name}", Role(role), "api")
