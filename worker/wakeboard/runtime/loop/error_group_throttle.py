"""Which error groups this process has told the database of lately, so that it tells each once a minute.

A fault that fails ten thousand runs a minute would otherwise write one row of ``error_groups`` ten thousand
times: every writer would queue at it, and each write leaves a dead row behind. Told once a minute by each
worker, the row is written as often a minute as there are workers, however much fails, and ``last_seen_at`` is
a minute old at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

SECONDS = 60.0
# More kinds of failure than this in a minute are told again earlier, which is right and merely costs more.
MOST = 10_000


class Told:
    """The groups told within SECONDS; of one process, and of one thread of it."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}

    def is_due(self, group: int) -> bool:
        """Return whether the database has not heard of ``group`` from here for SECONDS."""
        at = self._at.get(group)
        return at is None or monotonic() - at >= SECONDS

    def note(self, groups: Iterable[int]) -> None:
        """Remember that these groups were told just now."""
        if len(self._at) > MOST:
            self._at.clear()
        self._at.update(dict.fromkeys(groups, monotonic()))
