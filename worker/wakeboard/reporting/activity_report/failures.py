"""Failures in a time window: their kinds, how the runs stand now, which recovered, which leases were lost.

Attempts come from the index of failures, newest first and at most CAP; their runs by primary key; recovered
runs from an index of their own. ``find_failed_attempts`` walks over the attempts once; ``find_lost_attempts``
reads more of what it found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from wakeboard.core.errors.error_groups import format_fingerprint
from wakeboard.core.states import FAILURES, sql_list
from wakeboard.database.index_predicates import IS_LATER_SUCCESS, IS_UNDER_WAY
from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

CAP = 10_000
# Kinds are counted over more attempts, because only their index is read; at most MAX_KINDS are returned.
KINDS_CAP = 20_000
MAX_KINDS = 100
# The length of each list of a night.
MAX_SHOWN = 20
# The code of a failure without one.
UNKNOWN_CODE = "unknown"

_ATTEMPTS = f"wakeboard.job_attempts AS a WHERE a.outcome IN ({sql_list(FAILURES)})"


@dataclass(frozen=True, slots=True)
class FailedRunStates:
    """How many runs failed in the window, and how many are in which state now; ``gone`` ones were removed."""

    runs: int
    succeeded: int
    waiting: int
    dead: int
    cancelled: int
    gone: int


# What distinguishes failures: the number of their group or, without a group, code and job type.
FailureKey = tuple[int | None, str | None, str | None]


def failure_key(number: int | None, code: str, job_type: str) -> FailureKey:
    """Return the key of a failure with or without a group."""
    return (None, code, job_type) if number is None else (number, None, None)


class FailingRuns(NamedTuple):
    """How many of the runs whose last failure has one key will be retried, and how many are dead."""

    failed: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """The runs that failed in a window, as they stood when they were read.

    ``failing`` says how many of them fail now, by key. ``lost_count`` attempts were lost; the newest of them
    are ``lost_runs`` with their ``lost_epochs``, arrays as PostgreSQL writes them.
    """

    states: FailedRunStates
    failing: Mapping[FailureKey, FailingRuns]
    lost_count: int
    lost_runs: str
    lost_epochs: str


_NEWEST = f"""
        SELECT a.run_id, a.lease_epoch, a.finished_at, a.outcome = 'lost' AS is_lost
        FROM {_ATTEMPTS} AND a.finished_at >= %(since)s AND a.finished_at < %(until)s
        ORDER BY a.finished_at DESC
        LIMIT %(cap)s"""
# A run has the group of its last failure. Groups other than %(groups)s count as one. The join takes half as
# long as a comparison of each run with an array.
_JOIN_GROUPS = """LEFT JOIN (
    SELECT DISTINCT number FROM unnest(CAST(%(groups)s AS bigint[])) AS number
) AS chosen ON chosen.number = error_group"""
_KEY = f"""chosen.number,
    CASE WHEN error_group IS NULL THEN coalesce(error_code, '{UNKNOWN_CODE}') END AS code,
    CASE WHEN error_group IS NULL THEN job_type END AS of_type"""
_STATE_COUNTS = f"""count(*) FILTER (WHERE status = 'succeeded') AS succeeded,
    count(*) FILTER (WHERE {IS_UNDER_WAY}) AS waiting,
    count(*) FILTER (WHERE status = 'dead') AS dead,
    count(*) FILTER (WHERE status = 'cancelled') AS cancelled,
    count(*) FILTER (WHERE status = 'failed') AS failed"""
# An array finds many runs of a page of the index at once, a join descends the index for each. The planner
# does not know the array's length and might join by nested loops; a full join, which adds no rows here,
# cannot. Few attempts are lost: only where one was, the attempts are walked over once more.
_FAILED = f"""
WITH attempts AS MATERIALIZED (
    SELECT run_id, bool_or(is_lost) AS is_lost FROM ({_NEWEST}) AS newest GROUP BY run_id
), failed_runs AS MATERIALIZED (
    SELECT attempts.run_id, runs.*
    FROM attempts FULL JOIN (
        SELECT r.id, r.status, r.error_group, r.error_code, r.job_type
        FROM wakeboard.job_runs AS r
        WHERE r.id = ANY (ARRAY(SELECT run_id FROM attempts))
    ) AS runs ON runs.id = attempts.run_id
), lost AS (
    SELECT run_id, lease_epoch, count(*) OVER () AS total FROM ({_NEWEST}) AS newest
    WHERE is_lost AND (SELECT bool_or(is_lost) FROM attempts)
    ORDER BY finished_at DESC LIMIT %(most)s
)
SELECT failed.*, lost.*
FROM (
    SELECT count(*) AS runs,
        (SELECT coalesce(json_agg(by_key), '[]') FROM (
            SELECT {_KEY}, {_STATE_COUNTS} FROM failed_runs {_JOIN_GROUPS} GROUP BY 1, 2, 3
        ) AS by_key) AS states
    FROM failed_runs
) AS failed CROSS JOIN (
    SELECT coalesce(max(total), 0) AS lost_count,
        coalesce(array_agg(run_id), '{{}}')::text AS lost_runs,
        coalesce(array_agg(lease_epoch), '{{}}')::text AS lost_epochs
    FROM lost
) AS lost
"""


class _StateCounts(TypedDict):
    """How many of the runs of one _KEY are in which state; an element of the JSON of _FAILED."""

    number: int | None
    code: str | None
    of_type: str | None
    succeeded: int
    waiting: int
    dead: int
    cancelled: int
    failed: int


class _FailedRow(NamedTuple):
    runs: int
    states: list[_StateCounts]
    lost_count: int
    lost_runs: str
    lost_epochs: str


def find_failed_attempts(
    connection: Connection, window: TimeWindow, groups: Sequence[int] = ()
) -> FailedAttempts:
    """Return the runs of the newest CAP attempts that failed in ``window``.

    ``failing`` has the keys of ``groups`` and of failures without a group.
    """
    values = {"since": window.since, "until": window.until, "cap": CAP, "most": MAX_SHOWN}
    (row,) = read_all(connection, _FAILED, _FailedRow, values | {"groups": list(groups)})
    succeeded = sum(each["succeeded"] for each in row.states)
    waiting = sum(each["waiting"] for each in row.states)
    dead = sum(each["dead"] for each in row.states)
    cancelled = sum(each["cancelled"] for each in row.states)
    gone = row.runs - succeeded - waiting - dead - cancelled
    return FailedAttempts(
        FailedRunStates(row.runs, succeeded, waiting, dead, cancelled, gone),
        {
            (each["number"], each["code"], each["of_type"]): FailingRuns(each["failed"], each["dead"])
            for each in row.states
            if each["failed"] or each["dead"]
        },
        row.lost_count,
        row.lost_runs,
        row.lost_epochs,
    )


_KNOWN = f"""
SELECT coalesce(error_code, '{UNKNOWN_CODE}') AS code, job_type, has_no_group, sum(failures) OVER () AS total
FROM (
    SELECT error_code, job_type, bool_or(error_group IS NULL) AS has_no_group, count(*) AS failures
    FROM (
        SELECT a.job_type, a.error_code, a.error_group FROM {_ATTEMPTS} AND a.finished_at < %(until)s
        ORDER BY a.finished_at DESC
        LIMIT %(cap)s
    ) AS newest
    GROUP BY error_code, job_type
) AS kinds
"""


class _KnownFailure(NamedTuple):
    """A row of _KNOWN; ``total``: how many failures were read for all rows."""

    code: str
    job_type: str
    has_no_group: bool
    total: int


def find_known_failures(connection: Connection, window: TimeWindow) -> tuple[set[tuple[str, str]], bool]:
    """Return each (code, job type) that failed without a group before ``window``, and whether CAP cut them.

    Such failures were written before there were error groups; a group has the time of its first failure.
    """
    rows = read_all(connection, _KNOWN, _KnownFailure, {"until": window.since, "cap": CAP})
    known = {(row.code, row.job_type) for row in rows if row.has_no_group}
    return known, bool(rows) and rows[0].total >= CAP


_KINDS = f"""
WITH kinds AS (
    SELECT coalesce(newest.error_code, '{UNKNOWN_CODE}') AS code, newest.job_type, newest.error_group,
        count(*) AS failures
    FROM (
        SELECT a.error_code, a.job_type, a.error_group FROM wakeboard.job_attempts AS a
        WHERE a.outcome IN ({sql_list(FAILURES)}) AND a.finished_at >= %(since)s AND a.finished_at < %(until)s
        ORDER BY a.finished_at DESC LIMIT %(cap)s
    ) AS newest
    GROUP BY 1, 2, 3
)
SELECT kinds.*, g.id IS NOT NULL AS is_kept, coalesce(g.first_seen_at < %(since)s, false) AS was_seen
FROM kinds
LEFT JOIN wakeboard.error_groups AS g ON g.id = kinds.error_group
ORDER BY kinds.failures DESC, kinds.code COLLATE "C", kinds.job_type COLLATE "C"
LIMIT %(most)s
"""


@dataclass(frozen=True, slots=True)
class FailureKind:
    """One kind of failure: its failed attempts in the window, its runs that are dead now, and if it is new.

    ``fingerprint`` is that of its group, None where none is stored.
    """

    code: str
    job_type: str
    failures: int
    dead: int
    is_new: bool
    fingerprint: str | None


class _KindRow(NamedTuple):
    """A row of _KINDS; ``was_seen``: its group had failed before the window."""

    code: str
    job_type: str
    error_group: int | None
    failures: int
    is_kept: bool
    was_seen: bool


def find_failure_kinds(
    connection: Connection, window: TimeWindow
) -> tuple[list[FailureKind], FailedAttempts]:
    """Return the kinds of failure of ``window``, most frequent first, at most MAX_KINDS; and its runs."""
    values = {"since": window.since, "until": window.until, "cap": KINDS_CAP, "most": MAX_KINDS}
    rows = read_all(connection, _KINDS, _KindRow, values)
    failed = find_failed_attempts(connection, window, [row.error_group for row in rows if row.error_group])
    has_unseen = any(not row.was_seen for row in rows)
    known = find_known_failures(connection, window)[0] if has_unseen else set()
    return [
        FailureKind(
            row.code,
            row.job_type,
            row.failures,
            failed.failing.get(failure_key(row.error_group, row.code, row.job_type), FailingRuns()).dead,
            not row.was_seen and (row.code, row.job_type) not in known,
            format_fingerprint(row.error_group) if row.is_kept and row.error_group is not None else None,
        )
        for row in rows
    ], failed


_RECOVERED = f"""
WITH recovered AS MATERIALIZED (
    SELECT r.id, r.attempts
    FROM (SELECT * FROM wakeboard.job_attempts WHERE {IS_LATER_SUCCESS}) AS a
    JOIN wakeboard.job_runs AS r ON r.id = a.run_id
    WHERE a.finished_at >= %(since)s AND a.finished_at < %(until)s AND r.failed_at IS NOT NULL
    ORDER BY a.finished_at DESC LIMIT %(cap)s
)
SELECT r.id, r.job_type, r.attempts, r.error_code, r.failed_at, r.finished_at, tried.failures,
    tried.first_failed_at, (SELECT count(*) FROM recovered) AS total
