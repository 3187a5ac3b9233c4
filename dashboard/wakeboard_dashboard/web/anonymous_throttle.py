"""How much of what strangers do is written to the audit log: enough to be seen, not enough to fill it.

Nobody has signed in yet whose request came from another site, or whose link is spent; the log keeps its rows
for a year, and what people did must not drown in them.
"""

from __future__ import annotations

from threading import Lock
from time import monotonic

from flask import current_app, request

MINUTE_SECONDS = 60.0
# Rows of a minute: from one address, and from all of them.
MOST_OF_ONE, MOST_OF_ALL = 10, 100


class AnonymousThrottle:
    """The refusals of a minute by address, as one process has met them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._began = 0.0
        self._seen: dict[str, int] = {}

    def tell(self, address: str) -> bool:
        """Return whether one more refusal of ``address`` is to be written down, and count it."""
        with self._lock:
            now = monotonic()
            if now - self._began >= MINUTE_SECONDS:
                self._began, self._seen = now, {}
            seen = self._seen.get(address, 0)
            if seen >= MOST_OF_ONE or sum(self._seen.values()) >= MOST_OF_ALL:
                return False
            self._seen[address] = seen + 1
            return True


def are_told() -> bool:
    """Return whether the refusal of this request is to be written down."""
    found = current_app.extensions.setdefault("wakeboard_strangers", AnonymousThrottle())
    assert isinstance(found, AnonymousThrottle)
    return found.tell(request.remote_addr or "")
