"""The runs that succeeded only after failures, where they are many: what ended a while ago is remembered.

A run that succeeded stays so (``core.states``). The answers are those of
``reporting.activity_report.faults``, which is asked where nothing is remembered of a window. Knows no
request.
"""

from __future__ import annotations

from datetime import datetime
from heapq import nlargest

from sqlalchemy import Connection, text

from wakeboard.database.index_predicates import IS_LATER_SUCCESS
from wakeboard.reporting.activity_report import Row, faults
from wakeboard_dashboard.queries.errors import Window
from wakeboard_dashboard.queries.failures.lately import Attempts, Lately, Newest, array_of

# The number of a run is its id and above it, of these bits, how many attempts it had.
_ID_BITS = 48
_ID = (1 << _ID_BITS) - 1
READ = text(f"""
SELECT string_agg(timestamptz_send(finished_at), '') AS times,
    string_agg(int8send((attempts::bigint << {_ID_BITS}) + id), '')
        FILTER (WHERE attempts < 32768 AND id <= {_ID}) AS numbers
FROM (
    SELECT a.finished_at, r.attempts, r.id
    FROM (SELECT * FROM wakeboard.job_attempts WHERE {IS_LATER_SUCCESS}) AS a
    JOIN wakeboard.job_runs AS r ON r.id = a.run_id
    WHERE a.finished_at >= :since AND a.finished_at < :until AND r.failed_at IS NOT NULL
    ORDER BY a.finished_at DESC LIMIT :cap
) AS newest
""")
_WORST = text(f"SELECT {faults.RECOVERED} FROM unnest(CAST(:runs AS bigint[])) AS worst (id) {faults.TRIED}")


def _read(connection: Connection, window: Window, since: datetime) -> Attempts | None:
    """Return the newest runs of ``window`` that ended from ``since`` on; None when a number is too large."""
    values = {"since": since, "until": window.until, "cap": faults.CAP}
    times, numbers = (array_of(found) for found in connection.execute(READ, values).one())
    return Attempts(times, numbers) if len(times) == len(numbers) else None


class Recovered:
    """What one process remembers: when runs succeeded after failures, and which had most attempts."""

    def __init__(self) -> None:
        self.ended = Lately(_read, lambda: faults.CAP)
        self._worst: tuple[Newest, list[int]] | None = None

    def worst(self, newest: Newest) -> list[int]:
        """Return the runs of ``newest`` with most attempts: those of the last time where it is the same."""
        kept = self._worst
        if kept is None or kept[0] != newest:
            numbers = nlargest(faults.MOST_SHOWN, newest.one_by_one().numbers)
            self._worst = kept = newest, [number & _ID for number in numbers]
        return kept[1]


def recovered(
    memory: Recovered, connection: Connection, window: Window, now: datetime
) -> tuple[list[Row], int] | None:
    """Return what ``faults.recovered`` does; None where nothing is remembered.

    ``now``: the database's clock.
    """
    newest = memory.ended.newest(connection, window, now)
    if newest is None:
        return None
    worst = memory.worst(newest)
    rows = connection.execute(_WORST, {"runs": worst}).mappings() if worst else ()
    return [dict(row) for row in rows], newest.total
