"""What the pages of errors ask: failures of a window by code and type, and how many runs fail now.

Attempts come from the index of failures, newest first and at most CAP; runs from the newest CAP that fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, func, literal, select, text, union_all
from sqlalchemy.types import ARRAY, DateTime, Text

from worker.states import FAILURES, Status
from worker.tables import job_attempts, job_runs, workers

CAP = 20_000
BUCKETS = 24
MOST_GROUPS = 100
NEWEST = 20
UNKNOWN = "unknown"

attempts = job_attempts.c
runs = job_runs.c
_failed = attempts.outcome.in_([literal(outcome.value, literal_execute=True) for outcome in FAILURES])
_code = func.coalesce(attempts.error_code, literal(UNKNOWN, literal_execute=True))


@dataclass(frozen=True, slots=True)
class Window:
    """The failures that a page is about: a span of time and, if given, one code and one type."""

    since: datetime
    until: datetime
    code: str | None = None
    job_type: str | None = None

    @property
    def bucket(self) -> timedelta:
        """How long one of the BUCKETS is."""
        return max((self.until - self.since) / BUCKETS, timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of one code and type: attempts in the window, runs that fail now, an example.

    ``buckets`` counts the attempts in each BUCKETS-th of the window, oldest first.
    """

    code: str
    job_type: str
    count: int = 0
    failed: int = 0
    dead: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    message: str | None = None
    buckets: Sequence[int] = field(default=(0,) * BUCKETS)


def groups(connection: Connection, window: Window) -> tuple[list[Group], bool]:
    """Return the groups, most failures first, at most MOST_GROUPS; and whether counting stopped at CAP."""
    found = _tried(connection, window)
    counted = sum(group.count for group in found.values())
    for key, failed, dead in _failing(connection, window):
        found[key] = replace(found.get(key, Group(*key)), failed=failed, dead=dead)
    ordered = sorted(found.values(), key=lambda group: (-group.count, -group.dead - group.failed, group.code))
    return _with_examples(connection, ordered[:MOST_GROUPS]), counted >= CAP


def _in_window(window: Window) -> list[Any]:
    conditions = [_failed, attempts.finished_at >= window.since, attempts.finished_at < window.until]
    if window.code is not None:
        conditions.append(
            _code == window.code if window.code == UNKNOWN else attempts.error_code == window.code
        )
    if window.job_type is not None:
        conditions.append(attempts.job_type == window.job_type)
    return conditions


def _tried(connection: Connection, window: Window) -> dict[tuple[str, str], Group]:
    """Return the groups of the window's failed attempts."""
    newest = (
        select(_code.label("code"), attempts.job_type, attempts.finished_at)
        .where(*_in_window(window))
        .order_by(attempts.finished_at.desc())
        .limit(CAP)
        .subquery()
    )
    place = func.date_bin(window.bucket, newest.c.finished_at, window.since).label("start_at")
    at = newest.c.finished_at
    rows = connection.execute(
        select(newest.c.code, newest.c.job_type, place, func.count(), func.min(at), func.max(at)).group_by(
            newest.c.code, newest.c.job_type, place
        )
    )
    found: dict[tuple[str, str], Group] = {}
    for code, job_type, start_at, count, first_at, last_at in rows:
        group = found.get((code, job_type), Group(code, job_type, first_at=first_at, last_at=last_at))
        buckets = list(group.buckets)
        buckets[min(BUCKETS - 1, round((start_at - window.since) / window.bucket))] += count
        found[code, job_type] = replace(
            group,
            count=group.count + count,
            first_at=min(group.first_at or first_at, first_at),
            last_at=max(group.last_at or last_at, last_at),
            buckets=tuple(buckets),
        )
    return found


def _failing(connection: Connection, window: Window) -> list[tuple[tuple[str, str], int, int]]:
    """Return ((code, type), failed, dead) of the runs that fail now."""
    parts = [_newest_failing(status, window) for status in (Status.FAILED, Status.DEAD)]
    every = union_all(*(select(part) for part in parts)).subquery()
    failed = func.count().filter(every.c.status == Status.FAILED.value)
    dead = func.count().filter(every.c.status == Status.DEAD.value)
    rows = connection.execute(
        select(every.c.error_code, every.c.job_type, failed, dead).group_by(
            every.c.error_code, every.c.job_type
        )
    )
    return [((code, job_type), failed, dead) for code, job_type, failed, dead in rows]


def _newest_failing(status: Status, window: Window) -> Any:
    statement = select(runs.error_code, runs.job_type, runs.status).where(
        runs.status == literal(status.value, literal_execute=True)
    )
    if window.code is not None:
        statement = statement.where(runs.error_code == window.code)
    if window.job_type is not None:
        statement = statement.where(runs.job_type == window.job_type)
    return statement.order_by(runs.id.desc()).limit(CAP).subquery()


_EXAMPLES = text("""
SELECT coalesce(
    (SELECT a.error FROM wakeboard.job_attempts AS a
     WHERE a.outcome IN ('failed', 'timed_out', 'lost') AND a.finished_at = g.last_at
        AND coalesce(a.error_code, 'unknown') = g.code AND a.job_type = g.job_type LIMIT 1),
    (SELECT r.last_error FROM wakeboard.job_runs AS r
     WHERE r.status IN ('failed', 'dead') AND r.error_code = g.code AND r.job_type = g.job_type
     ORDER BY r.id DESC LIMIT 1))
FROM unnest(:codes, :job_types, :moments) WITH ORDINALITY AS g (code, job_type, last_at, place)
ORDER BY g.place
""").bindparams(
    bindparam("codes", type_=ARRAY(Text)),
    bindparam("job_types", type_=ARRAY(Text)),
    bindparam("moments", type_=ARRAY(DateTime(timezone=True))),
)


def _with_examples(connection: Connection, found: list[Group]) -> list[Group]:
    """Return the groups, each with the message of its newest failure."""
    values = {
        "codes": [group.code for group in found],
        "job_types": [group.job_type for group in found],
        "moments": [group.last_at for group in found],
    }
    messages = connection.execute(_EXAMPLES, values).scalars()
    return [replace(group, message=message) for group, message in zip(found, messages, strict=True)]


def newest(connection: Connection, window: Window) -> list[RowMapping]:
    """Return the newest failed attempts of the window, at most NEWEST, with worker_name."""
    statement = (
        select(job_attempts, workers.c.name.label("worker_name"))
        .outerjoin(workers, workers.c.id == attempts.worker_id)
        .where(*_in_window(window))
        .order_by(attempts.finished_at.desc(), attempts.run_id.desc())
        .limit(NEWEST)
    )
    return list(connection.execute(statement).mappings())
