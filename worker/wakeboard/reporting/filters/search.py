"""The statement that finds the ids of the runs of some filters, for the pages and the command line.

It finds ids by an index; the rows are read afterwards. Filters that no index serves read WINDOW runs a
request, newest first. Imports SQLAlchemy, so no module that executes runs imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Subquery,
    and_,
    any_,
    false,
    literal,
    literal_column,
    select,
    true,
    union_all,
)

from wakeboard.core.states import FAILING, Status
from wakeboard.database.tables import job_runs
from wakeboard.reporting.filters.conditions import (
    UNINDEXED,
    UNINDEXED_COLUMNS,
    Columns,
    Condition,
    HiddenText,
    ReadIds,
    Statement,
    failed_between,
    indexed_conditions,
    removed_schedules_named,
    schedules_named,
    unindexed_conditions,
)
from wakeboard.reporting.filters.runs import FAILURE_TIMES, states_of
from wakeboard.reporting.filters.values import FilterError, FilterValues, refuse_reversed

# How many runs one request reads for filters that no index serves; the cursor leads on to the next ones.
WINDOW = 20_000
# To somebody who may see some job types, a schedule exists if so many of its newest runs have one of these.
NEWEST_RUNS = 1000
# The columns for filters that no index serves together with the schedule.
UNINDEXED_COLUMNS_OF_SCHEDULE = (*UNINDEXED_COLUMNS, "status", "idempotency_key", "error_group")
# The id of a schedule without runs.
_NO_SCHEDULE = 0
_FAILING = tuple(status.value for status in FAILING)

runs = job_runs.c
# A literal: a bound value cannot prove that an index has the runs.
IS_RUNNING = runs.status == literal(Status.RUNNING.value, literal_execute=True)
# Makes the conditions on the columns of a run.
Conditions = Callable[[Columns], list[Condition]]


class Start(NamedTuple):
    """Where a list goes on: behind the row ``id``, with older rows or with ``newer`` ones."""

    id: int
    newer: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """The rows that filters ask for, as a select of ``id``.

    ``end`` selects the last id that this request reads, when some filter has to read each row and there are
    more than WINDOW ahead. It is None when indexes find the rows, however many there are. ``before_id`` comes
    before the id in the order, and is the same in all rows: no other index has that order.
    """

    statement: Statement
    id: ColumnElement[int]
    end: Statement | None = None
    before_id: tuple[ColumnElement[Any], ...] = ()

    @property
    def newest_first(self) -> list[ColumnElement[Any]]:
        """The order of the list."""
        return [each.desc() for each in (*self.before_id, self.id)]


class Arm(NamedTuple):
    """One part of a union: the runs that meet ``conditions`` and, where ``is_running``, run now."""

    conditions: list[ColumnElement[bool]]
    is_running: bool = False

    def select(self, *columns: ColumnElement[Any]) -> Statement:
        """Return the select of ``columns`` of these runs, in any order."""
        if self.is_running:
            return select_running(*columns, where=self.conditions)
        return select(*columns).where(and_(true(), *self.conditions))


def search(
    filters: FilterValues,
    now: datetime,
    read_ids: ReadIds,
    *,
    start: Start | None = None,
    hidden: HiddenText | None = None,
    types: Sequence[str] | None = None,
) -> Search:
    """Return the search for the runs of ``filters`` (of ``runs.FIELDS``) at ``now``, the database's clock.

    ``read_ids`` reads the ids of workers and schedules by name. ``start`` is where a walk begins. ``hidden``
    is what the reader may not see, and ``types`` are the job types that the reader may see, None for all.

    Without a status, ``error`` and FAILURE_TIMES find runs that fail now (failed and dead); ``group`` finds
    all runs that failed so, in any state. Raises FilterError.
    """
    refuse_impossible(filters, now)
    indexed = indexed_conditions(filters)
    if schedule := filters.get("schedule"):
        schedule_id = _schedule_id(schedule, read_ids, must_exist=types is None)
        if types is not None and not _has_recent_runs(schedule_id, read_ids, types):
            schedule_id = _NO_SCHEDULE
        if not filters.get("key"):
            if set(filters.values) == {"schedule"} and types is None:
                every = select(runs.id).where(_is_of_schedule(schedule_id), *_is_ahead(start))
                return Search(every, runs.id, before_id=(runs.definition_id,))
            return _walk_schedule(
                schedule_id,
                start,
                lambda run: [
                    *_visible_conditions(run, filters, types),
                    *indexed_conditions(filters, run),
                    *unindexed_conditions(run, filters, now, read_ids, hidden),
                ],
            )
        indexed.append(runs.definition_id == schedule_id)
    by_type = bool(filters.get("type") or types is not None) and not filters.get("key")
    arms = [
        Arm([*arm.conditions, *of_type, *indexed], arm.is_running)
        for of_type in _type_alternatives(filters, types)
        for arm in _state_arms(filters, by_type=by_type)
    ]
    if types is None and _is_failure_index_enough(filters):
        arms = [Arm([*arm.conditions, *failed_between(runs, filters, now)]) for arm in arms]
    elif any(filters.get(name) for name in UNINDEXED) or filters.starting("payload."):
        return _walk(arms, start, lambda run: unindexed_conditions(run, filters, now, read_ids, hidden))
    union = _merged(arms, start)
    return Search(select(union.c.id), union.c.id)


def refuse_impossible(filters: FilterValues, now: datetime) -> None:
    """Raise FilterError where no run can lie between two times of ``filters``."""
    refuse_reversed(filters, now, "run can have been enqueued")
    refuse_reversed(filters, now, "run can have failed", FAILURE_TIMES)


def _is_failure_index_enough(filters: FilterValues) -> bool:
    """Return whether the index of runs that fail now has every column that ``filters`` ask for."""
    is_of_failures = any(map(filters.get, FAILURE_TIMES)) and set(states_of(filters)) <= set(_FAILING)
    return is_of_failures and set(filters.values) <= {"status", *FAILURE_TIMES}


def select_running(*columns: ColumnElement[Any], where: Sequence[Condition] = ()) -> Statement:
    """Select ``columns`` of the runs that run now and meet ``where``, in any order.

    The indexes of lists do not have these runs: all are read, by an index that has nothing else, and sorted.
    The OFFSET keeps the planner from walking the primary key instead, past all runs that wait.
    """
    return select(*columns).where(IS_RUNNING, *where).offset(literal_column("0"))


def _merged(arms: list[Arm], start: Start | None) -> Subquery:
    """Return the ids of all ``arms``, each in the order of the list.

    In a union the planner uses the order of an arm's index only where the arm has that order itself;
    otherwise it reads and sorts all rows of the arms.
    """
    parts = [arm.select(runs.id) for arm in arms]
    if len(arms) > 1:
        order = _ordered(runs.id, start)
        parts = [
            part if arm.is_running else part.order_by(order) for arm, part in zip(arms, parts, strict=True)
        ]
    return _union(parts)


def _schedule_id(schedule: str | int, read_ids: ReadIds, *, must_exist: bool) -> int:
    """Return the id of a schedule by its name or id, else of the last removed one of that name.

    Without one raises FilterError if it ``must_exist``, else returns _NO_SCHEDULE.
    """
    if isinstance(schedule, int):
        return schedule
    ids = [*read_ids(schedules_named(schedule))] or [*read_ids(removed_schedules_named(schedule))]
    if not ids and must_exist:
        raise FilterError(
            f"There is no schedule “{schedule}”, and the audit log knows of none of that name "
            "that was removed."
        )
    return int(ids[0]) if ids else _NO_SCHEDULE


def _has_recent_runs(schedule_id: int, read_ids: ReadIds, types: Sequence[str]) -> bool:
    """Return whether one of the NEWEST_RUNS of a schedule has one of ``types``."""
    newest = (
        select(runs.definition_id, runs.job_type)
        .where(_is_of_schedule(schedule_id))
        .order_by(runs.definition_id.desc(), runs.id.desc())
        .limit(NEWEST_RUNS)
        .subquery()
    )
    return bool(read_ids(select(newest.c.definition_id).where(newest.c.job_type.in_(types)).limit(1)))


def _is_of_schedule(schedule_id: int) -> Condition:
    """Match the runs of a schedule, as one range of the index of runs by schedule.

    With "=" the planner would know that the order by id is the order of the index, and walk the primary key.
    """
    return runs.definition_id == any_(literal([schedule_id], ARRAY(BigInteger)))


def _is_ahead(start: Start | None) -> list[Condition]:
    """Match the runs in the direction of ``start``."""
    if start is None:
        return []
    return [runs.id > start.id if start.newer else runs.id < start.id]


def _visible_conditions(run: Columns, filters: FilterValues, types: Sequence[str] | None) -> list[Condition]:
    """Match the states of ``filters`` and the job types that the reader may see."""
    states = states_of(filters)
    return [
        *([run.status.in_(states)] if states else []),
        *([run.job_type.in_(types)] if types is not None else []),
    ]


def _walk_schedule(schedule_id: int, start: Start | None, conditions: Conditions) -> Search:
    """Return the search that reads each of the next WINDOW runs of a schedule."""
    columns = [runs[name] for name in UNINDEXED_COLUMNS_OF_SCHEDULE]
    order = [_ordered(each, start) for each in (runs.definition_id, runs.id)]
    ahead = select(*columns).where(_is_of_schedule(schedule_id), *_is_ahead(start)).order_by(*order)
    near = ahead.limit(WINDOW).subquery()
    end = ahead.with_only_columns(runs.id).offset(WINDOW - 1).limit(1)
    return Search(select(near.c.id).where(*conditions(near.c)), near.c.id, end)


def _walk(arms: list[Arm], start: Start | None, conditions: Conditions) -> Search:
    """Return the search that reads each of the next WINDOW runs in the direction of ``start``."""
    source = _union([_ahead(arm, start, is_only=len(arms) == 1) for arm in arms])
    ahead = select(source).order_by(_ordered(source.c.id, start))
    near = ahead.limit(WINDOW).subquery()
    end = ahead.with_only_columns(source.c.id).offset(WINDOW - 1).limit(1)
    return Search(select(near.c.id).where(*conditions(near.c)), near.c.id, end)


def _ahead(arm: Arm, start: Start | None, *, is_only: bool) -> Statement:
    """Return the runs of ``arm`` in the direction of ``start``; of one of several arms the next WINDOW.

    A part of a union without a limit of its own may be sorted as a whole.
    """
    part = arm.select(*(runs[name] for name in UNINDEXED_COLUMNS)).where(*_is_ahead(start))
    return part if is_only or arm.is_running else part.order_by(_ordered(runs.id, start)).limit(WINDOW)


def _union(parts: list[Statement]) -> Subquery:
    return (parts[0] if len(parts) == 1 else union_all(*parts)).subquery()


def _ordered(id_: ColumnElement[int], start: Start | None) -> ColumnElement[int]:
    """Return the order of a list, newest first, or of a walk to newer rows."""
    return id_.asc() if start is not None and start.newer else id_.desc()


def _state_arms(filters: FilterValues, *, by_type: bool) -> list[Arm]:
    """Return the alternatives of the status filter: an ordered index scan each.

    ``by_type``: without a status runs are found by the index by type, which has those that do not run.
    """
    states = states_of(filters)
    if filters.get("group") and not filters.get("error"):
        # The index is by group and status: without a status, one scan of it for each.
        states = states or tuple(status.value for status in Status)
    if filters.get("error") and set(states) <= set(_FAILING):
        return [Arm([runs.status.in_([literal(state, literal_execute=True) for state in states])])]
    if not states:
        return [Arm([~IS_RUNNING]), Arm([], is_running=True)] if by_type else [Arm([])]
    return [
        Arm([], is_running=True)
        if state == Status.RUNNING
        else Arm([runs.status == literal(state, literal_execute=True)])
        for state in states
    ]


def _type_alternatives(filters: FilterValues, types: Sequence[str] | None) -> list[list[Condition]]:
    """Return the alternatives of the job types that the reader may see: an ordered index scan each."""
    if types is None:
        return [[]]
    names = [name for name in types if filters.get("type") in (None, name)]
    return [[runs.job_type == name] for name in names] or [[false()]]
