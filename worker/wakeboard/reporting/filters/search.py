"""Filters of runs → the statement that finds their ids. Shared by the pages and the command line.

Runs are found by their ids first, on an index, and read by their ids afterwards. Filters that no index serves
look at WINDOW runs a request, newest first. Imports SQLAlchemy, so nothing that works on runs imports it.
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
    Select,
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
    LOOKED_AT,
    WALKING,
    HiddenText,
    failed_between,
    looked_at,
    plain,
)
from wakeboard.reporting.filters.named import removed_schedules_named, schedules_named
from wakeboard.reporting.filters.runs import FAILED, states_of
from wakeboard.reporting.filters.values import FilterError, FilterValues, refuse_reversed

# How many runs one request looks at for filters that no index serves; the cursor leads on to the next ones.
WINDOW = 20_000
# Among so many newest runs a schedule has one of the types that somebody may see, or is not there for them.
LATELY = 1000
# What is known of a run of a schedule by no index that has the schedule as well.
LOOKED_AT_OF_SCHEDULE = (*LOOKED_AT, "status", "idempotency_key", "error_group")
_FAILING = tuple(status.value for status in FAILING)

runs = job_runs.c
# A constant: a value that comes later cannot prove that an index has the runs.
IS_RUNNING = runs.status == literal(Status.RUNNING.value, literal_execute=True)


class Start(NamedTuple):
    """Where a list goes on: from the run ``id`` on, which is none of it, to newer ones or older ones."""

    id: int
    newer: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """The runs that filters ask for, as a select of ``id``.

    ``end`` selects the last id that this request looks at, when some filter has to look at each run and there
    are more than WINDOW from the start on. None when indexes find the runs, however many there are.
    ``before_id`` is to be sorted by before the id, and the same in all runs: no other index has that order.
    """

    statement: Select[Any]
    id: ColumnElement[int]
    end: Select[Any] | None = None
    before_id: tuple[ColumnElement[Any], ...] = ()

    @property
    def newest_first(self) -> list[Any]:
        """The order of the list."""
        return [each.desc() for each in (*self.before_id, self.id)]


class Arm(NamedTuple):
    """One of the alternatives that are merged: runs that meet ``conditions`` and, ``is_running``, run."""

    conditions: list[ColumnElement[bool]]
    is_running: bool = False

    def select(self, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the select of ``columns`` of these runs, in any order."""
        if self.is_running:
            return running(*columns, where=self.conditions)
        return select(*columns).where(and_(true(), *self.conditions))


def search(
    asked: FilterValues,
    now: datetime,
    ids_of: Callable[[Select[Any]], Sequence[Any]],
    *,
    start: Start | None = None,
    hidden: HiddenText | None = None,
    types: Sequence[str] | None = None,
) -> Search:
    """Return the search that filters of ``runs.FIELDS`` mean at ``now``, the database's clock.

    Without a status, ``error`` and FAILED look among the runs that fail now: failed and dead; ``group`` among
    all that failed so, however they stand now. ``ids_of`` returns the ids that a statement of names selects;
    ``start`` is where a walk begins; ``hidden`` is what the asker may not see, and ``types`` are the job
    types that the asker may see, None for all. Raises FilterError.
    """
    refuse_impossible(asked, now)
    indexed = plain(asked)
    if schedule := asked.get("schedule"):
        schedule_id = _schedule_id(schedule, ids_of, is_told=types is None)
        if types is not None:
            schedule_id = _if_seen(schedule_id, ids_of, types)
        if not asked.get("key"):
            is_all = set(asked.values) == {"schedule"} and types is None
            others = _others(asked, now, ids_of, hidden, types)
            return _of_schedule(schedule_id, start, None if is_all else others)
        indexed.append(runs.definition_id == schedule_id)
    seen = _seen(asked, types)
    by_type = bool(asked.get("type") or types is not None) and not asked.get("key")
    states = _states(asked, by_type=by_type)
    arms = [Arm([*arm.conditions, *of_type, *indexed], arm.is_running) for of_type in seen for arm in states]
    if types is None and _is_of_failures_alone(asked):
        arms = [Arm([*arm.conditions, *failed_between(runs, asked, now)]) for arm in arms]
    elif any(asked.get(name) for name in WALKING) or asked.starting("payload."):
        return _walk(arms, start, lambda run: looked_at(run, asked, now, ids_of, hidden))
    each = _merged(arms, start)
    return Search(select(each.c.id), each.c.id)


