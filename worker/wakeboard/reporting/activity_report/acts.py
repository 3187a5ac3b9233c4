"""Who did what in a window: the newest rows of the audit log, by a stretch of its ids."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import Window
from wakeboard.reporting.ids_by_time import LastBefore, last_before

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

MOST = 50
# A row's time is when its transaction began, its id is given later: ids may run ahead by this much.
SLACK = timedelta(minutes=10)

_LAST_BEFORE = last_before("audit_log", "at", "%(moment)s")
_ACTS = """
SELECT id, at, actor, action, target_type, target_id, result FROM wakeboard.audit_log
WHERE id > CAST(%(first)s AS bigint) AND id <= CAST(%(last)s AS bigint) AND at >= %(since)s AND at < %(until)s
ORDER BY id DESC LIMIT %(most)s
"""


class Act(NamedTuple):
    """Who did what to which thing, and how it ended."""

    id: int
    at: datetime
    actor: str
    action: str
    target_type: str | None
    target_id: str | None
    result: str


def acts(connection: Connection, window: Window) -> list[Act]:
    """Return what was done in ``window``, newest first, at most MOST."""
    first, last = (
        read_all(connection, _LAST_BEFORE, LastBefore, {"moment": moment})[0].low
        for moment in (window.since - SLACK, window.until + SLACK)
    )
    values = {"first": first, "last": last, "since": window.since, "until": window.until, "most": MOST}
    return read_all(connection, _ACTS, Act, values)
