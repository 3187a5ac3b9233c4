"""Counts failures of a window by error group, and the runs that fail now.

A failure without a group is told apart by its code and type.

All is read from indexes alone, newest first: the newest CAP failed attempts, the newest RUNS_CAP failed runs
and as many dead ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    DateTime,
    FromClause,
    Integer,
    RowMapping,
    Subquery,
    Text,
    and_,
    bindparam,
    case,
    cast,
    false,
    func,
    literal,
    literal_column,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by

from wakeboard.core.states import FAILING, FAILURES, Status, sql_list
from wakeboard.database.tables import error_groups, job_attempts, job_runs, workers
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.failures import UNKNOWN_CODE
from wakeboard_dashboard.queries.error_groups import ErrorGroupRow, read_groups
from wakeboard_dashboard.queries.statements import Column, Statement

CAP, RUNS_CAP = 20_000, 10_000
BUCKETS = 24
NO_STEPS = (0,) * BUCKETS
MOST_GROUPS = 100
NEWEST = 20
# Templates that keep nothing of a message.
EMPTY_TEMPLATES = ("", "<value>", "<n>", "<id>")

attempts, runs = job_attempts.c, job_runs.c
# Statements are made once for each narrowing: making one takes a fifth of executing it. The planner must know
# the caps, so these are rendered as text.
_MOMENT = DateTime(timezone=True)
_SINCE, _UNTIL = bindparam("since", type_=_MOMENT), bindparam("until", type_=_MOMENT)
_STARTS = bindparam("starts", type_=ARRAY(_MOMENT))
_CODE, _JOB_TYPE = bindparam("code", type_=Text), bindparam("job_type", type_=Text)
_NUMBER = bindparam("number", type_=BigInteger)
_CAP, _RUNS_CAP = (bindparam(name, type_=Integer, literal_execute=True) for name in ("cap", "runs_cap"))
_failed = attempts.outcome.in_([literal(outcome.value, literal_execute=True) for outcome in FAILURES])
_code = func.coalesce(attempts.error_code, literal(UNKNOWN_CODE, literal_execute=True))


@dataclass(frozen=True, slots=True)
class FailureWindow(TimeWindow):
    """The failures of a page: those of a span of time and, if given, of one code, one type, one group."""

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
        offsets = (step * self.bucket for step in range(BUCKETS))
        return [self.since + offset for offset in offsets if offset < self.until - self.since]

    @property
    def narrowing(self) -> frozenset[str]:
        """What narrows the failures beside the time: some of code, job_type, number; ``unknown``: no code."""
        names = {name for name in ("code", "job_type", "number") if getattr(self, name) is not None}
        return frozenset(names | ({"unknown"} if self.code == UNKNOWN_CODE else set()))

    @property
    def values(self) -> dict[str, object]:
        """The values of the statements about this window."""
        names = ("since", "until", "starts", "code", "job_type", "number")
        return {name: getattr(self, name) for name in names} | {"cap": CAP, "runs_cap": RUNS_CAP}


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one group: attempts in the window, runs that fail now, an example.

    ``number`` is None for failures without a group, ``row`` also where retention has removed it. ``buckets``
    counts the attempts of each BUCKETS-th of the window, oldest first.
    """

    code: str
    job_type: str
    number: int | None = None
    row: ErrorGroupRow | None = None
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
        return self.row.frame if self.row else None

    @property
    def summary(self) -> str | None:
        """The message without its changing parts, or the newest message where nothing else is left."""
        template = self.row.template if self.row else ""
        return self.message if template in EMPTY_TEMPLATES else template

    @property
    def highest(self) -> int:
        """The most failures of a bucket."""
        return max(self.buckets)


@dataclass(frozen=True, slots=True)
class RankedGroups:
    """The groups of a window, most failures first, the ``muted`` ones apart if that was wanted.

    ``count`` is that of all unmuted groups, listed or not. ``numbers`` are those of all groups, as the text
    of a PostgreSQL array. ``is_cut``: counting stopped at CAP; ``are_runs_cut``: counting of runs at
    RUNS_CAP.
    """

    unmuted: list[FailureGroup] = field(default_factory=list)
    muted: list[FailureGroup] = field(default_factory=list)
    count: int = 0
    numbers: str | None = None
    is_cut: bool = False
    are_runs_cut: bool = False


