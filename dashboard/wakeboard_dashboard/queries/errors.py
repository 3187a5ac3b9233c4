"""What the pages of errors ask: failures of a window by group, code and type, and how many runs fail now.

A failure without a group was written by a version that knew none; code and type stand for it.

How they are counted is said in ``tallies``: of attempts the newest CAP, of runs the newest RUNS_CAP
that fail: as many as lists of runs count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, RowMapping, bindparam, func, literal, select, text
from sqlalchemy.types import ARRAY, DateTime, Text

from wakeboard.core.states import FAILING, FAILURES, sql_list
from wakeboard.database.tables import job_attempts, workers
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.faults import UNKNOWN
from wakeboard_dashboard.queries import error_counts
from wakeboard_dashboard.queries.groups import ErrorGroupRow, by_number

CAP, RUNS_CAP = 20_000, 10_000
BUCKETS = 24
NO_STEPS = (0,) * BUCKETS
MOST_GROUPS = 100
NEWEST = 20
# Templates of messages of which all changes.
NOTHING_SAID = ("", "<value>", "<n>", "<id>")

attempts = job_attempts.c
_failed = attempts.outcome.in_([literal(outcome.value, literal_execute=True) for outcome in FAILURES])
_code = func.coalesce(attempts.error_code, literal(UNKNOWN, literal_execute=True))


@dataclass(frozen=True, slots=True)
class FailureWindow(TimeWindow):
    """The failures that a page is about: a span of time and, if given, one code, one type, one group."""

    code: str | None = None
    job_type: str | None = None
    number: int | None = None

    @property
    def bucket(self) -> timedelta:
        """How long one of the BUCKETS is."""
        return max((self.until - self.since) / BUCKETS, timedelta(milliseconds=1))

    @property
    def starts(self) -> list[datetime]:
        """When the BUCKETS begin, but none after the end of a very short window."""
        gone = (step * self.bucket for step in range(BUCKETS))
        return [self.since + each for each in gone if each < self.until - self.since]


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of one group: attempts in the window, runs that fail now, an example.

    ``number`` is the group's, ``kept`` its row; None for failures from before there were groups, and where
    retention has removed the row. ``buckets`` counts the attempts of each BUCKETS-th of the window, oldest
    first.
    """

    code: str
    job_type: str
    number: int | None = None
    kept: ErrorGroupRow | None = None
    count: int = 0
    failed: int = 0
    dead: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    message: str | None = None
    buckets: Sequence[int] = NO_STEPS

    @property
    def frame(self) -> str | None:
        """The place in the author's code where it is raised."""
        return self.kept.frame if self.kept else None

    @property
    def says(self) -> str | None:
        """The message without what changes; the newest one where nothing else is left of it."""
        template = self.kept.template if self.kept else ""
        return self.message if template in NOTHING_SAID else template

    @property
    def highest(self) -> int:
        """The most failures of a bucket."""
        return max(self.buckets)


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """The groups of a window, most failures first: ``heard`` and, if they stand apart, ``muted`` ones.

    ``count``: how many are heard, told or not. ``numbers``: those of all groups, as PostgreSQL writes an
    array, to be asked about again. ``is_cut``: counting stopped at CAP, ``are_runs_cut``: that of runs at
    RUNS_CAP.
    """

    heard: list[Group] = field(default_factory=list)
    muted: list[Group] = field(default_factory=list)
    count: int = 0
    numbers: str | None = None
    is_cut: bool = False
    are_runs_cut: bool = False


def tried(connection: Connection, window: FailureWindow) -> FailureGroups:
    """Return the groups of the most failed attempts of any code and type, without steps and what fails now.

    They are MOST_GROUPS, and those with as many attempts as the last of them.
    """
    values = {"since": window.since, "until": window.until, "most": MOST_GROUPS}
    rows = connection.execute(error_counts.most_tried(cap=CAP, by_number=True), values).all()
    if any(row.code is None for row in rows):
        rows = connection.execute(error_counts.most_tried(cap=CAP, by_number=False), values).all()
    groups = [
        Group(code, job_type, number, None, count, first_at=first_at, last_at=last_at)
        for code, job_type, number, count, first_at, last_at, _ in rows
    ]
    return FailureGroups(groups, is_cut=rows[0].is_cut) if rows else FailureGroups()


def steps_of(connection: Connection, window: FailureWindow, found: Sequence[Group]) -> list[Sequence[int]]:
    """Return the buckets of each group that ``tried`` found."""
    statement = error_counts.steps_of(cap=CAP, by_number=_all_have_numbers(found))
    values = {"since": window.since, "until": window.until, "starts": window.starts, **_asked(found)}
    buckets: list[Sequence[int]] = [NO_STEPS] * len(found)
    for place, steps, counts in connection.execute(statement, values) if found else ():
        buckets[place - 1] = _buckets(steps, counts)
    return buckets