FROM (SELECT id FROM recovered ORDER BY attempts DESC, id DESC LIMIT %(most)s) AS worst
JOIN wakeboard.job_runs AS r ON r.id = worst.id
CROSS JOIN LATERAL (
    SELECT count(*) AS failures, min(a.finished_at) AS first_failed_at FROM {_ATTEMPTS} AND a.run_id = r.id
) AS tried
ORDER BY tried.failures DESC, r.finished_at DESC, r.id DESC
"""


class RecoveredRun(NamedTuple):
    """A run that succeeded after failures; ``error_code`` and ``failed_at`` are of the last of these.

    ``total``: how many such runs there are in all.
    """

    id: int
    job_type: str
    attempts: int
    error_code: str | None
    failed_at: datetime
    finished_at: datetime
    failures: int
    first_failed_at: datetime | None
    total: int


def find_recovered_runs(connection: Connection, window: TimeWindow) -> tuple[list[RecoveredRun], int]:
    """Return runs that succeeded in ``window`` after failures, and how many there are, at most CAP.

    Returned are the MAX_SHOWN with most attempts, most failures first.
    """
    values = {"since": window.since, "until": window.until, "cap": CAP, "most": MAX_SHOWN}
    runs = read_all(connection, _RECOVERED, RecoveredRun, values)
    return runs, runs[0].total if runs else 0


_LOST = """
SELECT a.run_id, a.job_type, a.error_code, a.outcome, a.finished_at, a.started_at, a.attempt, a.lease_epoch,
    a.worker_id, a.refused_at, a.refused_outcome, a.error_group,
    coalesce(w.name, a.worker_id) AS worker_name, r.status
