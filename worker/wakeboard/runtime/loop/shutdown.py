"""When a worker that was told to stop interrupts, kills and leaves. Says when, and does nothing."""

from __future__ import annotations

import math
from time import monotonic

# What the last writes and the end of the process take off the shutdown time.
LAST_WRITES_SECONDS = 1.0
EXIT_SECONDS = 0.4


class Shutdown:
    """The time from the stop to the end, ``shutdown_seconds``; from TERM to KILL, ``kill_seconds``."""

    def __init__(self, shutdown_seconds: float, kill_seconds: float) -> None:
        self._shutdown_seconds = shutdown_seconds
        self._kill_seconds = kill_seconds
        self._began_at: float | None = None

    def begin(self) -> bool:
        """Begin, and return True; a second call hurries."""
        if self._began_at is None:
            self._began_at = monotonic()
            return True
        self._began_at = min(self._began_at, monotonic() - self._grace_seconds)
        return False

    @property
    def has_begun(self) -> bool:
        """Whether the worker was told to stop."""
        return self._began_at is not None

    @property
    def must_interrupt(self) -> bool:
        """Whether the grace of what still runs is over."""
        return self._has_lasted(self._grace_seconds)

    @property
    def must_kill(self) -> bool:
        """Whether what was interrupted has had its time, or only that of the last writes is left."""
        last_moment = max(0.0, self._shutdown_seconds - LAST_WRITES_SECONDS)
        return self._has_lasted(min(self._grace_seconds + self._kill_seconds, last_moment))

    @property
    def is_over(self) -> bool:
        """Whether the worker must leave, whatever is not done."""
        return self._has_lasted(max(LAST_WRITES_SECONDS, self._shutdown_seconds - EXIT_SECONDS))

    @property
    def seconds_left(self) -> float:
        """Seconds until the worker must leave; without end before it was told to stop."""
        if self._began_at is None:
            return math.inf
        return max(0.0, self._began_at + self._shutdown_seconds - EXIT_SECONDS - monotonic())

    @property
    def _grace_seconds(self) -> float:
        """Seconds from the stop to the TERM for what still runs."""
        return max(0.0, self._shutdown_seconds - self._kill_seconds - LAST_WRITES_SECONDS)

    def _has_lasted(self, seconds: float) -> bool:
        return self._began_at is not None and monotonic() - self._began_at >= seconds
