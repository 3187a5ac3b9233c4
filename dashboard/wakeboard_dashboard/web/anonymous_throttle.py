"""Limits the audit rows of requests that nobody is signed in for.

Such requests come from another site or carry a login link that was used. The audit log keeps its rows for a
year, and what people did must not drown in them.
"""

from __future__ import annotations

from threading import Lock
from time import monotonic

from flask import current_app, request

MINUTE_SECONDS = 60.0
# Rows of a minute: from one address, and from all of them.
MOST_OF_ONE, MOST_OF_ALL = 10, 100


class AnonymousThrottle:
    """The refusals of a minute by address, in one process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._began = 0.0
        self._seen: dict[str, int] = {}

    def allow(self, address: str) -> bool:
        """Count a refusal of ``address``. Return whether it is to be recorded."""
        with self._lock:
            now = monotonic()
            if now - self._began >= MINUTE_SECONDS:
                self._began, self._seen = now, {}
            seen = self._seen.get(address, 0)
            if seen >= MOST_OF_ONE or sum(self._seen.values()) >= MOST_OF_ALL:
                return False
            self._seen[address] = seen + 1
            return True


def may_record() -> bool:
    """Return whether the refusal of this request is to be recorded."""
    throttle = current_app.extensions.setdefault("wakeboard_anonymous_throttle", AnonymousThrottle())
    assert isinstance(throttle, AnonymousThrottle)
    return throttle.allow(request.remote_addr or "")