def list_most_attempted(connection: Connection, window: FailureWindow) -> RankedGroups:
    """Return the MOST_GROUPS groups with the most failed attempts, and those that tie with the last.

    Without steps, and without the runs that fail now.
    """
    rows = connection.execute(_select_most_attempted(window.narrowing), window.values).all()
    groups = [
        FailureGroup(
            row.code,
            row.job_type,
            row.error_group,
            count=row.attempts,
            first_at=row.first_at,
            last_at=row.last_at,
        )
        for row in rows
    ]
    return RankedGroups(groups, is_cut=rows[0].is_cut) if rows else RankedGroups()


@lru_cache
def _select_most_attempted(narrowing: frozenset[str]) -> Statement:
    newest = _newest_attempts(narrowing)
    counted = (
        select(
            *_group_of(newest),
            func.count().label("attempts"),
            func.min(newest.c.finished_at).label("first_at"),
            func.max(newest.c.finished_at).label("last_at"),
        )
        .group_by(*_group_of(newest))
        .subquery("counted")
    )
    ranked = select(
        counted,
        (func.sum(counted.c.attempts).over() >= _CAP).label("is_cut"),
        func.rank().over(order_by=counted.c.attempts.desc()).label("rank"),
    ).subquery("ranked")
    return select(ranked).where(ranked.c.rank <= MOST_GROUPS).order_by(ranked.c.rank)


def count_steps(
    connection: Connection, window: FailureWindow, groups: Sequence[FailureGroup]
) -> list[Sequence[int]]:
    """Return the buckets of each of ``groups``, which ``list_most_attempted`` returned."""
    if not groups:
        return []
    wanted = {
        "codes": [group.code for group in groups],
        "job_types": [group.job_type for group in groups],
        "numbers": [group.number for group in groups],
    }
    buckets = [[0] * BUCKETS for _ in groups]
    for row in connection.execute(_select_steps(window.narrowing), window.values | wanted):
        buckets[row.place - 1][row.step - 1] = row.attempts
    return [*buckets]


@lru_cache
def _select_steps(narrowing: frozenset[str]) -> Statement:
    newest = _newest_attempts(narrowing)
    wanted = (
        func.unnest(
            bindparam("codes", type_=ARRAY(Text)),
            bindparam("job_types", type_=ARRAY(Text)),
            bindparam("numbers", type_=ARRAY(BigInteger)),
        )
        .table_valued("code", "job_type", "number", with_ordinality="place", name="wanted")
        .render_derived()
    )
    return (
        select(
            wanted.c.place,
            _step(newest.c.finished_at).label("step"),
            func.count().label("attempts"),
        )
        .select_from(newest)
        .join(
            wanted,
            and_(
                wanted.c.code == newest.c.code,
                wanted.c.job_type == newest.c.job_type,
                wanted.c.number.is_not_distinct_from(newest.c.error_group),
            ),
        )
        .group_by("place", "step")
    )


def list_groups(
    connection: Connection, window: FailureWindow, *, most: int | None = MOST_GROUPS, apart: bool = True
) -> RankedGroups:
    """Return the groups, at most ``most`` muted ones and as many others.

    ``apart``: muted groups are ranked by themselves. The groups have neither rows nor messages: there may be
    thousands.
    """
    statement = _select_groups(window.narrowing, is_limited=most is not None, is_apart=apart)
    rows = connection.execute(statement, window.values | {"most": most}).all()
    if not rows:
        return RankedGroups()
    groups: dict[bool, list[FailureGroup]] = {False: [], True: []}
    for row in rows:
        group = FailureGroup(
            row.code,
            row.job_type,
            row.error_group,
            count=row.attempts,
            failed=row.failed,
            dead=row.dead,
            first_at=row.first_at,
            last_at=row.last_at,
            buckets=_buckets(row.steps, row.counts),
        )
        groups[row.is_muted].append(group)
    first = rows[0]
    return RankedGroups(
        groups[False], groups[True], first.unmuted, first.numbers, first.is_cut, first.are_runs_cut
    )