def _buckets(steps: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """Return how many are counted in each step, of which the first is 1; 0 stands for none."""
    buckets = [0] * (BUCKETS + 1)
    for step, count in zip(steps, counts, strict=True):
        buckets[step] = count
    return tuple(buckets[1:])


def _asked(found: Sequence[Group]) -> dict[str, Any]:
    return {
        "codes": [group.code for group in found],
        "job_types": [group.job_type for group in found],
        "numbers": [group.number for group in found],
    }


def _all_have_numbers(found: Sequence[Group]) -> bool:
    return all(group.number is not None for group in found)


def every(
    connection: Connection, window: FailureWindow, *, most: int | None = MOST_GROUPS, apart: bool = True
) -> FailureGroups:
    """Return the groups, at most ``most`` that are muted and as many others; ``apart``: see FailureGroups.

    Without what is kept of them and without examples: there may be thousands.
    """
    rows = _counted(connection, window, most, apart, by_number=True)
    # Failures of versions that knew no groups, and of groups that retention has removed.
    if rows and rows[0].is_nameless:
        rows = _counted(connection, window, most, apart, by_number=False)
    if not rows:
        return FailureGroups()
    of_heard, first = sum(not row.is_muted for row in rows), rows[0]
    found = [_group(row) for row in rows]
    heard, muted = found[:of_heard], found[of_heard:]
    return FailureGroups(heard, muted, first.heard, first.numbers, first.is_cut, first.are_runs_cut)


def _counted(
    connection: Connection, window: FailureWindow, most: int | None, apart: bool, *, by_number: bool
) -> Sequence[Row[Any]]:
    statement = error_counts.statement(
        cap=CAP,
        runs_cap=RUNS_CAP,
        code=window.code is not None,
        unknown=window.code == UNKNOWN,
        job_type=window.job_type is not None,
        apart=apart,
        all_of_them=most is None,
        by_number=by_number,
    )
    values = {"since": window.since, "until": window.until, "starts": window.starts, "most": most}
    return connection.execute(statement, values | {"code": window.code, "job_type": window.job_type}).all()


def _group(row: Sequence[Any]) -> Group:
    """Return what is counted of one group."""
    code, job_type, number, count, failed, dead, first_at, last_at, places, counts, *_ = row
    buckets = _buckets(places, counts)
    return Group(code, job_type, number, None, count, failed, dead, first_at, last_at, buckets=buckets)


def with_kept(connection: Connection, found: Sequence[Group]) -> list[Group]:
    """Return the groups, each with its row of error_groups."""
    kept = kept_of(connection, found)
    return [replace(group, kept=kept.get(group.number or 0)) for group in found]


def kept_of(connection: Connection, found: Sequence[Group]) -> dict[int, ErrorGroupRow]:
    """Return the rows of the groups, by their numbers."""
    return by_number(connection, {group.number for group in found if group.number is not None})


def _in_window(window: FailureWindow) -> list[Any]:
    """Return the conditions of the window's failures; all attempts of a group are failures."""
    which = _failed if window.number is None else attempts.error_group == window.number
    conditions: list[Any] = [which, attempts.finished_at >= window.since, attempts.finished_at < window.until]
    if window.code is not None:
        conditions.append(
            _code == window.code if window.code == UNKNOWN else attempts.error_code == window.code
        )
    if window.job_type is not None:
        conditions.append(attempts.job_type == window.job_type)
    return conditions


_EXAMPLES = text(f"""
SELECT coalesce(
    (SELECT a.error FROM wakeboard.job_attempts AS a
     WHERE a.outcome IN ({sql_list(FAILURES)}) AND a.finished_at = g.last_at
        AND coalesce(a.error_code, '{UNKNOWN}') = g.code AND a.job_type = g.job_type
        AND a.error_group IS NOT DISTINCT FROM g.number LIMIT 1),
    CASE WHEN g.number IS NULL THEN
        (SELECT r.last_error FROM wakeboard.job_runs AS r
         WHERE r.status IN ({sql_list(FAILING)}) AND r.error_code = g.code AND r.job_type = g.job_type
            AND r.error_group IS NULL
         ORDER BY r.id DESC LIMIT 1)
    ELSE coalesce(
        (SELECT r.last_error FROM wakeboard.job_runs AS r
         WHERE r.error_group = g.number AND r.status = 'dead' ORDER BY r.id DESC LIMIT 1),
        (SELECT r.last_error FROM wakeboard.job_runs AS r
         WHERE r.error_group = g.number AND r.status = 'failed' ORDER BY r.id DESC LIMIT 1))
    END)
FROM unnest(:codes, :job_types, :numbers, :moments)
    WITH ORDINALITY AS g (code, job_type, number, last_at, place)
ORDER BY g.place
""").bindparams(
    bindparam("codes", type_=ARRAY(Text)),
    bindparam("job_types", type_=ARRAY(Text)),
    bindparam("numbers", type_=ARRAY(BigInteger)),
    bindparam("moments", type_=ARRAY(DateTime(timezone=True))),
)


def messages_of(connection: Connection, found: Sequence[Group]) -> Sequence[str | None]:
    """Return the message of the newest failure of each group."""
    values = _asked(found) | {"moments": [group.last_at for group in found]}
    return connection.execute(_EXAMPLES, values).scalars().all() if found else []


def in_full(connection: Connection, found: Sequence[Group]) -> list[Group]:
    """Return the groups, each with its row of error_groups and the message of its newest failure."""
    kept = kept_of(connection, found)
    return [
        replace(group, kept=kept.get(group.number or 0), message=message)
        for group, message in zip(found, messages_of(connection, found), strict=True)
    ]


def newest(connection: Connection, window: FailureWindow) -> list[RowMapping]:
    """Return the newest failed attempts of the window, at most NEWEST, with worker_name."""
    statement = (
        select(job_attempts, workers.c.name.label("worker_name"))
        .outerjoin(workers, workers.c.id == attempts.worker_id)
        .where(*_in_window(window))
        .order_by(attempts.finished_at.desc(), attempts.run_id.desc())
        .limit(NEWEST)
    )
    return list(connection.execute(statement).mappings().all())
