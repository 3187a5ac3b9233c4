"""What the page of types asks: policies and decisions, what is under way of each, how long it takes.

Counts stop at CAP and never walk a table: what waits and what runs is counted per type on its own index,
what is dead and what failed lately among the newest rows of all types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    RowMapping,
    Text,
    and_,
    any_,
    func,
    literal,
    or_,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import distinct_on

from dashboard.params import Filters
from dashboard.queries.ended import Bar, together
from dashboard.queries.hours import Hour, bars_of
from dashboard.queries.keyset import Rows, keyset_page
from dashboard.queries.overview import ALIVE, IS_FAILING
from worker.states import CLAIMABLE, FAILURES, Status, sql_list
from worker.tables import job_attempts, job_runs, job_types, workers

CAP = 1000
# Dead runs and failed attempts are looked for among this many of the newest, whatever their types.
NEWEST = 5000
MOST_UNKNOWN = 50

STATES = ("active", "paused", "limited")

types = job_types.c
runs = job_runs.c
_most_running = func.coalesce(types.max_running_operator, types.max_running)

# Types of waiting runs, found by jumping along job_runs_claimable; those that nobody registered.
_UNKNOWN = text(f"""
WITH RECURSIVE waiting(job_type) AS (
    (SELECT r.job_type FROM wakeboard.job_runs AS r
     WHERE r.status IN ({sql_list(CLAIMABLE)}) ORDER BY r.job_type LIMIT 1)
    UNION ALL
    SELECT (SELECT r.job_type FROM wakeboard.job_runs AS r
            WHERE r.status IN ({sql_list(CLAIMABLE)}) AND r.job_type > w.job_type
            ORDER BY r.job_type LIMIT 1)
    FROM waiting AS w WHERE w.job_type IS NOT NULL
)
SELECT w.job_type FROM waiting AS w
WHERE w.job_type IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM wakeboard.job_types AS t WHERE t.name = w.job_type)
LIMIT :most
""")


# Each priority is asked for by itself, so that runs of a better one that are not due cost nothing.
_OLDEST = text(f"""
SELECT w.name, min(first.run_at)
FROM unnest(CAST(:names AS text[])) AS w (name) CROSS JOIN generate_series(0, 4) AS p (priority)
CROSS JOIN LATERAL (
    SELECT r.run_at FROM wakeboard.job_runs AS r
    WHERE r.status IN ({sql_list(CLAIMABLE)}) AND r.job_type = w.name AND r.priority = p.priority
        AND r.run_at <= now()
    ORDER BY r.run_at LIMIT 1
) AS first
GROUP BY w.name
""")


@dataclass(frozen=True, slots=True)
class Load:
    """What is under way of one type: counts of at most CAP + 1; where ``is_cut``, there may be more."""

    queued: int = 0
    failed: int = 0
    running: int = 0
    dead: int = 0
    is_cut: bool = False
    is_dead_cut: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """How the attempts of one type went in the last day: seconds at most of those that succeeded, by hour.

    A percentile may be up to 29 % below the seconds given.
    """

    runs: int = 0
    median: float | None = None
    p95: float | None = None
    bars: Sequence[Bar] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failed attempt of one type."""

    run_id: int
    error_code: str | None
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class Numbers:
    """Everything counted about the types of a page, by name."""

    loads: Mapping[str, Load] = field(default_factory=dict)
    paces: Mapping[str, Pace] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    oldest: Mapping[str, datetime] = field(default_factory=dict)


def page(connection: Connection, filters: Filters) -> Rows:
    """Return job types by name: the columns of job_types, and most_running, the limit in force."""
    statement: Any = select(job_types, _most_running.label("most_running"))
    if wanted := filters.get("state"):
        in_state = {
            "active": types.paused_at.is_(None),
            "paused": types.paused_at.is_not(None),
            "limited": _most_running.is_not(None),
        }
        statement = statement.where(or_(*(in_state[state] for state in wanted)))
    if words := filters.get("q"):
        statement = statement.where(types.name.icontains(words, autoescape=True))
    return keyset_page(connection, statement, [types.name], filters, ascending=True)


def one(connection: Connection, name: str) -> RowMapping | None:
    """Return the type ``name`` as ``page`` does; None when no worker ever registered it."""
    statement = select(job_types, _most_running.label("most_running")).where(types.name == name)
    return connection.execute(statement).mappings().one_or_none()


def numbers(connection: Connection, names: Sequence[str], day: Mapping[datetime, Hour]) -> Numbers:
    """Return what is counted about the types ``names``; ``day`` is what ``hours.last_day`` returns."""
    return Numbers(
        _loads(connection, names),
        {name: _pace(bars_of(day, name)) for name in names},
        _failures(connection, names),
        _workers(connection, names),
        _oldest(connection, names),
    )


