"""Log lines about a failure that lasts, at most one a minute: the database or its tables are missing, or it
refuses the same thing again and again.

Each connection reports its own outage. Missing tables are reported once for the whole process.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from wakeboard.config import log
from wakeboard.database.db import explain_missing_tables

REPEAT_SECONDS = 60.0
# How many different warnings a process remembers.
MOST_WARNINGS = 100


class OutageLog:
    """The outages of one connection, one after the other."""

    def __init__(self, connection: str) -> None:
        self._connection = connection
        self._since: float | None = None
        self._reported_at = 0.0

    def report_failure(self, sentence: str, **fields: object) -> None:
        """Log that the connection is lost or cannot be opened, at most once in REPEAT_SECONDS."""
        now = monotonic()
        if self._since is None:
            self._since = now
        elif now - self._reported_at < REPEAT_SECONDS:
            return
        self._reported_at = now
        log.warn(sentence, connection=self._connection, **fields)

    def report_recovery(self) -> None:
        """Log how long the outage took, if there was one."""
        if self._since is not None:
            away, self._since = monotonic() - self._since, None
            log.note("The database answers again.", connection=self._connection, away_seconds=away)


class MissingTables:
    """Tables that the database lacks, or has from another version. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._names = set[str]()
        self._sentence = ""
        self._since = self._warned_at = 0.0

    @property
    def names(self) -> frozenset[str]:
        """The tasks that failed for want of tables and have not succeeded since."""
        return frozenset(self._names)

    def add(self, name: str, failure: Exception) -> None:
        """Note that the task ``name`` failed by ``failure``, of MISSING_TABLE_ERRORS or of their states."""
        with self._lock:
            if not self._names:
                self._since, self._warned_at = monotonic(), 0.0
            self._names.add(name)
            self._sentence = explain_missing_tables(failure)
        self.warn()

    def warn(self) -> None:
        """Log what is missing and what to do, unless that was logged less than a minute ago."""
        with self._lock:
            now = monotonic()
            if not self._names or (self._warned_at and now - self._warned_at < REPEAT_SECONDS):
                return
            self._warned_at = now
            log.warn(self._sentence)

    def remove(self, name: str) -> None:
        """Note that the task ``name`` succeeded; the last one logs that the tables are there."""
        if name not in self._names:
            return
        with self._lock:
            self._names.discard(name)
            if not self._names:
                log.note("The database has the tables now.", after_seconds=monotonic() - self._since)


@dataclass(slots=True)
class _LastWarning:
    quiet_until: float
    suppressed: int = 0


class WarningThrottle:
    """Logs each of many warnings at most once in REPEAT_SECONDS.

    The next line about the same says how often it came since the last one.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, _LastWarning] = {}

    def warn(self, key: Hashable, sentence: str, **fields: object) -> None:
        """Warn about ``key``, a row or a statement, unless that was done less than REPEAT_SECONDS ago."""
        now = monotonic()
        last = self._last.get(key)
        if last is not None and last.quiet_until > now:
            last.suppressed += 1
            return
        # One that suppressed others is remembered for a second period, to report their number.
        self._last = {
            each: warning
            for each, warning in self._last.items()
            if warning.quiet_until > (now - REPEAT_SECONDS if warning.suppressed else now)
        }
        if len(self._last) < MOST_WARNINGS:
            self._last[key] = _LastWarning(now + REPEAT_SECONDS)
            times = last.suppressed + 1 if last is not None and last.suppressed else None
            log.warn(sentence, **fields, times=times)
