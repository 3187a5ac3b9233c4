"""Who did what in a window: the newest rows of the audit log, by a stretch of its ids."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from wakeboard.reporting.activity_report import Ask, Window
from wakeboard.reporting.ids_by_time import LastBefore, last_before

MOST = 50
# A row's time is when its transaction began, its id is given later: ids may run ahead by this much.
SLACK = timedelta(minutes=10)

_LAST_BEFORE = last_before("audit_log", "at")
_ACTS = """
SELECT id, at, actor, action, target_type, target_id, result FROM wakeboard.audit_log
WHERE id > CAST(:first AS bigint) AND id <= CAST(:last AS bigint) AND at >= :since AND at < :until
ORDER BY id DESC LIMIT :most
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


def acts(ask: Ask, window: Window) -> list[Act]:
    """Return what was done in ``window``, newest first, at most MOST."""
    first, last = (
        ask(LastBefore, _LAST_BEFORE, {"moment": moment})[0].low
        for moment in (window.since - SLACK, window.until + SLACK)
    )
    values = {"first": first, "last": last, "since": window.since, "until": window.until, "most": MOST}
    return ask(Act, _ACTS, values)
