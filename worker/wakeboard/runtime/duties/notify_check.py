"""The check that notifications arrive: the worker sends one to itself through another connection.

A subscription can be lost while its connection looks well (a half-open socket, a proxy, a pooler). Polls find
the work all the same, only later, so nobody would notice. The poll sends the notification. The check waits on
the heartbeat's thread; ``receive`` and ``handle_new_connection`` are called by the loop.
"""

from __future__ import annotations

import threading
from time import monotonic

import psycopg

from wakeboard.runtime.loop.inbox import NotifyTimeout, Post
from wakeboard.runtime.worker import Worker

CHECK_SECONDS = 8.0
TIMEOUT_SECONDS = 2.0
# A pooler that has passed on no notification so far will hardly begin to: the heartbeat need not wait for it.
POOLED_TIMEOUT_SECONDS = 0.25
# Of failures in a row those at powers of two are posted, and each one at a multiple of this.
POST_EVERY = 32


class NotifyTimeoutError(Exception):
    """A notification to this worker did not arrive; ``str()`` says what follows."""


class NotifyCheck:
    """The check of one process. ``is_proven``: the last notification arrived."""

    def __init__(self, worker: Worker, post: Post) -> None:
        """``post`` is called from the heartbeat's thread with a NotifyTimeout."""
        self.channel = f"wakeboard_hear_{worker.id[-8:]}"
        self._poll_seconds = worker.poll_seconds
        self._post = post
        self._arrived = threading.Event()
        self._sent = 0
        self._failures = 0
        self._is_pooled = False
        self._has_received = False
        self._next_at = monotonic() + CHECK_SECONDS / 4
        self.is_proven = self._is_stopped = False

    def stop(self) -> None:
        """End a wait: the loop ends and reads no notification any more."""
        self._is_stopped = True
        self._arrived.set()

    @property
    def is_waiting(self) -> bool:
        """Whether the last notification has not arrived yet."""
        return not self._arrived.is_set()

    def handle_new_connection(self, *, is_pooled: bool) -> None:
        """Start anew for a connection that listens; ``is_pooled``: a pooler stands before the server."""
        self._is_pooled, self._has_received, self.is_proven = is_pooled, False, False

    def receive(self, payload: str) -> None:
        """Take in a notification on ``channel``."""
        if payload == str(self._sent):
            self._has_received = True
            self._arrived.set()

    def next_payload(self) -> str | None:
        """Return what to send on ``channel`` now, None while no check is due."""
        if monotonic() < self._next_at:
            return None
        self._next_at = monotonic() + CHECK_SECONDS
        self._arrived.clear()
        self._sent += 1
        return str(self._sent)

    def step(self, _connection: psycopg.Connection) -> dict[str, str]:
        """Wait for the notification that was sent.

        Raises NotifyTimeoutError when it does not arrive. A pooler that never passed one on is no failure.
        """
        passes_nothing_on = self._is_pooled and not self._has_received
        if self._is_stopped:
            return {}
        if self._arrived.wait(POOLED_TIMEOUT_SECONDS if passes_nothing_on else TIMEOUT_SECONDS):
            self._failures, self.is_proven = 0, True
            return {"hears": "notifications"}
        self.is_proven = False
        if self._is_pooled and not self._has_received:
            return {"hears": f"nothing through the pooler; polls every {self._poll_seconds:g} s"}
        self._failures += 1
        if self._failures & (self._failures - 1) == 0 or self._failures % POST_EVERY == 0:
            self._post(NotifyTimeout())
        raise NotifyTimeoutError(
            "A notification to this worker did not come back; until one does it finds work by polling."
        )
