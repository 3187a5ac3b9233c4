"""How many pages a process makes at once; the others wait, whoever came first goes first.

Two pages made at once by one interpreter take turns every few milliseconds: each is ready when both are, and
the turns cost CPU of their own. So one is under way in a process; while PostgreSQL answers it, the machine
has the other processes' pages to make. A page that takes long keeps its turn for a moment only: it goes on,
and so do the others beside it. Static files, probes and acts of people wait for nobody.
"""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic

from flask import Flask, g, request

from wakeboard_dashboard.web.files import STATIC
from wakeboard_dashboard.web.responses import PROBES

MOST = 1
# A page that has had its turn for so long waits for a slow statement, or draws much.
LONGEST_SECONDS = 0.25
NOT_PAGES = (STATIC, *PROBES)
EXTENSION = "wakeboard_turns"


class Turn(threading.Event):
    """One page's turn: set when it has come."""

    ends = 0.0


class Turns:
    """The turns of one process: at most ``most`` at once, each for at most ``longest_seconds``."""

    def __init__(self, most: int = MOST, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._most = most
        self._longest_seconds = longest_seconds
        self._lock = threading.Lock()
        # In the order in which they end.
        self._taken: deque[Turn] = deque()
        self._waiting: deque[Turn] = deque()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def take(self) -> Turn:
        """Wait for a turn, and take it; ``give_back`` must follow."""
        mine = Turn()
        with self._lock:
            self._waiting.append(mine)
            ends = self._hand_out()
        while not mine.wait(ends - monotonic()):
            with self._lock:
                ends = self._hand_out()
        return mine

    def give_back(self, turn: Turn) -> None:
        """End a turn; who waits longest has the next."""
        with self._lock:
            if turn in self._taken:
                self._taken.remove(turn)
            self._hand_out()

    def _hand_out(self) -> float:
        """Give those who wait longest the turns that are free; return when the next one is, at the latest."""
        now = monotonic()
        while self._taken and self._taken[0].ends <= now:
            self._taken.popleft()
        while self._waiting and len(self._taken) < self._most:
            turn = self._waiting.popleft()
            turn.ends = now + self._longest_seconds
            self._taken.append(turn)
            turn.set()
        return self._taken[0].ends if self._taken else now


def install(app: Flask) -> None:
    """Let the pages of ``app`` wait for their turns. After measuring: a wait is part of the time."""
    turns = app.extensions[EXTENSION] = Turns()

    def take() -> None:
        if request.method == "GET" and not request.path.startswith(NOT_PAGES):
            g.turn = turns.take()

    def give_back(_failure: BaseException | None) -> None:
        if (turn := g.pop("turn", None)) is not None:
            turns.give_back(turn)

    app.before_request(take)
    app.teardown_request(give_back)