def refuse_impossible(asked: FilterValues, now: datetime) -> None:
    """Raise FilterError where no run can lie between two times of ``asked``."""
    refuse_reversed(asked, now, "run can have been enqueued")
    refuse_reversed(asked, now, "run can have failed", FAILED)


def _is_of_failures_alone(asked: FilterValues) -> bool:
    """Whether the index of what fails now has all that is asked for, and no run need be looked at."""
    is_of_failures = any(map(asked.get, FAILED)) and set(states_of(asked)) <= set(_FAILING)
    return is_of_failures and set(asked.values) <= {"status", *FAILED}


def running(*columns: ColumnElement[Any], where: Sequence[ColumnElement[bool]] = ()) -> Select[Any]:
    """Return the select of ``columns`` of the runs that run and meet ``where``, in any order.

    The indexes of lists do not have them: all are read, by an index that has nothing else, and sorted. The
    OFFSET keeps the planner from walking the primary key instead, past all that waits behind them.
    """
    return select(*columns).where(IS_RUNNING, *where).offset(literal_column("0"))


def _merged(arms: list[Arm], start: Start | None) -> Any:
    """Return the ids of the one of ``arms``, or of the union of several, each in the order of the list.

    Without an order of its own an arm does not know that its index gives it: the planner takes all that the
    arms have, and sorts.
    """
    parts = [arm.select(runs.id) for arm in arms]
    if len(arms) > 1:
        order = _ordered(runs.id, start)
        parts = [
            part if arm.is_running else part.order_by(order) for arm, part in zip(arms, parts, strict=True)
        ]
    return _together(parts)


def _schedule_id(named: str | int, ids_of: Callable[[Select[Any]], Sequence[Any]], *, is_told: bool) -> int:
    """Return the id of the schedule ``named``, or of the last one of that name that was removed.

    Raises FilterError where there was none; unless ``is_told``, it is one without runs to the asker.
    """
    if isinstance(named, int):
        return named
    found = [*ids_of(schedules_named(named))] or [*ids_of(removed_schedules_named(named))]
    if not found and is_told:
        raise FilterError(
            f"There is no schedule “{named}”, and the audit log knows of none of that name that was removed."
        )
    return int(found[0]) if found else 0


def _if_seen(schedule_id: int, ids_of: Callable[[Select[Any]], Sequence[Any]], types: Sequence[str]) -> int:
    """Return the id of a schedule that lately had runs of ``types``, else that of one without runs."""
    newest = (
        select(runs.definition_id, runs.job_type)
        .where(*_made_by(schedule_id, None))
        .order_by(runs.definition_id.desc(), runs.id.desc())
        .limit(LATELY)
        .subquery()
    )
    seen = select(newest.c.definition_id).where(newest.c.job_type.in_(types)).limit(1)
    return schedule_id if ids_of(seen) else 0


def _of_schedule(
    schedule_id: int, start: Start | None, others: Callable[[Any], list[ColumnElement[bool]]] | None
) -> Search:
    """Return the search for the runs of one schedule, from ``start`` on: all, or those that meet ``others``.

    These are looked for among the next WINDOW runs of the schedule.
    """
    made_by = _made_by(schedule_id, start)
    if others is None:
        return Search(select(runs.id).where(*made_by), runs.id, before_id=(runs.definition_id,))
    columns = [runs[name] for name in LOOKED_AT_OF_SCHEDULE]
    order = [_ordered(each, start) for each in (runs.definition_id, runs.id)]
    ahead = select(*columns).where(*made_by).order_by(*order)
    near = ahead.limit(WINDOW).subquery()
    end = ahead.with_only_columns(runs.id).offset(WINDOW - 1).limit(1)
    return Search(select(near.c.id).where(*others(near.c)), near.c.id, end)


