"""Accounts of people, their passwords and roles.

Every function works on an autocommit connection or inside the caller's transaction. Every change is audited
in the transaction that makes it. Of passwords, cookies and tokens only hashes are stored.
"""

from __future__ import annotations

import re

from psycopg import Connection
from psycopg.rows import dict_row

from wakeboard.accounts import passwords, throttle
from wakeboard.accounts.sessions import close_sessions_of
from wakeboard.config.settings import SESSION_IDLE_SECONDS
from wakeboard.core.states import Role
from wakeboard.core.time.clock_skew import is_since
from wakeboard.database.audit import Actor, audited_transaction, record
from wakeboard.queue.permission import AccountError, require

# Names that the audit log uses for actors that are no people.
RESERVED = re.compile(r"(?:engine|anonymous)\Z|(?:cli|link|token):")
CREATE = """
INSERT INTO wakeboard.users (name, role, password_hash) VALUES (%s, %s, %s)
ON CONFLICT (name) DO NOTHING RETURNING id
"""
SET_PASSWORD = """
UPDATE wakeboard.users SET password_hash = %s, password_changed_at = now() WHERE name = %s RETURNING id
"""
SET_ROLE = "UPDATE wakeboard.users SET role = %s WHERE name = %s"
DISABLE = (
    "UPDATE wakeboard.users SET disabled_at = now() WHERE name = %s AND disabled_at IS NULL RETURNING id"
)
ENABLE = (
    "UPDATE wakeboard.users SET disabled_at = NULL WHERE name = %s AND disabled_at IS NOT NULL RETURNING id"
)
LIST = f"""
SELECT u.name, u.role, u.created_at, u.disabled_at, u.password_changed_at,
    (SELECT count(*) FROM wakeboard.sessions AS s
        WHERE s.user_id = u.id AND s.expires_at > now() AND {is_since("s.seen_at", "%s")}
    ) AS sessions
FROM wakeboard.users AS u ORDER BY u.name
"""


def create_user(connection: Connection, actor: Actor, name: str, role: Role, password: str) -> int:
    """Add a person and return the account's id. Raises AccountError for a wrong or taken name or password."""
    require(connection, actor, "user.change", "user", name)
    if not re.fullmatch(r"[^\s\x00-\x1f\x7f-\x9f]{1,100}", name):
        raise AccountError(f"The name {name!r} is not allowed: use 1 to 100 characters without spaces.")
    if RESERVED.match(name):
        raise AccountError(
            f"The name '{name}' is not allowed: the audit log calls others so, who are no people. Not "
            "allowed are engine, anonymous, and what begins with cli:, link: or token:."
        )
    password_hash = _check_and_hash(password, name)
    with audited_transaction(connection):
        row = connection.execute(CREATE, (name, role.value, password_hash)).fetchone()
        if row is None:
            raise AccountError(
                f"There is a user '{name}' already. To change the password: user passwd {name}"
            )
        record(connection, actor, "user.change", "user", name, after={"change": "create", "role": role.value})
    return int(row[0])


def set_password(connection: Connection, actor: Actor, name: str, password: str) -> None:
    """Give ``name`` a new password and end every session of theirs. Raises AccountError."""
    require(connection, actor, "user.change", "user", name)
    _require_user(connection, name)
    password_hash = _check_and_hash(password, name)
    with audited_transaction(connection):
        connection.execute(SET_PASSWORD, (password_hash, name))
        ended = close_sessions_of(connection, name)
        after = {"change": "password", "sessions_ended": ended}
        record(connection, actor, "user.change", "user", name, after=after)


def set_role(connection: Connection, actor: Actor, name: str, role: Role) -> bool:
    """Give ``name`` another role, from the next request on; False when it is theirs. Raises AccountError."""
    require(connection, actor, "user.change", "user", name)
    with audited_transaction(connection):
        before = _require_user(connection, name)
        if before == role:
            return False
        connection.execute(SET_ROLE, (role.value, name))
        record(connection, actor, "user.change", "user", name, before={"role": before}, after={"role": role})
    return True


def disable_user(connection: Connection, actor: Actor, name: str) -> bool:
    """Shut ``name`` out from their next request on; False when disabled before. Raises AccountError."""
    return _switch(connection, actor, name, DISABLE, "disable")


def enable_user(connection: Connection, actor: Actor, name: str) -> bool:
    """Let ``name`` in again; False when not disabled. Raises AccountError."""
    return _switch(connection, actor, name, ENABLE, "enable")


def _switch(connection: Connection, actor: Actor, name: str, statement: str, change: str) -> bool:
    require(connection, actor, "user.change", "user", name)
    with audited_transaction(connection):
        _require_user(connection, name)
        changed = connection.execute(statement.encode(), (name,)).fetchone() is not None
        if changed:
            close_sessions_of(connection, name)
            record(connection, actor, "user.change", "user", name, after={"change": change})
    return changed


def list_users(connection: Connection, idle_seconds: float = SESSION_IDLE_SECONDS) -> list[dict[str, object]]:
    """Return every account: name, role, created_at, disabled_at, password_changed_at, open sessions."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(LIST, (idle_seconds,)).fetchall()


def check_password(connection: Connection, name: str, password: str, ip: str | None) -> Actor | None:
    """Return the actor of an enabled account with this password, else None; both take the same time.

    Raises TooManyAttempts, for an account that exists and for one that does not alike.
    """
    if not 1 <= len(name) <= 100 or "\0" in name:
        throttle.count_attempt(connection, "", ip)
        passwords.is_password_of(None, password)
        return None
    throttle.count_attempt(connection, name, ip)
    statement = "SELECT password_hash, role FROM wakeboard.users WHERE name = %s AND disabled_at IS NULL"
    row = connection.execute(statement, (name,)).fetchone()
    if not passwords.is_password_of(row[0] if row else None, password) or row is None:
        return None
    throttle.record_success(connection, name, ip)
    return Actor(name, Role(row[1]), "web", ip)


def install_id(connection: Connection) -> str:
    """Return this installation's id, a few letters and digits made by its first migration."""
    row = connection.execute("SELECT id FROM wakeboard.installation ORDER BY created_at LIMIT 1").fetchone()
    if row is None:
        raise AccountError("The table wakeboard.installation is empty; run: wakeboard db upgrade")
    return str(row[0])


def _check_and_hash(password: str, name: str) -> str:
    if weakness := passwords.find_weakness(password, name):
        raise AccountError(weakness)
    return passwords.hash_password(password)


def _require_user(connection: Connection, name: str) -> str:
    """Return the role of ``name``, its row locked; raises AccountError when there is no such account."""
    row = connection.execute(
        "SELECT role FROM wakeboard.users WHERE name = %s FOR UPDATE", (name,)
    ).fetchone()
    if row is None:
        raise AccountError(f"There is no user '{name}'. See: wakeboard user list")
    return str(row[0])
