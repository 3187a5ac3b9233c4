"""The statistics duty: merges minutes that are over, and sums hours that are over, a few at a time."""

from __future__ import annotations

from datetime import datetime
from time import monotonic

import psycopg

from wakeboard.config import log
from wakeboard.reporting import hourly_rollups, statistics

MERGE_SECONDS = 60.0
# How often hours are looked for: one becomes due once an hour, or when a late minute is merged.
HOURS_SECONDS = 300.0
# The same after an hour failed: a statement that times out takes the thread's time.
RETRY_SECONDS = 3600.0
# After an upgrade weeks of hours are due, and the thread fires schedules, too. So it sums for a slice of
# time, and pauses for a multiple of that.
SLICE_SECONDS = 0.05
PAUSE_FACTOR = 2.0


class StatisticsMerge:
    """The duty of one worker process; ``pause_seconds``: when to continue, None for the usual time."""

    def __init__(self) -> None:
        self.pause_seconds: float | None = None
        self._hours_at = 0.0
        self._skipped: set[datetime] = set()

    def step(self, connection: psycopg.Connection) -> dict[str, int]:
        """Merge the minutes that are over and sum hours for a slice; return how many rows and hours.

        An hour that cannot be summed is skipped and tried again later.
        """
        numbers = statistics.merge_deltas(connection)
        began, is_due = monotonic(), monotonic() >= self._hours_at
        if is_due and self.pause_seconds is None:
            self._skipped.clear()
        self.pause_seconds = None
        summed = 0
        while is_due:
            hour = self._sum_one(connection)
            if hour is None:
                self._hours_at = began + (RETRY_SECONDS if self._skipped else HOURS_SECONDS)
                break
            summed += hour not in self._skipped
            if (elapsed := monotonic() - began) >= SLICE_SECONDS:
                self.pause_seconds = PAUSE_FACTOR * elapsed
                break
        return numbers | {"hours": summed} | ({"left": len(self._skipped)} if self._skipped else {})

    def _sum_one(self, connection: psycopg.Connection) -> datetime | None:
        """Return the hour that was summed, or that is skipped from now on; None when no hour is due."""
        try:
            return hourly_rollups.sum_next_hour(connection, self._skipped)
        except hourly_rollups.RollupError as failure:
            self._skipped.add(failure.hour)
            log.warn("An hour of statistics is left; pages read its minutes.", error=str(failure))
            return failure.hour
