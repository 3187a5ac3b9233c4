"""Checks the sessions of all open pages together: one statement every two seconds, not one for each poll."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from time import monotonic

from wakeboard.accounts.sessions import hash_secret, live_roles
from wakeboard.database.audit import Actor
from wakeboard_dashboard.web.connection import writing

CHECK_SECONDS = 2.0
# While one request checks the sessions, the others rely on a check that is up to so old.
LATE_SECONDS = 6.0
# A session that has not polled for so long is dropped.
FORGET_SECONDS = 60.0
MOST_SESSIONS = 5000


@dataclass(slots=True)
class _Session:
    actor: Actor
    checked_at: float
    polled_at: float


class PollSessions:
    """The sessions that poll this process; each was valid at the last check."""

    def __init__(self, idle_seconds: float, check_seconds: float = CHECK_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._check_seconds = check_seconds
        self._sessions: dict[str, _Session] = {}
        self._checking = threading.Lock()

    def add(self, cookie: str, actor: Actor) -> None:
        """Store that ``cookie`` is a valid session of ``actor`` now."""
        now = monotonic()
        if len(self._sessions) < MOST_SESSIONS:
            self._sessions[hash_secret(cookie)] = _Session(actor, now, now)

    def find(self, cookie: str) -> Actor | None:
        """Return the actor of ``cookie``; None where it is not known here and must be looked up.

        Raises DatabaseError when the check finds no database.
        """
        session = self._sessions.get(hash_secret(cookie))
        if session is None:
            return None
        session.polled_at = now = monotonic()
        if now - session.checked_at < self._check_seconds:
            return session.actor
        if self._checking.acquire(blocking=False):
            try:
                self._check()
            finally:
                self._checking.release()
            session = self._sessions.get(hash_secret(cookie))
            return session.actor if session else None
        return session.actor if now - session.checked_at < LATE_SECONDS else None

    def _check(self) -> None:
        """Check all sessions that poll; drop the others, and those that have ended."""
        now = monotonic()
        sessions = dict(self._sessions)
        polling = [each for each, session in sessions.items() if now - session.polled_at < FORGET_SECONDS]
        with writing() as connection:
            roles = live_roles(connection, polling, self._idle_seconds)
        for each, session in sessions.items():
            if each in roles:
                session.actor, session.checked_at = replace(session.actor, role=roles[each]), now
            else:
                self._sessions.pop(each, None)
