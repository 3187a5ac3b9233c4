"""The worker's share of the statistics: minutes are merged, hours that are over summed, a few at a time."""

from __future__ import annotations

from datetime import datetime
from time import monotonic

from wakeboard.config import log
from wakeboard.reporting import hourly_rollups, statistics
from wakeboard.runtime.duties.duty_thread import Connection

MERGE_SECONDS = 60.0
# An hour becomes due once an hour, or when something late is merged.
LOOK_SECONDS = 300.0
# After a look that had to leave an hour; a statement that is ended for its time took the thread's as well.
LOOK_AGAIN_SECONDS = 3600.0
# After an upgrade there are weeks of hours, and the thread fires schedules, too: a slice, and the pause after
# it in times of what it took.
SLICE_SECONDS = 0.05
PAUSE = 2.0


class StatisticsMerge:
    """The duty of one worker process; ``pause_seconds`` is when to go on, None for the usual time."""

    def __init__(self) -> None:
        self.pause_seconds: float | None = None
        self._look_at = 0.0
        self._left: set[datetime] = set()

    def step(self, connection: Connection) -> dict[str, int]:
        """Merge the minutes that are over, sum hours for a moment; return how many rows and hours.

        An hour that cannot be summed holds up no other: it is left, and tried again with a later look.
        """
        numbers = statistics.merge_deltas(connection)
        began, is_due = monotonic(), monotonic() >= self._look_at
        if is_due and self.pause_seconds is None:
            self._left.clear()
        self.pause_seconds = None
        summed = 0
        while is_due:
            hour = self._sum_one(connection)
            if hour is None:
                self._look_at = began + (LOOK_AGAIN_SECONDS if self._left else LOOK_SECONDS)
                break
            summed += hour not in self._left
            if (elapsed := monotonic() - began) >= SLICE_SECONDS:
                self.pause_seconds = PAUSE * elapsed
                break
        return numbers | {"hours": summed} | ({"left": len(self._left)} if self._left else {})

    def _sum_one(self, connection: Connection) -> datetime | None:
        """Return the hour that was summed, or was tried and is left now; None when there is no other."""
        try:
            return hourly_rollups.sum_next_hour(connection, self._left)
        except hourly_rollups.RollupError as failure:
            self._left.add(failure.hour)
            log.warn("An hour of statistics is left; pages read its minutes.", error=str(failure))
            return failure.hour
