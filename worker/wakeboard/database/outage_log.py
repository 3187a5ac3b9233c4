"""Log lines about a trouble that lasts, at most one a minute: the database or its tables are away, or it
refuses the same thing again and again.

Each connection tells its own outage; of missing tables a process speaks with one voice.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from wakeboard.config import log
from wakeboard.database.db import explain_missing_tables

# Tries come twice a second at first, and for as long as an outage lasts.
SAID_AGAIN_SECONDS = 60.0
# Of so many different warnings at most a process remembers that it gave them.
MOST_WARNINGS = 100


class OutageLog:
    """The outages of one connection, one after the other."""

    def __init__(self, connection: str) -> None:
        self._connection = connection
        self._since: float | None = None
        self._said_at = 0.0

    def lost(self, sentence: str, **fields: object) -> None:
        """The connection was lost, or could not be made again: say so, unless that was said a moment ago."""
        now = monotonic()
        if self._since is None:
            self._since = now
        elif now - self._said_at < SAID_AGAIN_SECONDS:
            return
        self._said_at = now
        log.warn(sentence, connection=self._connection, **fields)

    def back(self) -> None:
        """It works: say for how long it did not."""
        if self._since is not None:
            away, self._since = monotonic() - self._since, None
            log.note("The database answers again.", connection=self._connection, away_seconds=away)


class MissingTables:
    """Tables that the database lacks, or has as another version had them. Any thread may meet that."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._names = set[str]()
        self._sentence = ""
        self._since = self._said_at = 0.0

    @property
    def names(self) -> frozenset[str]:
        """What could not be done for want of them, and has not been done since."""
        return frozenset(self._names)

    def met(self, name: str, failure: Exception) -> None:
        """``name`` cannot be done, as ``failure`` (of MISSING_TABLE_ERRORS, or with a state of theirs) tells."""
        with self._lock:
            if not self._names:
                self._since, self._said_at = monotonic(), 0.0
            self._names.add(name)
            self._sentence = explain_missing_tables(failure)
        self.remind()

    def remind(self) -> None:
        """Say what is missing and how it is made, unless that was said less than a minute ago."""
        with self._lock:
            now = monotonic()
            if not self._names or (self._said_at and now - self._said_at < SAID_AGAIN_SECONDS):
                return
            self._said_at = now
            log.warn(self._sentence)

    def over(self, name: str) -> None:
        """``name`` was done. The last one of all says that it is over."""
        if name not in self._names:
            return
        with self._lock:
            self._names.discard(name)
            if not self._names:
                log.note("The database has the tables now.", after_seconds=monotonic() - self._since)


@dataclass(slots=True)
class _Warned:
    until: float
    untold: int = 0


class RepeatedWarnings:
    """Warnings that one process gives again and again: each at most once in SAID_AGAIN_SECONDS.

    The next line about the same says how often it came since the last one.
    """

    def __init__(self) -> None:
        self._warned: dict[Hashable, _Warned] = {}

    def warn(self, key: Hashable, sentence: str, **fields: object) -> None:
        """Warn about ``key``, a row or a statement, unless that was done a moment ago."""
        now = monotonic()
        before = self._warned.get(key)
        if before is not None and before.until > now:
            before.untold += 1
            return
        kept_since = now - SAID_AGAIN_SECONDS
        self._warned = {
            known: warned
            for known, warned in self._warned.items()
            if warned.until > (kept_since if warned.untold else now)
        }
        if len(self._warned) < MOST_WARNINGS:
            self._warned[key] = _Warned(now + SAID_AGAIN_SECONDS)
            times = before.untold + 1 if before is not None and before.untold else None
            log.warn(sentence, **fields, times=times)