def _made_by(schedule_id: int, start: Start | None) -> list[ColumnElement[bool]]:
    """Match the runs of a schedule ahead of ``start``, as one stretch of the index of runs by schedule.

    With "=" the planner would know that the order by id is the order of the index, and walk the primary key.
    """
    of = runs.definition_id == any_(literal([schedule_id], ARRAY(BigInteger)))
    if start is None:
        return [of]
    return [of, runs.id > start.id if start.newer else runs.id < start.id]


def _others(
    asked: FilterValues,
    now: datetime,
    ids_of: Callable[[Select[Any]], Sequence[Any]],
    hidden: HiddenText | None,
    types: Sequence[str] | None,
) -> Callable[[Any], list[ColumnElement[bool]]]:
    """Return what is asked of a schedule's runs beside the schedule: columns of a run → conditions."""
    states = states_of(asked)

    def conditions(run: Any) -> list[ColumnElement[bool]]:
        return [
            *([run.status.in_(states)] if states else []),
            *([run.job_type.in_(types)] if types is not None else []),
            *plain(asked, run),
            *looked_at(run, asked, now, ids_of, hidden),
        ]

    return conditions


def _walk(
    arms: list[Arm], start: Start | None, conditions: Callable[[Any], list[ColumnElement[bool]]]
) -> Search:
    """Return the search that looks at each of the next WINDOW runs in the direction of ``start``."""
    source = _together([_ahead(arm, start, is_one=len(arms) == 1) for arm in arms])
    ahead = select(source).order_by(_ordered(source.c.id, start))
    near = ahead.limit(WINDOW).subquery()
    matching = select(near.c.id).where(*conditions(near.c))
    end = ahead.with_only_columns(source.c.id).offset(WINDOW - 1).limit(1)
    return Search(matching, near.c.id, end)


def _ahead(arm: Arm, start: Start | None, *, is_one: bool) -> Select[Any]:
    """Return the runs of ``arm`` that are ahead of ``start``; if there are others, the next WINDOW.

    Without a limit of its own all that a part of a union has may be sorted.
    """
    part = arm.select(*(runs[name] for name in LOOKED_AT))
    if start is not None:
        part = part.where(runs.id > start.id if start.newer else runs.id < start.id)
    return part if is_one or arm.is_running else part.order_by(_ordered(runs.id, start)).limit(WINDOW)


def _together(parts: list[Select[Any]]) -> Any:
    """Return the one of ``parts`` or the union of several, to select from."""
    return (parts[0] if len(parts) == 1 else union_all(*parts)).subquery()


def _ordered(id_: Any, start: Start | None) -> Any:
    """Return the order of a list, newest first, or of a walk that goes to newer ones."""
    return id_.asc() if start is not None and start.newer else id_.desc()


def _states(asked: FilterValues, *, by_type: bool) -> list[Arm]:
    """Return the alternatives of the status filter: one ordered scan each, merged.

    ``by_type``: without a status they are found by the index by type, which has those that do not run.
    """
    wanted = states_of(asked)
    if asked.get("group") and not asked.get("error"):
        # Its index is by group and status: without a status, six scans of it.
        wanted = wanted or tuple(status.value for status in Status)
    if asked.get("error") and set(wanted) <= set(_FAILING):
        states = [literal(each, literal_execute=True) for each in wanted]
        return [Arm([runs.status.in_(states)])]
    if not wanted:
        return [Arm([~IS_RUNNING]), Arm([], is_running=True)] if by_type else [Arm([])]
    return [
        Arm([], is_running=True)
        if each == Status.RUNNING
        else Arm([runs.status == literal(each, literal_execute=True)])
        for each in wanted
    ]


def _seen(asked: FilterValues, types: Sequence[str] | None) -> list[list[ColumnElement[bool]]]:
    """Return the alternatives of the types that the asker may see: one ordered index scan each, merged."""
    if types is None:
        return [[]]
    wanted = [name for name in types if asked.get("type") in (None, name)]
    return [[runs.job_type == name] for name in wanted] or [[false()]]