FROM unnest(CAST(%(runs)s AS bigint[]), CAST(%(epochs)s AS bigint[])) AS lost (run_id, lease_epoch)
JOIN wakeboard.job_attempts AS a ON a.run_id = lost.run_id AND a.lease_epoch = lost.lease_epoch
LEFT JOIN wakeboard.workers AS w ON w.id = a.worker_id
LEFT JOIN wakeboard.job_runs AS r ON r.id = a.run_id
ORDER BY a.finished_at DESC, a.run_id DESC
"""


class LostAttempt(NamedTuple):
    """An attempt whose lease ended and whose run was taken over.

    ``finished_at`` is when that was. ``refused_at`` and ``refused_outcome`` are of the worker's late answer.
    ``status`` is that of the run now, None when it was removed.
    """

    run_id: int
    job_type: str
    error_code: str | None
    outcome: str
    finished_at: datetime
    started_at: datetime
    attempt: int
    lease_epoch: int
    worker_id: str
    refused_at: datetime | None
    refused_outcome: str | None
    error_group: int | None
    worker_name: str
    status: str | None


def find_lost_attempts(connection: Connection, failed: FailedAttempts) -> tuple[list[LostAttempt], int]:
    """Return the attempts that were lost, newest first, at most MAX_SHOWN; and how many there are."""
    if not failed.lost_count:
        return [], 0
    values = {"runs": failed.lost_runs, "epochs": failed.lost_epochs}
    return read_all(connection, _LOST, LostAttempt, values), failed.lost_count