def _buckets(steps: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """Return the counts of steps 1 to BUCKETS; step 0 holds what has no step."""
    buckets = [0] * (BUCKETS + 1)
    for step, count in zip(steps, counts, strict=True):
        buckets[step] = count
    return tuple(buckets[1:])


@lru_cache
def _select_groups(narrowing: frozenset[str], *, is_limited: bool, is_apart: bool) -> Statement:
    """Count attempts of a window by group and step, and runs that fail now by group."""
    counted = _attempts_by_step(narrowing).union_all(*_failing_by_group(narrowing)).subquery("counted")
    sums = (
        select(
            *_group_of(counted),
            func.sum(counted.c.attempts).label("attempts"),
            func.sum(counted.c.failed).label("failed"),
            func.sum(counted.c.dead).label("dead"),
            func.min(counted.c.first_at).label("first_at"),
            func.max(counted.c.last_at).label("last_at"),
            # Without the order the planner expects arrays to need more memory than there is.
            func.array_agg(aggregate_order_by(counted.c.step, counted.c.step)).label("steps"),
            func.array_agg(aggregate_order_by(counted.c.attempts, counted.c.step)).label("counts"),
        )
        .group_by(*_group_of(counted))
        .subquery("sums")
    )
    muted = select(error_groups.c.id).where(error_groups.c.muted_until > func.now())
    is_muted = func.coalesce(sums.c.error_group.in_(muted), false()) if is_apart else false()
    groups = select(sums, is_muted.label("is_muted")).cte("groups")
    number = groups.c.error_group
    fails = (func.sum(groups.c.failed), func.sum(groups.c.dead))
    # The failing runs of a code are read together, others state by state.
    most_fails = fails[0] + fails[1] if "code" in narrowing else func.greatest(*fails)
    whole = select(
        (func.sum(groups.c.attempts) >= _CAP).label("is_cut"),
        (most_fails >= _RUNS_CAP).label("are_runs_cut"),
        func.count().filter(~groups.c.is_muted).label("unmuted"),
        cast(func.array_agg(number).filter(number.is_not(None)), Text).label("numbers"),
    ).subquery("whole")
    worst_first = (
        groups.c.attempts.desc(),
        (groups.c.dead + groups.c.failed).desc(),
        groups.c.code.collate("C"),
        groups.c.job_type.collate("C"),
        number,
    )
    rank = func.row_number().over(partition_by=groups.c.is_muted, order_by=worst_first)
    ranked = select(groups, rank.label("rank")).subquery("ranked")
    statement = (
        select(
            *(column for column in ranked.c if column.name != "rank"),
            whole.c.is_cut,
            whole.c.are_runs_cut,
            whole.c.unmuted,
            case((ranked.c.rank == 1, whole.c.numbers)).label("numbers"),
        )
        .join_from(ranked, whole, true())
        .order_by(ranked.c.is_muted, ranked.c.rank)
    )
    return statement.where(ranked.c.rank <= bindparam("most", type_=Integer)) if is_limited else statement


def _newest_attempts(narrowing: frozenset[str]) -> Subquery:
    """Select the newest CAP failed attempts of a window, from the index of failures alone."""
    return (
        select(attempts.error_group, _code.label("code"), attempts.job_type, attempts.finished_at)
        .where(*_in_window(narrowing))
        .order_by(attempts.finished_at.desc())
        .limit(_CAP)
        .subquery("newest")
    )


def _group_of(rows: FromClause) -> tuple[Column, ...]:
    """Return the columns that tell groups apart."""
    return rows.c.error_group, rows.c.code, rows.c.job_type


def _step(moment: Column) -> Column:
    """Return in which of the BUCKETS a moment lies, counted from 1."""
    return func.width_bucket(moment, _STARTS)


def _attempts_by_step(narrowing: frozenset[str]) -> Statement:
    """Count the newest failed attempts by group and step."""
    newest = _newest_attempts(narrowing)
    return select(
        *_group_of(newest),
        _step(newest.c.finished_at).label("step"),
        # Sums of integers are no decimals.
        func.count().cast(Integer).label("attempts"),
        func.min(newest.c.finished_at).label("first_at"),
        func.max(newest.c.finished_at).label("last_at"),
        literal_column("0").label("failed"),
        literal_column("0").label("dead"),
    ).group_by(*_group_of(newest), "step")


def _failing_by_group(narrowing: frozenset[str]) -> list[Statement]:
    """Count the newest RUNS_CAP runs that fail now by group, of each state or of one code, in step 0."""
    of_type = [runs.job_type == _JOB_TYPE] if "job_type" in narrowing else []
    fails = runs.status.in_([literal(status.value, literal_execute=True) for status in FAILING])
    columns = (runs.error_code.label("code"), runs.job_type, runs.error_group)
    zero: Column = literal_column("0")
    count: Column = func.count().cast(Integer)
    if "code" in narrowing:
        # The index by code has both states in one order.
        of_code = select(*columns, runs.status).where(fails, runs.error_code == _CODE, *of_type)
        newest = of_code.order_by(runs.id.desc()).limit(_RUNS_CAP).subquery("failing")
        counts = [
            func.count().filter(newest.c.status == status.value).cast(Integer)
            for status in (Status.FAILED, Status.DEAD)
        ]
        return [_count_failing(newest, *counts)]
    # A range and an order that only an index by state has: other indexes lead past runs that do not fail. The
    # end of the range is a subquery, so the planner expects a third of what fails and reads in order up to
    # the cap; expecting few rows, it would collect all of them first.
    failed, dead = (
        select(literal(status.value, literal_execute=True)).scalar_subquery()
        for status in (Status.FAILED, Status.DEAD)
    )
    return [
        _count_failing(
            select(*columns)
            .where(fails, end, *of_type)
            .order_by(runs.status.desc(), runs.id.desc())
            .limit(_RUNS_CAP)
            .subquery("failing"),
            *counts,
        )
        for end, *counts in ((runs.status >= failed, count, zero), (runs.status <= dead, zero, count))
    ]


def _count_failing(newest: Subquery, failed: Column, dead: Column) -> Statement:
    """Count runs by group, in the columns of ``_attempts_by_step``."""
    return select(
        *_group_of(newest),
        literal_column("0"),
        literal_column("0"),
        literal_column("NULL::timestamptz"),
        literal_column("NULL::timestamptz"),
        failed,
        dead,
    ).group_by(*_group_of(newest))


def add_group_rows(connection: Connection, groups: Sequence[FailureGroup]) -> list[FailureGroup]:
    """Return ``groups``, each with its row of error_groups."""
    rows = read_groups(connection, {group.number for group in groups if group.number is not None})
    return [replace(group, row=rows.get(group.number or 0)) for group in groups]


def _in_window(narrowing: frozenset[str]) -> list[ColumnElement[bool]]:
    """Return the conditions of a window's failures; all attempts of a group are failures."""
    which = attempts.error_group == _NUMBER if "number" in narrowing else _failed
    conditions = [which, attempts.finished_at >= _SINCE, attempts.finished_at < _UNTIL]
    if "code" in narrowing:
        conditions.append((_code if "unknown" in narrowing else attempts.error_code) == _CODE)
    if "job_type" in narrowing:
        conditions.append(attempts.job_type == _JOB_TYPE)
    return conditions


_EXAMPLES = text(f"""
SELECT coalesce(
    (SELECT a.error FROM wakeboard.job_attempts AS a
     WHERE a.outcome IN ({sql_list(FAILURES)}) AND a.finished_at = g.last_at
        AND coalesce(a.error_code, '{UNKNOWN_CODE}') = g.code AND a.job_type = g.job_type
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


def read_messages(connection: Connection, groups: Sequence[FailureGroup]) -> Sequence[str | None]:
    """Return the message of the newest failure of each of ``groups``."""
    values = {
        "codes": [group.code for group in groups],
        "job_types": [group.job_type for group in groups],
        "numbers": [group.number for group in groups],
        "moments": [group.last_at for group in groups],
    }
    return connection.execute(_EXAMPLES, values).scalars().all() if groups else []


def add_details(connection: Connection, groups: Sequence[FailureGroup]) -> list[FailureGroup]:
    """Return ``groups``, each with its row of error_groups and the message of its newest failure."""
    with_rows = add_group_rows(connection, groups)
    return [
        replace(group, message=message)
        for group, message in zip(with_rows, read_messages(connection, groups), strict=True)
    ]


def list_newest_attempts(connection: Connection, window: FailureWindow) -> list[RowMapping]:
    """Return the newest failed attempts of the window, at most NEWEST, with worker_name."""
    return list(connection.execute(_select_newest(window.narrowing), window.values).mappings())


@lru_cache
def _select_newest(narrowing: frozenset[str]) -> Statement:
    return (
        select(job_attempts, workers.c.name.label("worker_name"))
        .outerjoin(workers, workers.c.id == attempts.worker_id)
        .where(*_in_window(narrowing))
        .order_by(attempts.finished_at.desc(), attempts.run_id.desc())
        .limit(NEWEST)
    )
