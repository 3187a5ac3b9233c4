"""What the page of a night asks of failures: what became of the runs that failed, what had never failed so.

Attempts come from the index of failures, newest first and at most CAP; their runs by primary key; those that
recovered from an index of their own. The walk over the attempts is made once: others ask about what it found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from wakeboard.core.states import FAILURES, sql_list
from wakeboard.database.index_predicates import IS_LATER_SUCCESS, IS_UNDER_WAY
from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

CAP = 10_000
# So many lines of each list of a night are told.
MOST_SHOWN = 20
# An array of nothing, as PostgreSQL writes it.
NOTHING = "{}"
# A failure without a code.
UNKNOWN = "unknown"

_ATTEMPTS = f"wakeboard.job_attempts AS a WHERE a.outcome IN ({sql_list(FAILURES)})"


@dataclass(frozen=True, slots=True)
class FailedRunStates:
    """How many runs failed in the window, and how they stand now; ``gone`` were removed since."""

    runs: int
    succeeded: int
    waiting: int
    dead: int
    cancelled: int
    gone: int


# What tells failures apart: the number of their group or, of those without one, code and type.
Mark = tuple[int | None, str | None, str | None]


def mark_of(number: int | None, code: str, job_type: str) -> Mark:
    """Return the mark of a failure of a group, or of none."""
    return (None, code, job_type) if number is None else (number, None, None)


class FailingRuns(NamedTuple):
    """How many of the runs whose last failure had one mark will be tried again, and how many are dead."""

    failed: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """The attempts that failed in a window, by run, and how those runs stood when they were asked for.

    ``fates`` is what became of them, ``failing`` which of them fail now, by mark. ``of_lost`` attempts were
    lost; the newest are ``lost_runs``, in their ``lost_epochs``, arrays in PostgreSQL's own words.
    """

    fates: FailedRunStates
    failing: Mapping[Mark, FailingRuns]
    of_lost: int
    lost_runs: str
    lost_epochs: str


_NEWEST = f"""
        SELECT a.run_id, a.lease_epoch, a.finished_at, a.outcome = 'lost' AS is_lost
        FROM {_ATTEMPTS} AND a.finished_at >= %(since)s AND a.finished_at < %(until)s
        ORDER BY a.finished_at DESC
        LIMIT %(cap)s"""
# A run that failed has the group of its last failure. Those of ``groups`` are told apart, all others are one:
# a join finds them in half of the time that asking each run for one of an array takes.
_APART = """LEFT JOIN (
    SELECT DISTINCT number FROM unnest(CAST(%(groups)s AS bigint[])) AS number
) AS apart ON apart.number = error_group"""
_MARK = f"""apart.number,
    CASE WHEN error_group IS NULL THEN coalesce(error_code, '{UNKNOWN}') END AS code,
    CASE WHEN error_group IS NULL THEN job_type END AS of_type"""
_STANDING = f"""count(*) FILTER (WHERE status = 'succeeded') AS succeeded,
    count(*) FILTER (WHERE {IS_UNDER_WAY}) AS waiting,
    count(*) FILTER (WHERE status = 'dead') AS dead,
    count(*) FILTER (WHERE status = 'cancelled') AS cancelled,
    count(*) FILTER (WHERE status = 'failed') AS failed"""
# An array finds many runs of a page of the index at once, a join goes down the index for each. Its length is
# no number that the planner knows, so it might join by nested loops; a full join, which adds nothing here,
# cannot. Few attempts are lost: only where one was they are walked over once more.
_FAILED = f"""
WITH tried AS MATERIALIZED (
    SELECT run_id, bool_or(is_lost) AS is_lost FROM ({_NEWEST}) AS newest GROUP BY run_id
), told AS MATERIALIZED (
    SELECT tried.run_id, runs.*
    FROM tried FULL JOIN (
        SELECT r.id, r.status, r.error_group, r.error_code, r.job_type
        FROM wakeboard.job_runs AS r
        WHERE r.id = ANY (ARRAY(SELECT run_id FROM tried))
    ) AS runs ON runs.id = tried.run_id
), lost AS (
    SELECT run_id, lease_epoch, count(*) OVER () AS of_all FROM ({_NEWEST}) AS newest
    WHERE is_lost AND (SELECT bool_or(is_lost) FROM tried)
    ORDER BY finished_at DESC LIMIT %(most)s
)
SELECT fates.*, lost.*
FROM (
    SELECT count(*) AS runs,
        (SELECT coalesce(json_agg(marks), '[]') FROM (
            SELECT {_MARK}, {_STANDING} FROM told {_APART} GROUP BY 1, 2, 3
        ) AS marks) AS standing
    FROM told
) AS fates CROSS JOIN (
    SELECT coalesce(max(of_all), 0) AS of_lost,
        coalesce(array_agg(run_id), '{NOTHING}')::text AS lost_runs,
        coalesce(array_agg(lease_epoch), '{NOTHING}')::text AS lost_epochs
    FROM lost
) AS lost
"""


class _Standing(TypedDict):
    """How many of the runs of one _MARK are in which state, as PostgreSQL writes it in JSON."""

    number: int | None
    code: str | None
    of_type: str | None
    succeeded: int
    waiting: int
    dead: int
    cancelled: int
    failed: int


class _Failed(NamedTuple):
    """The answer of _FAILED."""

    runs: int
    standing: list[_Standing]
    of_lost: int
    lost_runs: str
    lost_epochs: str


def failed(connection: Connection, window: TimeWindow, groups: Sequence[int] = ()) -> FailedAttempts:
    """Return what failed in ``window``, of its newest CAP failures.

    Of marks it tells those of ``groups``, and of failures without a group.
    """
    values = {"since": window.since, "until": window.until, "cap": CAP, "most": MOST_SHOWN}
    (found,) = read_all(connection, _FAILED, _Failed, values | {"groups": list(groups)})
    return FailedAttempts(
        _fates(found), _failing(found.standing), found.of_lost, found.lost_runs, found.lost_epochs
    )


def _fates(found: _Failed) -> FailedRunStates:
    """Return what became of the runs; those that are in no state are gone."""
    succeeded = sum(each["succeeded"] for each in found.standing)
    waiting = sum(each["waiting"] for each in found.standing)
    dead = sum(each["dead"] for each in found.standing)
    cancelled = sum(each["cancelled"] for each in found.standing)
    gone = found.runs - succeeded - waiting - dead - cancelled
    return FailedRunStates(found.runs, succeeded, waiting, dead, cancelled, gone)


def _failing(standing: Sequence[_Standing]) -> Mapping[Mark, FailingRuns]:
    """Return which runs fail now, by mark."""
    return {
        (row["number"], row["code"], row["of_type"]): FailingRuns(row["failed"], row["dead"])
        for row in standing
        if row["failed"] or row["dead"]
    }


_KNOWN = f"""
SELECT coalesce(error_code, '{UNKNOWN}') AS code, job_type, is_old, sum(failures) OVER () AS looked
FROM (
    SELECT error_code, job_type, bool_or(error_group IS NULL) AS is_old, count(*) AS failures
    FROM (
        SELECT a.job_type, a.error_code, a.error_group FROM {_ATTEMPTS} AND a.finished_at < %(until)s
        ORDER BY a.finished_at DESC
        LIMIT %(cap)s
    ) AS newest
    GROUP BY error_code, job_type
) AS kinds
"""


class _Known(NamedTuple):
    """One row of _KNOWN; ``looked``: how many failures were read for all of them."""

    code: str
    job_type: str
    is_old: bool
    looked: int


def known(connection: Connection, window: TimeWindow) -> tuple[set[tuple[str, str]], bool]:
    """Return the (code, type) that had failed before ``window``, and whether only CAP were read.

    Of failures that were written before there were error groups: those tell themselves when they began.
    """
    found = read_all(connection, _KNOWN, _Known, {"until": window.since, "cap": CAP})
    old = {(row.code, row.job_type) for row in found if row.is_old}
    return old, bool(found) and found[0].looked >= CAP


_RECOVERED = f"""
WITH well AS MATERIALIZED (
    SELECT r.id, r.attempts
    FROM (SELECT * FROM wakeboard.job_attempts WHERE {IS_LATER_SUCCESS}) AS a
    JOIN wakeboard.job_runs AS r ON r.id = a.run_id
    WHERE a.finished_at >= %(since)s AND a.finished_at < %(until)s AND r.failed_at IS NOT NULL
    ORDER BY a.finished_at DESC LIMIT %(cap)s
)
SELECT r.id, r.job_type, r.attempts, r.error_code, r.failed_at, r.finished_at, tried.failures,
    tried.first_failed_at, (SELECT count(*) FROM well) AS of_all
