"""Who did what in a window: the newest rows of the audit log, by a stretch of its ids."""

from __future__ import annotations

from datetime import timedelta

from worker.nights import Ask, Row, Window

MOST = 50
# A row's time is when its transaction began, its id is given later: ids may run ahead by this much.
SLACK = timedelta(minutes=10)

# The largest id so that it and all before it are older than :moment, found by halving: ``at`` has no index
# of its own, but grows with the id.
_LAST_BEFORE = """
WITH RECURSIVE search (low, high) AS (
    SELECT greatest(min(id), 1) - 1, max(id) FROM wakeboard.audit_log
    UNION ALL
    SELECT CASE WHEN probe.at < :moment THEN probe.id ELSE low END,
        CASE WHEN probe.at < :moment THEN high ELSE low + (high - low + 1) / 2 - 1 END
    FROM search CROSS JOIN LATERAL (
        SELECT a.id, a.at FROM wakeboard.audit_log AS a
        WHERE a.id >= low + (high - low + 1) / 2 ORDER BY a.id LIMIT 1
    ) AS probe
    WHERE low < high
)
SELECT coalesce(max(low), 0) AS low FROM search WHERE low >= high
"""
_ACTS = """
SELECT id, at, actor, action, target_type, target_id, result FROM wakeboard.audit_log
WHERE id > CAST(:first AS bigint) AND id <= CAST(:last AS bigint) AND at >= :since AND at < :until
ORDER BY id DESC LIMIT :most
"""


def acts(ask: Ask, window: Window) -> list[Row]:
    """Return what was done in ``window``, newest first, at most MOST: the columns that say who did what."""
    first, last = (
        ask(_LAST_BEFORE, {"moment": moment})[0]["low"]
        for moment in (window.since - SLACK, window.until + SLACK)
    )
    values = {"first": first, "last": last, "since": window.since, "until": window.until, "most": MOST}
    return ask(_ACTS, values)
