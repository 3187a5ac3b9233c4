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
from time import monotonic
from typing import Any

import psycopg


class Watchdog:
    """Watches the steps of one thread; ``limit_seconds`` is more than any statement may take."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._began: float | None = None
        self._descriptor = -1

    @contextmanager
    def over(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Watch one step of the thread on ``connection``."""
        self._descriptor, self._began = connection.fileno(), monotonic()
        try:
            yield
        finally:
            self._began = None

    def check(self) -> bool:
        """Called from the loop: end a step that takes too long; return whether one was ended."""
        began = self._began
        if began is None or monotonic() - began < self._limit_seconds:
            return False
        self._began = None
        with suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as peer:
            peer.shutdown(socket.SHUT_RDWR)
        return True
