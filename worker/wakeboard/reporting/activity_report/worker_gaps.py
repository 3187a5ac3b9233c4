"""When no worker was there: neither a worker nor a tick.

A worker was there from its start to its end, or to its last heartbeat. Rows of workers are removed a week
later (``runtime.duties.presence``): an older window has no gaps.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.heartbeats import SILENCE_SECONDS

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# Before the first known worker there are no gaps. A tick a minute leaves none.
_GAPS = """
WITH presence AS (
    SELECT started_at, coalesce(stopped_at, seen_at) AS left_at FROM wakeboard.workers
    WHERE started_at < %(until)s
), reached AS (
    SELECT started_at AS came_at, max(left_at) OVER before AS left_at FROM presence
    WINDOW before AS (ORDER BY started_at, left_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    UNION ALL SELECT least(%(until)s, now()), max(left_at) FROM presence
)
SELECT greatest(left_at, %(since)s) AS since_at, came_at AS until_at FROM reached
WHERE came_at > %(since)s AND came_at - left_at > make_interval(secs => %(silence)s)
ORDER BY came_at - greatest(left_at, %(since)s) DESC, came_at
"""


class WorkerGap(NamedTuple):
    """A stretch of a window in which no worker was there."""

    since_at: datetime
    until_at: datetime

    @property
    def seconds(self) -> float:
        """The length of the gap."""
        return (self.until_at - self.since_at).total_seconds()


def find_worker_gaps(connection: Connection, window: TimeWindow) -> list[WorkerGap]:
    """Return the stretches of ``window`` in which no worker was there, the longest first."""
    values = {"since": window.since, "until": window.until, "silence": SILENCE_SECONDS}
    return read_all(connection, _GAPS, WorkerGap, values)
