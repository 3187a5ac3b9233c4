"""What the log says while the database is away: a line when a connection is lost, one a minute, one when it
is back. Each connection tells its own; whoever reads the log sees the beginning, that it lasts, and the end.
"""

from __future__ import annotations

from time import monotonic

from worker import log

# Tries come twice a second at first, and for as long as an outage lasts.
SAID_AGAIN_SECONDS = 60.0


class Absence:
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