FROM (SELECT id FROM well ORDER BY attempts DESC, id DESC LIMIT %(most)s) AS worst
JOIN wakeboard.job_runs AS r ON r.id = worst.id
CROSS JOIN LATERAL (
    SELECT count(*) AS failures, min(a.finished_at) AS first_failed_at FROM {_ATTEMPTS} AND a.run_id = r.id
) AS tried
ORDER BY tried.failures DESC, r.finished_at DESC, r.id DESC
"""


class Recovered(NamedTuple):
    """A run that succeeded after failures; ``error_code`` and ``failed_at`` are of the last of these.

    ``of_all``: how many such runs there are in all.
    """

    id: int
    job_type: str
    attempts: int
    error_code: str | None
    failed_at: datetime
    finished_at: datetime
    failures: int
    first_failed_at: datetime | None
    of_all: int


def recovered(connection: Connection, window: TimeWindow) -> tuple[list[Recovered], int]:
    """Return runs that succeeded in ``window`` after failures, and how many there are, CAP at most.

    Of those with most attempts MOST_SHOWN, most failures first.
    """
    values = {"since": window.since, "until": window.until, "cap": CAP, "most": MOST_SHOWN}
    found = read_all(connection, _RECOVERED, Recovered, values)
    return found, found[0].of_all if found else 0


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


class Lost(NamedTuple):
    """An attempt whose lease ended and whose run was taken over.

    ``finished_at``: when that was. ``refused_at`` and ``refused_outcome`` are of its worker's late answer,
    ``status`` is the run's now.
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


def lost(connection: Connection, found: FailedAttempts) -> tuple[list[Lost], int]:
    """Return the attempts that were lost, newest first, at most MOST_SHOWN; and how many there are."""
    if not found.of_lost:
        return [], 0
    return read_all(
        connection, _LOST, Lost, {"runs": found.lost_runs, "epochs": found.lost_epochs}
    ), found.of_lost
