"""The kinds of failure of a window, as its page lists them: by code, type and group; which were never seen.

Attempts come from the index of failures, newest first and at most CAP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.core.errors.error_groups import format_fingerprint
from wakeboard.core.states import FAILURES, sql_list
from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow, faults
from wakeboard.reporting.activity_report.faults import UNKNOWN, FailedAttempts, FailingRuns, known, mark_of

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

CAP = 20_000
MOST = 100

_KINDS = f"""
WITH tried AS (
    SELECT coalesce(newest.error_code, '{UNKNOWN}') AS code, newest.job_type, newest.error_group,
        count(*) AS failures
    FROM (
        SELECT a.error_code, a.job_type, a.error_group FROM wakeboard.job_attempts AS a
        WHERE a.outcome IN ({sql_list(FAILURES)}) AND a.finished_at >= %(since)s AND a.finished_at < %(until)s
        ORDER BY a.finished_at DESC LIMIT %(cap)s
    ) AS newest
    GROUP BY 1, 2, 3
)
SELECT tried.*, g.id IS NOT NULL AS is_kept, coalesce(g.first_seen_at < %(since)s, false) AS was_seen
FROM tried
LEFT JOIN wakeboard.error_groups AS g ON g.id = tried.error_group
ORDER BY tried.failures DESC, tried.code COLLATE "C", tried.job_type COLLATE "C"
LIMIT %(most)s
"""


@dataclass(frozen=True, slots=True)
class FailureKind:
    """One kind of failure: failed attempts in the window, those of its runs that are dead now, is it new.

    ``fingerprint`` is its group's; None where none is kept.
    """

    code: str
    job_type: str
    failures: int
    dead: int
    is_new: bool
    fingerprint: str | None


class _Tried(NamedTuple):
    """One row of _KINDS; ``was_seen``: its group had failed before the window."""

    code: str
    job_type: str
    error_group: int | None
    failures: int
    is_kept: bool
    was_seen: bool


def failed_kinds(connection: Connection, window: TimeWindow) -> tuple[list[FailureKind], FailedAttempts]:
    """Return the kinds of failure of ``window``, most first, at most MOST, and what became of its runs."""
    values = {"since": window.since, "until": window.until, "cap": CAP, "most": MOST}
    found = read_all(connection, _KINDS, _Tried, values)
    failed = faults.failed(connection, window, [row.error_group for row in found if row.error_group])
    before = known(connection, window)[0] if any(not row.was_seen for row in found) else set()
    return [
        FailureKind(
            row.code,
            row.job_type,
            row.failures,
            failed.failing.get(mark_of(row.error_group, row.code, row.job_type), FailingRuns()).dead,
            not row.was_seen and (row.code, row.job_type) not in before,
            format_fingerprint(row.error_group) if row.is_kept and row.error_group is not None else None,
        )
        for row in found
    ], failed
