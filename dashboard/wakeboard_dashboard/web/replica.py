"""The lag of the replica that pages are read from. Queries both servers, writes nothing.

While nothing is written, the time of a replica's last replayed transaction says nothing. So each process
stores log positions of the primary with their times. A replica lags by the age of the oldest position that it
has not reached.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import psycopg
from flask import Flask, Response, g
from sqlalchemy import Connection, Engine, exc

from wakeboard.core.text.sanitize import first_line

log = logging.getLogger("wakeboard.web")

# Pages are two seconds old as a rule; a smaller lag is not shown.
SHOWN_SECONDS = 5
LOOK_SECONDS = 1.0
TRAVEL_SECONDS = 0.1
REMEMBERED = 900
HEADER = "X-Wakeboard-Behind"

WRITTEN = "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::text::int8"
# A server that was promoted still has its last replayed position.
REPLAYED = """
SELECT CASE WHEN pg_is_in_recovery() THEN (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::text::int8 END,
    extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8
"""


class ReplicationLag:
    """Log positions of the primary with their times, in one process; ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._written: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)

    def is_due(self) -> bool:
        """Whether the newest position is at least LOOK_SECONDS old."""
        with self._lock:
            return not self._written or self._clock() - self._written[-1][0] >= LOOK_SECONDS

    def note(self, written: int) -> None:
        """Store the current position of the primary's log, in bytes."""
        with self._lock:
            self._written.append((self._clock(), written))

    def behind(self, replayed: int | None, quiet_seconds: float | None) -> float | None:
        """Return the lag in seconds of a replica that has replayed up to ``replayed``; None for no replica.

        ``quiet_seconds`` is the age of the last transaction that it replayed.
        """
        if replayed is None:
            return None
        with self._lock:
            place = next((at for at, one in enumerate(self._written) if one[1] > replayed), None)
            if place is None:
                return 0.0
            missing = self._clock() - self._written[place][0]
            if place == 0:
                return max(missing, quiet_seconds or 0.0)
            # It was written between two stored positions, which may lie far apart.
            longest = self._clock() - self._written[place - 1][0]
            return max(missing, min(longest, quiet_seconds or 0.0))

    def look(self, replica: Connection, primary: Engine) -> float | None:
        """Return how many seconds ``replica`` is behind ``primary``, None when it is no replica."""
        if self.is_due():
            self._ask(primary)
        behind = self.behind(*replica.exec_driver_sql(REPLAYED).one())
        if behind is not None and behind > SHOWN_SECONDS and self._is_news():
            # After a pause the first change looks as old as the pause, while it is on its way.
            time.sleep(TRAVEL_SECONDS)
            behind = self.behind(*replica.exec_driver_sql(REPLAYED).one())
        return behind

    def _is_news(self) -> bool:
        """Whether the newest position was stored just now, after a pause."""
        with self._lock:
            latest = self._written[-1][0]
            return self._clock() - latest < TRAVEL_SECONDS and (
                len(self._written) == 1 or latest - self._written[-2][0] > 2 * LOOK_SECONDS
            )

    def _ask(self, primary: Engine) -> None:
        try:
            with primary.connect() as connection:
                self.note(int(connection.exec_driver_sql(WRITTEN).scalar_one()))
        except (exc.SQLAlchemyError, psycopg.Error, OSError) as failure:
            log.warning("the primary's log cannot be seen: %s", first_line(failure))


def install(app: Flask) -> None:
    """Mark every answer of ``app`` that was read from a replica with a lag."""
    app.after_request(_say)
    app.context_processor(lambda: {"behind_seconds": late_seconds()})


def late_seconds() -> float | None:
    """Return the lag of the replica that this request read from; None when it is too small to show."""
    behind: float | None = g.get("behind_seconds")
    return behind if behind is not None and behind > SHOWN_SECONDS else None


def _say(response: Response) -> Response:
    late = late_seconds()
    if late is not None:
        response.headers[HEADER] = str(round(late))
    return response
