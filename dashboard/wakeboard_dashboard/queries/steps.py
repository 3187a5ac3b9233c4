"""Steps of five minutes of the statistics, kept from one request to the next while nothing is added to them.

Roll-ups only grow: each minute a merge adds rows, of whatever minute, and nothing changes a row or removes it
but retention, weeks later. So the number of its rows tells whether a step is as it was, which an index knows;
to sum them takes five times as long. Deltas are on their way to the roll-ups: from the first of them on all
is read.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from sqlalchemy import Connection, text

STEP = timedelta(minutes=5)
# So many are kept: an hour that is not settled and the one before it, and the hour that a window may show.
MOST = 36
Told = TypeVar("Told")
# Returns what is told from one moment to another by steps of a length, by where each begins.
ByMinutes = Callable[[datetime, datetime, timedelta], dict[datetime, Told]]

_ROWS = text("""
SELECT date_bin(:step, minute, :first) AS start_at, count(*) AS rows, false AS is_moving
FROM wakeboard.statistics_rollups WHERE minute >= :first AND minute < :until GROUP BY start_at
UNION ALL
(SELECT date_bin(:step, minute, :first), 0, true FROM wakeboard.statistics_deltas
 WHERE minute >= :first AND minute < :until ORDER BY minute LIMIT 1)
""")


class Steps(Generic[Told]):
    """What was told of each of the latest steps, and of how many rows."""

    def __init__(self) -> None:
        self._kept: dict[datetime, tuple[int, Told]] = {}

    def read(
        self, connection: Connection, first: datetime, until: datetime, by_minutes: ByMinutes[Told]
    ) -> dict[datetime, Told]:
        """Return what is told of each step from ``first`` to ``until`` in which anything ended.

        Where it is not known how a step is, ``by_minutes`` reads from there on, in one go. ``first`` is where
        a step begins.
        """
        # Rows that come between the two questions are told; the step has one more the next time.
        rows = connection.execute(_ROWS, {"step": STEP, "first": first, "until": until}).all()
        counts = {row.start_at: row.rows for row in rows if not row.is_moving}
        moving = [row.start_at for row in rows if row.is_moving]
        known = {start: kept[1] for start, kept in list(self._kept.items()) if counts.get(start) == kept[0]}
        unknown = [*moving, *(start for start in counts if start not in known)]
        if not unknown:
            return known
        fresh = by_minutes(min(unknown), until, STEP)
        still = {start: count for start, count in counts.items() if start < min(moving, default=until)}
        self._kept.update((start, (still[start], told)) for start, told in fresh.items() if start in still)
        for start in sorted(self._kept)[:-MOST]:
            self._kept.pop(start, None)
        return {start: told for start, told in known.items() if start < min(unknown)} | fresh
