"""API tokens: named, bound to a role, shown once, stored as a hash, revocable. Every change is audited."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from psycopg import Connection
from psycopg.rows import dict_row

from wakeboard.accounts.sessions import hash_secret
from wakeboard.core.run_spec import EnqueueError, check_type
from wakeboard.core.states import Role
from wakeboard.core.time.clock_skew import is_before
from wakeboard.database.audit import Actor, audited_transaction, record
from wakeboard.queue import token_scope
from wakeboard.queue.permission import AccountError, require

PREFIX = "wb_"

CREATE = """
INSERT INTO wakeboard.tokens (name, role, job_types, token_hash, created_by, expires_at)
VALUES (%s, %s, %s::text[], %s, %s, now() + make_interval(days => %s))
ON CONFLICT (name) DO NOTHING RETURNING id
"""
REVOKE = (
    "UPDATE wakeboard.tokens SET revoked_at = now() WHERE name = %s AND revoked_at IS NULL RETURNING role"
)
LIST = """
SELECT name, role, job_types, created_by, created_at, expires_at, revoked_at, used_at,
    revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) AS is_valid
FROM wakeboard.tokens ORDER BY name
"""
REGISTERED_TYPES = "SELECT name FROM wakeboard.job_types WHERE name = ANY(%s::text[])"
FIND = f"""
SELECT id, name, role, job_types, used_at IS NULL OR {is_before("used_at", 60)}
FROM wakeboard.tokens
WHERE token_hash = %s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
"""


def create_token(
    connection: Connection,
    actor: Actor,
    name: str,
    role: Role,
    days: int | None = None,
    job_types: Sequence[str] | None = None,
) -> str:
    """Return a new token (``wb_…``), which cannot be shown again; it ends after ``days``, None: never.

    With ``job_types`` it is for runs of these types alone (``queue.token_scope``), registered yet or not.
    Raises AccountError when the name is taken or wrong, a type's name cannot be one, or the actor may not.
    """
    require(connection, actor, "token.change", "token", name)
    if not re.fullmatch(r"[^\x00-\x1f\x7f-\x9f]{1,100}", name):
        raise AccountError("A token's name has 1 to 100 characters and no control characters.")
    if days is not None and not 1 <= days <= 3650:
        raise AccountError(f"A token lasts 1 to 3650 days, not {days}; leave it out for one that never ends.")
    types = None if job_types is None else _check_types(job_types)
    token = PREFIX + secrets.token_urlsafe(32)
    with audited_transaction(connection):
        values = (name, role.value, types, hash_secret(token), actor.name, days)
        if connection.execute(CREATE, values).fetchone() is None:
            raise AccountError(f"There is a token '{name}' already (perhaps revoked); choose another name.")
        after: dict[str, object] = {"change": "create", "role": role.value, "days": days}
        if types is not None:
            after["job_types"] = types
        record(connection, actor, "token.change", "token", name, after=after)
    return token


def _check_types(job_types: Sequence[str]) -> list[str]:
    """Return the names of job types without repetitions. Raises AccountError."""
    types = list(dict.fromkeys(job_types))
    if not 1 <= len(types) <= token_scope.MOST_TYPES:
        raise AccountError(
            f"A token is for 1 to {token_scope.MOST_TYPES} job types, or for all; not {len(types)}."
        )
    try:
        for name in types:
            check_type(name)
    except EnqueueError as wrong:
        raise AccountError(str(wrong)) from wrong
    return types


def unknown_types(connection: Connection, job_types: Sequence[str]) -> list[str]:
    """Return those of ``job_types`` that no worker has registered yet."""
    registered = {name for (name,) in connection.execute(REGISTERED_TYPES, (list(job_types),))}
    return [name for name in dict.fromkeys(job_types) if name not in registered]


def revoke_token(connection: Connection, actor: Actor, name: str) -> bool:
    """End the token ``name`` now; False when it was revoked before. Raises AccountError if there is none."""
    require(connection, actor, "token.change", "token", name)
    with audited_transaction(connection):
        row = connection.execute(REVOKE, (name,)).fetchone()
        if row is None:
            if connection.execute("SELECT 1 FROM wakeboard.tokens WHERE name = %s", (name,)).fetchone():
                return False
            raise AccountError(f"There is no token '{name}'. See: wakeboard token list")
        record(connection, actor, "token.change", "token", name, after={"change": "revoke"})
    return True


def list_tokens(connection: Connection) -> list[dict[str, object]]:
    """Return every token without its secret: name, role, job_types, created_by, the times, is_valid."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(LIST).fetchall()


def authenticate_token(connection: Connection, token: str) -> Actor | None:
    """Return the actor ``token:<name>`` of a token that is valid now, with its job types, else None."""
    if not token.startswith(PREFIX):
        return None
    row = connection.execute(FIND, (hash_secret(token),)).fetchone()
    if row is None:
        return None
    token_id, name, role, job_types, is_stale = row
    if is_stale:
        connection.execute("UPDATE wakeboard.tokens SET used_at = now() WHERE id = %s", (token_id,))
    types = None if job_types is None else tuple(job_types)
    return Actor(f"token:{name}", Role(role), "api", job_types=types)
