"""What the page of a night asks of failures: what became of the runs that failed, what had never failed so.

Attempts come from the index of failures, newest first and at most CAP; runs by their primary key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from worker.nights import Ask, Row, Window
from worker.states import FAILURES, sql_list

CAP = 10_000
MOST_SHOWN = 50
# A failure without a code.
UNKNOWN = "unknown"
# A run that failed this long before the window may have succeeded in it.
LEAD = timedelta(days=1)

_FAILURES = f"""
    SELECT a.run_id, a.job_type, a.error_code, a.outcome, a.finished_at, a.next_run_at, a.started_at,
        a.attempt, a.lease_epoch, a.worker_id, a.refused_at, a.refused_outcome, a.error_group
    FROM wakeboard.job_attempts AS a
    WHERE a.outcome IN ({sql_list(FAILURES)}) AND a.finished_at >= :since AND a.finished_at < :until
    ORDER BY a.finished_at DESC
    LIMIT :cap"""


@dataclass(frozen=True, slots=True)
class Fates:
    """How many runs failed in the window, and how they stand now; ``gone`` were removed since."""

    runs: int
    succeeded: int
    waiting: int
    dead: int
    cancelled: int
    gone: int


def _values(window: Window, lead: timedelta = timedelta(0), **more: Any) -> dict[str, Any]:
    return {"since": window.since - lead, "until": window.until, "cap": CAP, **more}


_FATES = f"""
SELECT count(*) AS runs,
    count(*) FILTER (WHERE r.status = 'succeeded') AS succeeded,
    count(*) FILTER (WHERE r.status IN ('failed', 'queued', 'running')) AS waiting,
    count(*) FILTER (WHERE r.status = 'dead') AS dead,
    count(*) FILTER (WHERE r.status = 'cancelled') AS cancelled,
    count(*) FILTER (WHERE r.id IS NULL) AS gone
FROM (SELECT DISTINCT run_id FROM ({_FAILURES}) AS newest) AS failed
LEFT JOIN wakeboard.job_runs AS r ON r.id = failed.run_id
"""


def fates(ask: Ask, window: Window) -> Fates:
    """Return what became of the runs that failed in ``window``, of its newest CAP failures."""
    return Fates(**ask(_FATES, _values(window))[0])


_KNOWN = f"""
SELECT coalesce(error_code, '{UNKNOWN}') AS code, job_type, is_old, sum(failures) OVER () AS looked
FROM (
    SELECT error_code, job_type, bool_or(error_group IS NULL) AS is_old, count(*) AS failures
    FROM ({_FAILURES}) AS newest
    GROUP BY error_code, job_type
) AS kinds
"""


def known(ask: Ask, window: Window) -> tuple[set[tuple[str, str]], bool]:
    """Return the (code, type) that had failed before ``window``, and whether only CAP were read.

    Of failures that were written before there were error groups: those tell themselves when they began.
    """
    earlier = {"since": "-infinity", "until": window.since, "cap": CAP}
    found = ask(_KNOWN, earlier)
    old = {(row["code"], row["job_type"]) for row in found if row["is_old"]}
    return old, bool(found) and found[0]["looked"] >= CAP


_RECOVERED = f"""
SELECT r.id, r.job_type, r.attempts, r.error_code, r.finished_at, failed.failures, failed.first_failed_at,
    count(*) OVER () AS of_all
FROM (
    SELECT run_id, count(*) AS failures, min(finished_at) AS first_failed_at
    FROM ({_FAILURES}) AS newest GROUP BY run_id
) AS failed
JOIN wakeboard.job_runs AS r ON r.id = failed.run_id
WHERE r.status = 'succeeded' AND r.finished_at >= :begin AND r.finished_at < :until
ORDER BY failed.failures DESC, r.finished_at DESC
LIMIT :most
"""


def recovered(ask: Ask, window: Window) -> tuple[list[Row], int]:
    """Return runs that succeeded in ``window`` after failures, most failures first; and how many there are.

    id, job_type, attempts, error_code (of the last failure), failures (those not older than LEAD before the
    window), first_failed_at, finished_at. At most MOST_SHOWN.
    """
    values = _values(window, LEAD, begin=window.since, most=MOST_SHOWN)
    found = ask(_RECOVERED, values)
    return found, found[0]["of_all"] if found else 0


_LOST = f"""
SELECT lost.*, coalesce(w.name, lost.worker_id) AS worker_name, r.status
FROM (
    SELECT newest.*, count(*) OVER () AS of_all FROM ({_FAILURES}) AS newest
    WHERE outcome = 'lost' ORDER BY finished_at DESC LIMIT :most
) AS lost
LEFT JOIN wakeboard.workers AS w ON w.id = lost.worker_id
LEFT JOIN wakeboard.job_runs AS r ON r.id = lost.run_id
ORDER BY lost.finished_at DESC, lost.run_id DESC
"""


def lost(ask: Ask, window: Window) -> tuple[list[Row], int]:
    """Return attempts whose lease ended and whose run was taken over, newest first; and how many there are.

    run_id, attempt, lease_epoch, job_type, worker_name, started_at, finished_at (when it was taken over),
    refused_at and refused_outcome (its worker's late answer), status (of the run now). At most MOST_SHOWN.
    """
    found = ask(_LOST, _values(window, most=MOST_SHOWN))
    return found, found[0]["of_all"] if found else 0
