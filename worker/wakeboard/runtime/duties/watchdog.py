"""The watchdog of a thread that waits for the database: it ends the wait when the peer is silent.

A proxy or a hung server may keep a connection open and never answer; neither keepalives nor the server's
statement timeout detect that. The loop shuts the socket down, so the waiting thread gets an error and opens
another connection.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from time import monotonic

import psycopg


class Watchdog:
    """Watches the steps of one thread.

    During a step it has a descriptor of its own for the connection's socket: libpq may close the socket at
    any moment, and another connection may get its number.
    """

    def __init__(self, limit_seconds: float) -> None:
        """``limit_seconds``: more than any statement may take."""
        self._limit_seconds = limit_seconds
        self._lock = Lock()
        self._began_at: float | None = None
        self._peer: socket.socket | None = None

    @contextmanager
    def over(self, connection: psycopg.Connection) -> Iterator[None]:
        """Watch one step on ``connection``. Without a free descriptor nothing is watched."""
        peer = _socket_of(connection)
        with self._lock:
            self._peer, self._began_at = peer, monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._peer = self._began_at = None
            if peer is not None:
                peer.close()

    def check(self) -> bool:
        """Shut the socket of a step that takes too long; return whether there was one. The loop calls it."""
        with self._lock:
            if self._peer is None or self._began_at is None:
                return False
            if monotonic() - self._began_at < self._limit_seconds:
                return False
            self._began_at = None
            with suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)
            return True


def _socket_of(connection: psycopg.Connection) -> socket.socket | None:
    number = connection.fileno()
    try:
        return socket.socket(fileno=os.dup(number))
    except OSError:
        return None