def unregistered(connection: Connection) -> list[str]:
    """Return types of which runs wait although no worker ever registered them, at most MOST_UNKNOWN."""
    return list(connection.execute(_UNKNOWN, {"most": MOST_UNKNOWN}).scalars())


def _wanted(names: Sequence[str]) -> Any:
    return select(func.unnest(literal(list(names), ARRAY(Text))).label("name")).subquery()


def _loads(connection: Connection, names: Sequence[str]) -> dict[str, Load]:
    claimable = runs.status.in_([literal(status.value, literal_execute=True) for status in CLAIMABLE])
    is_running = runs.status == literal(Status.RUNNING.value, literal_execute=True)
    waiting = _under_way(connection, names, claimable, (runs.priority, runs.run_at, runs.id))
    running = _under_way(connection, names, is_running, (runs.locked_until,))
    dead, is_dead_cut = _dead(connection)
    return {
        name: Load(
            waiting[name, Status.QUEUED],
            waiting[name, Status.FAILED],
            running[name, Status.RUNNING],
            dead.get(name, 0),
            sum(waiting[name, status] for status in CLAIMABLE) > CAP,
            is_dead_cut,
        )
        for name in names
    }


def _under_way(
    connection: Connection,
    names: Sequence[str],
    condition: ColumnElement[bool],
    order: Sequence[ColumnElement[Any]],
) -> Counter[tuple[str, str]]:
    """Return by (type, status) how many runs satisfy ``condition``, among CAP + 1 of each type.

    The range of one value and the order, which nobody needs, leave the planner one way: the index that is
    made for the condition. With "=" and a LIMIT it hopes to meet matches early in the table.
    """
    wanted = _wanted(names)
    found = (
        select(runs.status)
        .where(runs.job_type.between(wanted.c.name, wanted.c.name), condition)
        .order_by(runs.job_type, *order)
        .limit(CAP + 1)
        .lateral()
    )
    statement = (
        select(wanted.c.name, found.c.status, func.count())
        .select_from(wanted.join(found, true()))
        .group_by(wanted.c.name, found.c.status)
    )
    return Counter({(row[0], row[1]): row[2] for row in connection.execute(statement)})


def _dead(connection: Connection) -> tuple[dict[str, int], bool]:
    """Return dead runs by type among the NEWEST, and whether there are more."""
    is_dead = and_(runs.status.between(Status.DEAD.value, Status.DEAD.value), IS_FAILING)
    newest = (
        select(runs.job_type)
        .where(is_dead)
        .order_by(runs.status.desc(), runs.id.desc())
        .limit(NEWEST + 1)
        .subquery()
    )
    statement = select(newest.c.job_type, func.count()).group_by(newest.c.job_type)
    counted = {row[0]: row[1] for row in connection.execute(statement)}
    return counted, sum(counted.values()) > NEWEST


def _oldest(connection: Connection, names: Sequence[str]) -> dict[str, datetime]:
    """Return by type since when its oldest due run waits."""
    return {row[0]: row[1] for row in connection.execute(_OLDEST, {"names": list(names)})}


def _pace(bars: Sequence[Bar]) -> Pace:
    times = together(bar.run_times for bar in bars)
    return Pace(times.count, times.at_most(0.5), times.at_most(0.95), bars)


def _failures(connection: Connection, names: Sequence[str]) -> dict[str, Failure]:
    """Return the last failed attempt by type, among the NEWEST."""
    attempts = job_attempts.c
    outcomes = [literal(outcome.value, literal_execute=True) for outcome in FAILURES]
    newest = (
        select(attempts.job_type, attempts.run_id, attempts.error_code, attempts.finished_at)
        .where(attempts.outcome.in_(outcomes))
        .order_by(attempts.finished_at.desc())
        .limit(NEWEST)
    ).subquery()
    statement = (
        select(newest)
        .ext(distinct_on(newest.c.job_type))
        .where(newest.c.job_type == any_(literal(list(names), ARRAY(Text))))
        .order_by(newest.c.job_type, newest.c.finished_at.desc())
    )
    return {
        row.job_type: Failure(row.run_id, row.error_code, row.finished_at)
        for row in connection.execute(statement)
    }


def _workers(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Return how many live workers run each type."""
    wanted = _wanted(names)
    statement = (
        select(wanted.c.name, func.count())
        .select_from(wanted.join(workers, wanted.c.name == any_(workers.c.job_types)))
        .where(ALIVE)
        .group_by(wanted.c.name)
    )
    return {row[0]: row[1] for row in connection.execute(statement)}
