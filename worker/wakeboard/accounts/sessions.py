"""Browser sessions and one-time login links.

The browser holds a random text, the table only its hash. Roles are read from the table at every request. The
database's clock decides what has expired. The life of a session is a setting.
"""

from __future__ import annotations

import secrets
from hashlib import sha256

from psycopg import Connection

from wakeboard.config.settings import SESSION_IDLE_SECONDS, SESSION_SECONDS
from wakeboard.core.states import Role
from wakeboard.core.time.clock_skew import is_ahead, is_since
from wakeboard.database.audit import Actor, audited_transaction, record, terminal_actor

LINK_SECONDS = 15 * 60

OPEN = """
INSERT INTO wakeboard.sessions (id_hash, user_id, actor, role, ip, expires_at)
VALUES (%s, %s, %s, %s, %s, now() + make_interval(secs => %s))
"""
# Nobody knows how long a session has been idle that was used ahead of the clock: its owner signs in again.
_IS_USED = f"(s.expires_at > now() AND {is_since('s.seen_at', '%(idle)s')})"
_ALIVE = f"s.id_hash = %(hash)s AND {_IS_USED}"
FIND = f"""
SELECT s.actor, coalesce(u.role, s.role), s.ip, s.seen_at < now() - interval '20 seconds'
FROM wakeboard.sessions AS s LEFT JOIN wakeboard.users AS u ON u.id = s.user_id
WHERE {_ALIVE} AND (s.user_id IS NULL OR u.disabled_at IS NULL)
"""
LIVE = f"""
SELECT s.id_hash, coalesce(u.role, s.role)
FROM wakeboard.sessions AS s LEFT JOIN wakeboard.users AS u ON u.id = s.user_id
WHERE s.id_hash = ANY (%(hashes)s) AND {_IS_USED} AND (s.user_id IS NULL OR u.disabled_at IS NULL)
"""
TOUCH = f"UPDATE wakeboard.sessions AS s SET seen_at = now() WHERE {_ALIVE}"
# Idle sessions stay: each dashboard has its own setting for them.
REMOVE_EXPIRED_SESSIONS = f"DELETE FROM wakeboard.sessions WHERE expires_at < now() OR {is_ahead('seen_at')}"
CLOSE = "DELETE FROM wakeboard.sessions WHERE id_hash = %s RETURNING actor"
CLOSE_ALL_OF_ACTOR = """
DELETE FROM wakeboard.sessions
WHERE actor = (SELECT mine.actor FROM wakeboard.sessions AS mine WHERE mine.id_hash = %s)
RETURNING actor
"""
_IS_USABLE = f"used_at IS NULL AND expires_at > now() AND NOT {is_ahead('expires_at', LINK_SECONDS)}"
REMOVE_EXPIRED_LINKS = f"""
DELETE FROM wakeboard.login_links
WHERE expires_at < now() - interval '1 day' OR {is_ahead("expires_at", LINK_SECONDS)}
"""
NEW_LINK = """
INSERT INTO wakeboard.login_links (token_hash, actor, expires_at)
VALUES (%s, %s, now() + make_interval(secs => %s))
"""
FIND_LINK = f"SELECT 1 FROM wakeboard.login_links WHERE token_hash = %s AND {_IS_USABLE}"
USE_LINK = f"""
UPDATE wakeboard.login_links SET used_at = now()
WHERE token_hash = %s AND {_IS_USABLE} RETURNING actor
"""


def hash_secret(secret: str) -> str:
    """Return the hash of a random secret that the tables hold (256 bits need no salt and no slow hash)."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def open_session(
    connection: Connection,
    actor_name: str,
    role: Role,
    user_id: int | None = None,
    ip: str | None = None,
    seconds: float = SESSION_SECONDS,
) -> str:
    """Return the cookie of a new session of ``seconds``; with ``user_id`` it always has that user's role."""
    cookie = secrets.token_urlsafe(32)
    connection.execute(REMOVE_EXPIRED_SESSIONS)
    connection.execute(OPEN, (hash_secret(cookie), user_id, actor_name, role.value, ip, seconds))
    return cookie


def authenticate_session(
    connection: Connection, cookie: str, *, touch: bool = True, idle_seconds: float = SESSION_IDLE_SECONDS
) -> Actor | None:
    """Return the owner of ``cookie``, None when it is unknown, ended or idle too long, or its user disabled.

    ``touch`` is False for requests that a page makes by itself: only a person keeps a session alive.
    """
    values = {"hash": hash_secret(cookie), "idle": idle_seconds}
    row = connection.execute(FIND.encode(), values).fetchone()
    if row is None:
        return None
    name, role, ip, is_stale = row
    if touch and is_stale:
        connection.execute(TOUCH.encode(), values)
    return Actor(name, Role(role), "web", ip)


def live_roles(
    connection: Connection, hashes: list[str], idle_seconds: float = SESSION_IDLE_SECONDS
) -> dict[str, Role]:
    """Return the role by hash of those sessions among ``hashes`` that are signed in; touches none of them."""
    rows = connection.execute(LIVE, {"hashes": hashes, "idle": idle_seconds})
    return {id_hash: Role(role) for id_hash, role in rows}


def close_session(connection: Connection, cookie: str) -> list[str]:
    """End the session of ``cookie``; return the name of its owner, nothing when there was none."""
    return [name for (name,) in connection.execute(CLOSE, (hash_secret(cookie),))]


def close_everywhere(connection: Connection, cookie: str) -> list[str]:
    """End every session of the owner of ``cookie``; return the owner's name, once for each session."""
    return [name for (name,) in connection.execute(CLOSE_ALL_OF_ACTOR, (hash_secret(cookie),))]


def close_sessions_of(connection: Connection, user: str) -> int:
    """End every session of the account ``user``; return how many there were."""
    statement = """DELETE FROM wakeboard.sessions AS s USING wakeboard.users AS u
        WHERE u.id = s.user_id AND u.name = %s"""
    return connection.execute(statement, (user,)).rowcount


def create_login_link(connection: Connection, os_user: str) -> str:
    """Return the token of a login link for ``os_user``: single use, 15 minutes, the role admin."""
    token = secrets.token_urlsafe(32)
    with audited_transaction(connection):
        connection.execute(REMOVE_EXPIRED_LINKS)
        connection.execute(NEW_LINK, (hash_secret(token), f"link:{os_user}", LINK_SECONDS))
        record(connection, terminal_actor(), "login.link", "session", f"link:{os_user}")
    return token


def peek_login_link(connection: Connection, token: str) -> bool:
    """Return whether ``token`` could be consumed now; changes nothing."""
    return connection.execute(FIND_LINK, (hash_secret(token),)).fetchone() is not None


def consume_login_link(connection: Connection, token: str) -> Actor | None:
    """Use ``token`` up and return its actor ``link:<os user>``, None when it is unknown, used or too old.

    The caller opens the session and writes the audit row.
    """
    row = connection.execute(USE_LINK, (hash_secret(token),)).fetchone()
    return Actor(row[0], Role.ADMIN, "web") if row else None
