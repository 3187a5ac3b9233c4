"""The kinds of failure of a window, as its page lists them: by code, type and group; which were never seen.

Attempts come from the index of failures, newest first and at most CAP; runs from the newest CAP that fail.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.fingerprint import written
from worker.nights import Ask, Window
from worker.nights.faults import UNKNOWN, known
from worker.states import FAILING, FAILURES, sql_list

CAP = 20_000
MOST = 100

# A range of one status: with "=" the planner may walk the primary key back instead of job_runs_failing.
_NEWEST_FAILING = """
    (SELECT r.error_code, r.job_type, r.error_group, r.status FROM wakeboard.job_runs AS r
     WHERE r.status IN ({failing}) AND r.status >= '{0}' AND r.status <= '{0}'
     ORDER BY r.status DESC, r.id DESC LIMIT :cap)"""
_FAILING = " UNION ALL ".join(
    _NEWEST_FAILING.format(status.value, failing=sql_list(FAILING)) for status in FAILING
)
_KINDS = f"""
WITH tried AS (
    SELECT coalesce(newest.error_code, '{UNKNOWN}') AS code, newest.job_type, newest.error_group,
        count(*) AS failures
    FROM (
        SELECT a.error_code, a.job_type, a.error_group FROM wakeboard.job_attempts AS a
        WHERE a.outcome IN ({sql_list(FAILURES)}) AND a.finished_at >= :since AND a.finished_at < :until
        ORDER BY a.finished_at DESC LIMIT :cap
    ) AS newest
    GROUP BY 1, 2, 3
), failing AS (
    SELECT error_code AS code, job_type, error_group, count(*) AS runs,
        count(*) FILTER (WHERE status = 'dead') AS dead
    FROM ({_FAILING}) AS runs
    GROUP BY 1, 2, 3
)
SELECT tried.*, coalesce(failing.dead, 0) AS dead, g.id IS NOT NULL AS is_kept,
    coalesce(g.first_seen_at < :since, false) AS was_seen
FROM tried
LEFT JOIN failing ON failing.code = tried.code AND failing.job_type = tried.job_type
    AND failing.error_group IS NOT DISTINCT FROM tried.error_group
LEFT JOIN wakeboard.error_groups AS g ON g.id = tried.error_group
ORDER BY tried.failures DESC, coalesce(failing.runs, 0) DESC, tried.code COLLATE "C"
LIMIT :most
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of failure: failed attempts in the window, runs that are dead of it now, whether it is new.

    ``fingerprint`` is its group's; None where none is kept.
    """

    code: str
    job_type: str
    failures: int
    dead: int
    is_new: bool
    fingerprint: str | None


def failed_kinds(ask: Ask, window: Window) -> list[Kind]:
    """Return the kinds of failure of ``window``, most failures first, at most MOST."""
    values = {"since": window.since, "until": window.until, "cap": CAP, "most": MOST}
    found = ask(_KINDS, values)
    before = known(ask, window)[0] if any(not row["was_seen"] for row in found) else set()
    return [
        Kind(
            row["code"],
            row["job_type"],
            row["failures"],
            row["dead"],
            not row["was_seen"] and (row["code"], row["job_type"]) not in before,
            written(row["error_group"]) if row["is_kept"] else None,
        )
        for row in found
    ]
