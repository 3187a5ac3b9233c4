"""Telling a waiting person what is waited for. Knows nothing of the server."""

from __future__ import annotations

import time
from collections.abc import Callable

PROGRESS_SECONDS = 5


class Teller:
    """Passes on a sentence when it is new, and again every few seconds with the time that passed."""

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        self._progress = progress
        self._since = self._last = time.monotonic()
        self._sentence = ""

    def __call__(self, sentence: str) -> None:
        now = time.monotonic()
        if sentence == self._sentence and now - self._last < PROGRESS_SECONDS:
            return
        if sentence != self._sentence:
            self._sentence, self._since = sentence, now
        self._last = now
        waited = int(now - self._since)
        if self._progress:
            self._progress(f"{sentence} ({waited} s)" if waited else sentence)
