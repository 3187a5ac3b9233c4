"""Ends the wait of a thread whose database peer has fallen silent.

A proxy or a hung server may keep a connection open and never answer; neither keepalives nor the server's
statement timeout see that. The loop looks from outside and shuts the socket down, so the waiting thread
gets an error and opens another connection.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from time import monotonic
from typing import Any

import psycopg


class Watchdog:
    """Watches the steps of one thread; ``limit_seconds`` is more than any statement may take.

    During a step it holds a descriptor of its own for the connection's socket: libpq may close the socket at
    any moment, and its number is another connection's then.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._lock = Lock()
        self._began: float | None = None
        self._peer: socket.socket | None = None

    @contextmanager
    def over(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Watch one step of the thread on ``connection``; without a free descriptor nothing is watched."""
        peer = _socket_of(connection)
        with self._lock:
            self._peer, self._began = peer, monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._peer = self._began = None
            if peer is not None:
                peer.close()

    def check(self) -> bool:
        """Called from the loop: end a step that takes too long; return whether one was ended."""
        with self._lock:
            if self._peer is None or self._began is None:
                return False
            if monotonic() - self._began < self._limit_seconds:
                return False
            self._began = None
            with suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)
            return True


def _socket_of(connection: psycopg.Connection[Any]) -> socket.socket | None:
    number = connection.fileno()
    try:
        return socket.socket(fileno=os.dup(number))
    except OSError:
        return None
