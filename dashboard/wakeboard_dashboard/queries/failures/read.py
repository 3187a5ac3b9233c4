"""What is read of failures to be counted here: the newest attempts one by one, and runs by group.

From the same indexes as ``tallies``, in the same order and as many, but nothing is put in order or named.
"""

from __future__ import annotations

from functools import cache

from sqlalchemy import TextClause, text

from wakeboard.core.states import Status
from wakeboard_dashboard.queries.error_counts import FAILED, FAILS_NOW, narrowed

_ATTEMPTS = """
SELECT string_agg(timestamptz_send(finished_at), '') AS times,
    string_agg(int8send(error_group), '') AS numbers
FROM (
    SELECT finished_at, error_group FROM wakeboard.job_attempts
    WHERE {failed} AND finished_at >= :since AND finished_at < :until {of_code} {of_type}
    ORDER BY finished_at DESC LIMIT {cap}
) AS newest
"""
_NUMBERS_OF_A_STATE = """
SELECT '{status}' AS status, array_agg(error_group) AS numbers, array_agg(runs) AS counts
FROM (
    SELECT error_group, count(*) AS runs
    FROM (
        SELECT error_group FROM wakeboard.job_runs
        WHERE {failing} AND status {end} (SELECT '{status}') {of_type}
        ORDER BY status DESC, id DESC LIMIT {cap}
    ) AS {status} GROUP BY error_group
) AS counted
"""
# Groups are told apart by their number alone: a state beside it would be hashed and compared for each run.
_NUMBERS_OF_A_CODE = """
SELECT status, numbers, counts
FROM (
    SELECT array_agg(error_group) AS numbers, array_agg(failed) AS failed, array_agg(dead) AS dead
    FROM (
        SELECT error_group, count(*) FILTER (WHERE status = 'failed') AS failed,
            count(*) FILTER (WHERE status = 'dead') AS dead
        FROM (
            SELECT status, error_group FROM wakeboard.job_runs
            WHERE {failing} AND error_code = :code {of_type} ORDER BY id DESC LIMIT {cap}
        ) AS failing GROUP BY error_group
    ) AS counted
) AS whole CROSS JOIN LATERAL (VALUES ('failed', failed), ('dead', dead)) AS told (status, counts)
"""


@cache
def newest(*, cap: int, code: bool, unknown: bool, job_type: bool, number: bool) -> TextClause:
    """Return the statement that tells the newest ``cap`` attempts one by one; it wants :since and :until.

    When they ended, in microseconds since 2000, and their groups' numbers, each as eight bytes, newest first;
    of an attempt without a number the second eight are missing. ``number``: only those of the group :number,
    all of which failed. For the others see ``tallies.statement``.
    """
    failed = "error_group = :number" if number else FAILED
    return text(
        _ATTEMPTS.format(failed=failed, cap=cap, **narrowed(code=code, unknown=unknown, job_type=job_type))
    )


@cache
def failing(*, cap: int, code: bool, job_type: bool) -> TextClause:
    """Return the statement that counts the runs that fail now: by state, arrays of numbers and counts."""
    of_type = narrowed(code=False, unknown=False, job_type=job_type)["of_type"]
    if code:
        return text(_NUMBERS_OF_A_CODE.format(failing=FAILS_NOW, of_type=of_type, cap=cap))
    parts = ((Status.FAILED, ">="), (Status.DEAD, "<="))
    return text(
        "UNION ALL".join(
            _NUMBERS_OF_A_STATE.format(
                status=status.value, end=end, failing=FAILS_NOW, of_type=of_type, cap=cap
            )
            for status, end in parts
        )
    )
