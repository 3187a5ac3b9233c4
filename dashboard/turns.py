"""How many pages a process makes at once; the others wait, whoever came first goes first.

Two pages made at once by one interpreter take turns every few milliseconds: each is ready when both are, and
the turns cost CPU of their own. Two are under way in a process, so that one is drawn while PostgreSQL answers
the other. Static files, probes and acts of people wait for nobody.
"""

from __future__ import annotations

import threading
from collections import deque

from flask import Flask, g, request

from dashboard.files import STATIC
from dashboard.security import PROBES

MOST = 2
# Who waited for so long goes on beside the others: those may wait for slow statements.
PATIENCE_SECONDS = 1.0
NOT_PAGES = (STATIC, *PROBES)


class Turns:
    """The turns of one process: at most ``most`` are taken, but for those who lost their patience."""

    def __init__(self, most: int = MOST, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._most = most
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._taken = 0
        self._waiting: deque[threading.Event] = deque()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def take(self) -> None:
        """Wait for a turn, and take it; ``give_back`` must follow."""
        with self._lock:
            if self._taken < self._most:
                self._taken += 1
                return
            mine = threading.Event()
            self._waiting.append(mine)
        if not mine.wait(self._patience_seconds):
            with self._lock:
                # It may have been given just now.
                if not mine.is_set():
                    self._waiting.remove(mine)
                    self._taken += 1

    def give_back(self) -> None:
        """Let those who wait longest have the turns that are free."""
        with self._lock:
            self._taken -= 1
            while self._waiting and self._taken < self._most:
                self._taken += 1
                self._waiting.popleft().set()


def install(app: Flask) -> None:
    """Let the pages of ``app`` wait for their turns. After measuring: a wait is part of the time."""
    turns = Turns()

    def take() -> None:
        if request.method == "GET" and not request.path.startswith(NOT_PAGES):
            turns.take()
            g.turn = turns

    def give_back(_failure: BaseException | None) -> None:
        if (taken := g.pop("turn", None)) is not None:
            taken.give_back()

    app.before_request(take)
    app.teardown_request(give_back)
