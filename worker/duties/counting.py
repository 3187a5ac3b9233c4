"""The worker's share of the statistics: minutes are merged, hours that are over summed, a few at a time."""

from __future__ import annotations

from time import monotonic

from worker import hours, statistics
from worker.duties.thread import Connection

MERGE_SECONDS = 60.0
# An hour becomes due once an hour, or when something late is merged.
LOOK_SECONDS = 300.0
# After an upgrade there are weeks of hours, and the thread fires schedules and says that the worker lives: a
# slice, and the pause after it in times of what it took.
SLICE_SECONDS = 0.05
PAUSE = 2.0


class Counting:
    """The duty of one worker process; ``pause_seconds`` is when to go on, None for the usual time."""

    def __init__(self) -> None:
        self.pause_seconds: float | None = None
        self._look_at = 0.0

    def step(self, connection: Connection) -> dict[str, int]:
        """Merge the minutes that are over, sum hours for a moment; return how many rows and hours."""
        numbers = statistics.merge(connection)
        self.pause_seconds = None
        if (began := monotonic()) < self._look_at:
            return numbers | {"hours": 0}
        summed = 0
        while hours.sum_next(connection) is not None:
            summed += 1
            if (elapsed := monotonic() - began) >= SLICE_SECONDS:
                self.pause_seconds = PAUSE * elapsed
                break
        else:
            self._look_at = began + LOOK_SECONDS
        return numbers | {"hours": summed}
