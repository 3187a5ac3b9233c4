"""What the page of a night asks of workers: when there was none, neither a worker nor a tick.

A worker was there from its start to its end, or to when it was last heard. Rows of workers are removed a week
after that (``duties.presence``): of an older night nothing is told. Reads only.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.heartbeats import SILENCE_SECONDS

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# Before the first worker that is known nobody can say that one was missing. A tick comes and goes: where one
# is called each minute, somebody is always there.
_GAPS = """
WITH there AS (
    SELECT started_at, coalesce(stopped_at, seen_at) AS left_at FROM wakeboard.workers
    WHERE started_at < %(until)s
), reached AS (
    SELECT started_at AS came_at, max(left_at) OVER before AS left_at FROM there
    WINDOW before AS (ORDER BY started_at, left_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    UNION ALL SELECT least(%(until)s, now()), max(left_at) FROM there
)
SELECT greatest(left_at, %(since)s) AS since_at, came_at AS until_at FROM reached
WHERE came_at > %(since)s AND came_at - left_at > make_interval(secs => %(silence)s)
ORDER BY came_at - greatest(left_at, %(since)s) DESC, came_at
"""


class UnmannedStretch(NamedTuple):
    """A stretch of a window in which no worker was there."""

    since_at: datetime
    until_at: datetime

    @property
    def seconds(self) -> float:
        """How long it was."""
        return (self.until_at - self.since_at).total_seconds()


def unmanned(connection: Connection, window: TimeWindow) -> list[UnmannedStretch]:
    """Return the stretches of ``window`` in which no worker was there, the longest first."""
    values = {"since": window.since, "until": window.until, "silence": SILENCE_SECONDS}
    return read_all(connection, _GAPS, UnmannedStretch, values)
