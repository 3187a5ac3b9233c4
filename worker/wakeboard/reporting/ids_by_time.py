"""Finds the id of a moment by binary search, in tables whose times have no index but grow with the ids."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.database.read import read_all

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# Ids may be out of order by this much: a row of the audit log has the time at which its transaction began,
# and gets its id later.
ID_SLACK = timedelta(minutes=10)


class _LastId(NamedTuple):
    id: int


def last_id_before(table: str, column: str, moment: str) -> str:
    """Return the query for the largest ``id`` such that its row and all before it are older than ``moment``.

    The id is 0 when there is none. ``column`` has the times; all three are SQL constants of the caller.
    """
    return f"""
WITH RECURSIVE search (low, high) AS (
    SELECT greatest(min(id), 1) - 1, max(id) FROM wakeboard.{table}
    UNION ALL
    SELECT CASE WHEN probe.at < {moment} THEN probe.id ELSE low END,
        CASE WHEN probe.at < {moment} THEN high ELSE low + (high - low + 1) / 2 - 1 END
    FROM search CROSS JOIN LATERAL (
        SELECT r.id, r.{column} AS at FROM wakeboard.{table} AS r
        WHERE r.id >= low + (high - low + 1) / 2 ORDER BY r.id LIMIT 1
    ) AS probe
    WHERE low < high
)
SELECT coalesce(max(low), 0) AS id FROM search WHERE low >= high
"""


def find_last_id_before(connection: Connection, table: str, column: str, moment: datetime) -> int:
    """Return the id that ``last_id_before`` asks for."""
    query = last_id_before(table, column, "%(moment)s")
    return read_all(connection, query, _LastId, {"moment": moment})[0].id
