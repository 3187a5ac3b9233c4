"""Browser sessions and one-time login links: who is signed in, and until when.

The browser holds a random text, the table only its hash; roles are read from the table at every request.
The database's clock decides what has expired. How long a session lasts is a setting; here are its defaults.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import psycopg

from wakeboard.core.states import Role
from wakeboard.core.time.clock_skew import is_ahead, is_since
from wakeboard.database.audit import Actor, audited_transaction, record, terminal_actor

Connection = psycopg.Connection[Any]

SESSION_SECONDS = 12 * 3600
IDLE_SECONDS = 30 * 60
LINK_SECONDS = 15 * 60

OPEN = """
INSERT INTO wakeboard.sessions (id_hash, user_id, actor, role, ip, expires_at)
VALUES (%s, %s, %s, %s, %s, now() + make_interval(secs => %s))
"""
# One that was used ahead of the clock has been idle for nobody knows how long: its person signs in again.
_IS_USED = f"(s.expires_at > now() AND {is_since('s.seen_at', '%(idle)s')})"
_ALIVE = f"s.id_hash = %(hash)s AND {_IS_USED}"
FIND = f"""
SELECT s.actor, coalesce(u.role, s.role), s.ip, s.seen_at < now() - interval '20 seconds'
FROM wakeboard.sessions AS s LEFT JOIN wakeboard.users AS u ON u.id = s.user_id
WHERE {_ALIVE} AND (s.user_id IS NULL OR u.disabled_at IS NULL)
"""
GOOD = f"""
SELECT s.id_hash, coalesce(u.role, s.role)
FROM wakeboard.sessions AS s LEFT JOIN wakeboard.users AS u ON u.id = s.user_id
WHERE s.id_hash = ANY (%(hashes)s) AND {_IS_USED} AND (s.user_id IS NULL OR u.disabled_at IS NULL)
"""
TOUCH = f"UPDATE wakeboard.sessions AS s SET seen_at = now() WHERE {_ALIVE}"
# Who was idle for too long is what each dashboard's own setting says.
TIDY_SESSIONS = f"DELETE FROM wakeboard.sessions WHERE expires_at < now() OR {is_ahead('seen_at')}"
HERE = "DELETE FROM wakeboard.sessions WHERE id_hash = %s RETURNING actor"
EVERYWHERE = """
DELETE FROM wakeboard.sessions
WHERE actor = (SELECT mine.actor FROM wakeboard.sessions AS mine WHERE mine.id_hash = %s)
RETURNING actor
"""
_IS_USABLE = f"used_at IS NULL AND expires_at > now() AND NOT {is_ahead('expires_at', LINK_SECONDS)}"
TIDY_LINKS = f"""
DELETE FROM wakeboard.login_links
WHERE expires_at < now() - interval '1 day' OR {is_ahead("expires_at", LINK_SECONDS)}
"""
NEW_LINK = """
INSERT INTO wakeboard.login_links (token_hash, actor, expires_at)
VALUES (%s, %s, now() + make_interval(secs => %s))
"""
PEEK = f"SELECT 1 FROM wakeboard.login_links WHERE token_hash = %s AND {_IS_USABLE}"
CONSUME = f"""
UPDATE wakeboard.login_links SET used_at = now()
WHERE token_hash = %s AND {_IS_USABLE} RETURNING actor
"""


def hash_of(secret: str) -> str:
    """Return what the tables keep of a random secret (256 bits need no salt and no slow hash)."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def open_session(
    connection: Connection,
    actor_name: str,
    role: Role,
    user_id: int | None = None,
    ip: str | None = None,
    seconds: float = SESSION_SECONDS,
) -> str:
    """Return the cookie of a new session of ``seconds``; with ``user_id`` its role is that user's, always."""
    cookie = secrets.token_urlsafe(32)
    connection.execute(TIDY_SESSIONS)
    connection.execute(OPEN, (hash_of(cookie), user_id, actor_name, role.value, ip, seconds))
    return cookie


def authenticate_session(
    connection: Connection, cookie: str, *, touch: bool = True, idle_seconds: float = IDLE_SECONDS
) -> Actor | None:
    """Return who holds ``cookie``, None when it is unknown, ended, idle for too long, or its user disabled.

    ``touch`` is False for what a page asks by itself: only a person keeps a session alive.
    """
    values = {"hash": hash_of(cookie), "idle": idle_seconds}
    row = connection.execute(FIND.encode(), values).fetchone()
    if row is None:
        return None
    name, role, ip, is_stale = row
    if touch and is_stale:
        connection.execute(TOUCH.encode(), values)
    return Actor(name, Role(role), "web", ip)


def still_good(
    connection: Connection, hashes: list[str], idle_seconds: float = IDLE_SECONDS
) -> dict[str, Role]:
    """Return the roles of those sessions among ``hashes`` that are signed in; keeps none of them alive."""
    rows = connection.execute(GOOD, {"hashes": hashes, "idle": idle_seconds}).fetchall()
    return {each: Role(role) for each, role in rows}


def close_session(connection: Connection, cookie: str) -> list[str]:
    """End the session of ``cookie``; return whose it was, nothing when there was none."""
    return _names(connection.execute(HERE, (hash_of(cookie),)).fetchall())


def close_everywhere(connection: Connection, cookie: str) -> list[str]:
    """End every session of whoever holds ``cookie``; return whose each was, one name for each."""
    return _names(connection.execute(EVERYWHERE, (hash_of(cookie),)).fetchall())


def _names(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return [row[0] for row in rows]


def close_sessions_of(connection: Connection, user: str) -> int:
    """End every session of the account ``user``; return how many there were."""
    statement = """DELETE FROM wakeboard.sessions AS s USING wakeboard.users AS u
        WHERE u.id = s.user_id AND u.name = %s"""
    return connection.execute(statement, (user,)).rowcount


def create_login_link(connection: Connection, os_user: str) -> str:
    """Return the token of a login link for ``os_user``: single use, 15 minutes, the role admin."""
    token = secrets.token_urlsafe(32)
    with audited_transaction(connection):
        connection.execute(TIDY_LINKS)
        connection.execute(NEW_LINK, (hash_of(token), f"link:{os_user}", LINK_SECONDS))
        record(connection, terminal_actor(), "login.link", "session", f"link:{os_user}")
    return token


def peek_login_link(connection: Connection, token: str) -> bool:
    """Tell whether ``token`` could be consumed now; changes nothing."""
    return connection.execute(PEEK, (hash_of(token),)).fetchone() is not None


def consume_login_link(connection: Connection, token: str) -> Actor | None:
    """Use ``token`` up and return its actor ``link:<os user>``, None when it is unknown, used or too old.

    The caller opens the session and writes the audit row.
    """
    row = connection.execute(CONSUME, (hash_of(token),)).fetchone()
    return Actor(row[0], Role.ADMIN, "web") if row else None
