"""Proof that notifications arrive: the worker sends one to itself through another connection.

A subscription can be gone while its connection looks well (a half-open socket, a proxy, a pooler). Polling
finds the work all the same, only later, so nobody would notice. The notification travels with a look. Runs on
the heartbeat's thread; ``heard`` and ``connected`` are called from the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import psycopg

from wakeboard.runtime.loop.inbox import HearsNothing

LISTEN_SECONDS = 8.0
PATIENCE_SECONDS = 2.0
# A pooler that passed nothing on so far hardly begins to: the heartbeat need not wait for it.
POOLED_PATIENCE_SECONDS = 0.25
MOST_TRIES_APART = 32


class NotHeard(Exception):
    """A notification to oneself did not come back; ``str()`` says what follows."""


class NotifyCheck:
    """The proof for one process. ``tell`` hears that nothing comes back; it must be safe to call from the
    thread of the heartbeat."""

    def __init__(self, worker_id: str, *, poll_seconds: float, tell: Callable[[HearsNothing], None]) -> None:
        self.channel = f"wakeboard_hear_{worker_id[-8:]}"
        self._poll_seconds = poll_seconds
        self._tell = tell
        self._came = threading.Event()
        self._sent = 0
        self._failures = 0
        self._is_pooled = False
        self._has_heard = False
        self._ask_at = monotonic() + LISTEN_SECONDS / 4
        self.is_proven = self._is_stopped = False

    def stop(self) -> None:
        """The loop ends and reads no notification any more: whoever waits for one goes on."""
        self._is_stopped = True
        self._came.set()

    @property
    def is_waiting(self) -> bool:
        """Whether the last notification to ourselves has not come back."""
        return not self._came.is_set()

    def connected(self, *, is_pooled: bool) -> None:
        """A fresh connection listens; ``is_pooled``: something other than the server answered for it."""
        self._is_pooled, self._has_heard, self.is_proven = is_pooled, False, False

    def heard(self, payload: str) -> None:
        """Our own notification came back."""
        if payload == str(self._sent):
            self._has_heard = True
            self._came.set()

    def ask(self) -> str | None:
        """Return what the worker is to send to itself now, None when the next proof is not due."""
        if monotonic() < self._ask_at:
            return None
        self._ask_at = monotonic() + LISTEN_SECONDS
        self._came.clear()
        self._sent += 1
        return str(self._sent)

    def step(self, _connection: psycopg.Connection[Any]) -> dict[str, str]:
        """Wait for what was sent; raise NotHeard when it does not come.

        Behind a pooler that never passed one on there is nothing to mend: that is said, and is no failure.
        """
        hopeless = self._is_pooled and not self._has_heard
        if self._is_stopped:
            return {}
        if self._came.wait(POOLED_PATIENCE_SECONDS if hopeless else PATIENCE_SECONDS):
            self._failures, self.is_proven = 0, True
            return {"hears": "notifications"}
        self.is_proven = False
        if self._is_pooled and not self._has_heard:
            return {"hears": f"nothing through the pooler; polls every {self._poll_seconds:g} s"}
        self._failures += 1
        if self._failures & (self._failures - 1) == 0 or self._failures % MOST_TRIES_APART == 0:
            self._tell(HearsNothing())
        raise NotHeard(
            "A notification to this worker did not come back; until one does it finds work by polling."
        )
