"""Finds a moment in a table whose times have no index but grow with the ids, by a binary search."""

from __future__ import annotations

from typing import NamedTuple


class LastBefore(NamedTuple):
    """The answer of ``last_before``."""

    low: int


def last_before(table: str, column: str, moment: str) -> str:
    """Return the query for the largest id, as ``low``, so that its row and all before it are older than
    ``moment`` by ``column``; 0 when there is none. All three are constants of the caller.
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
SELECT coalesce(max(low), 0) AS low FROM search WHERE low >= high
"""
