"""Reads job types: rows, load, pace, workers, last failures; of one type also its schedules and runs.

Counts stop at CAP and never walk a table. Waiting and running runs are counted per type on an index of their
own, dead runs and failures among the newest rows of all types.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import (
    Connection,
    RowMapping,
    Text,
    bindparam,
    func,
    or_,
    select,
    text,
    union_all,
)

from wakeboard.core import leases
from wakeboard.core.rule_types import JOB_TYPE as ALERTS
from wakeboard.core.states import FAILING, FAILURES, Status, sql_list
from wakeboard.database.index_predicates import EACH_PRIORITY, IS_CLAIMABLE, TYPES_WITH_WORK
from wakeboard.database.tables import job_definitions, job_runs, job_types, workers
from wakeboard.queue.types import TOGETHER
from wakeboard.reporting import worker_states
from wakeboard.reporting.filters.search import IS_RUNNING, select_running
from wakeboard.reporting.statistics import merged_histogram
from wakeboard_dashboard.queries.keyset import Rows, read_page
from wakeboard_dashboard.queries.leases import LONG_MINUTES
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.statements import Statement
from wakeboard_dashboard.queries.throughput import Day, Hour, WindowBar, read_days
from wakeboard_dashboard.queries.workers import IS_CLAIMING, IS_HEARD, RUNS_TYPE

CAP = 1000
# Dead runs and failed attempts are counted among this many of the newest of all types.
NEWEST = 5000
MOST_UNKNOWN = 50

STATES = ("active", "paused", "limited")
# A run is overlong after OVERLONG_TIMES what 95 % of those that succeeded took, and OVERLONG_LEAST_SECONDS;
# at least OVERLONG_FEWEST must have succeeded.
OVERLONG_TIMES = 5
OVERLONG_LEAST_SECONDS = 60.0 * LONG_MINUTES
OVERLONG_FEWEST = 20

types = job_types.c
_most_running = func.coalesce(types.max_running_operator, types.max_running)
# The longest lease of the live workers that can run the type: it counts where the type's own is shorter.
_workers_lease = (
    select(func.max(workers.c.lease_seconds))
    .where(IS_HEARD, text(worker_states.runs_type(str(workers), str(types.name))))
    .scalar_subquery()
)

# Types of waiting runs without the registered ones.
_UNREGISTERED = text(f"""
SELECT w.job_type FROM ({TYPES_WITH_WORK}) AS w
WHERE NOT EXISTS (SELECT 1 FROM wakeboard.job_types AS t WHERE t.name = w.job_type)
LIMIT :most
""")


# Each count reads one index and no row: claimable runs less failed ones are queued. Only where more failed
# than are counted, the first claimable runs are read. The range of one value and the order leave the planner
# one index, which is made for the condition. With "=" and a LIMIT it hopes to meet matches early in the
# table.
_LOADS = text(f"""
SELECT w.name, running.runs AS running, failed.runs AS failed,
    CASE WHEN failed.runs > :cap THEN first.queued ELSE claimable.runs - failed.runs END AS queued
FROM unnest(CAST(:names AS text[])) AS w (name)
CROSS JOIN LATERAL (
    SELECT count(*) AS runs FROM (
        SELECT FROM wakeboard.job_runs AS r
        WHERE r.status = '{Status.RUNNING.value}' AND r.job_type BETWEEN w.name AND w.name
        ORDER BY r.job_type, r.locked_until LIMIT :cap + 1
    ) AS leased
) AS running
CROSS JOIN LATERAL (
    SELECT count(*) AS runs FROM (
        SELECT FROM wakeboard.job_runs AS r
        WHERE r.status IN ({sql_list(FAILING)}) AND (r.job_type, r.status)
            BETWEEN (w.name, '{Status.FAILED.value}') AND (w.name, '{Status.FAILED.value}')
        ORDER BY r.job_type, r.status, r.id LIMIT :cap + 1
    ) AS failing
) AS failed
CROSS JOIN LATERAL (
    SELECT count(*) AS runs FROM (
        SELECT FROM wakeboard.job_runs AS r
        WHERE r.{IS_CLAIMABLE} AND r.job_type BETWEEN w.name AND w.name
        ORDER BY r.job_type, r.priority, r.run_at, r.id
        LIMIT CASE WHEN failed.runs > :cap THEN 0 ELSE failed.runs + :cap + 1 END
    ) AS waiting
) AS claimable
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE status = '{Status.QUEUED.value}') AS queued FROM (
        SELECT r.status FROM wakeboard.job_runs AS r
        WHERE r.{IS_CLAIMABLE} AND r.job_type BETWEEN w.name AND w.name
        ORDER BY r.job_type, r.priority, r.run_at, r.id
        LIMIT CASE WHEN failed.runs > :cap THEN :cap + 1 ELSE 0 END
    ) AS waiting
) AS first
""")

_OLDEST = text(f"""
SELECT w.name, min(first.run_at)
FROM unnest(CAST(:names AS text[])) AS w (name) CROSS JOIN {EACH_PRIORITY}
CROSS JOIN LATERAL (
    SELECT r.run_at FROM wakeboard.job_runs AS r
    WHERE r.{IS_CLAIMABLE} AND r.job_type = w.name AND r.priority = each.priority
        AND r.run_at <= now()
    ORDER BY r.run_at LIMIT 1
) AS first
GROUP BY w.name
""")

# The index has the time of the last failure of each type; only that attempt is read.
_LAST_FAILURES = text(f"""
SELECT last.job_type, own.run_id, own.error_code, last.finished_at
FROM (
    SELECT newest.job_type, max(newest.finished_at) AS finished_at FROM (
        SELECT a.job_type, a.finished_at FROM wakeboard.job_attempts AS a
        WHERE a.outcome IN ({sql_list(FAILURES)}) ORDER BY a.finished_at DESC LIMIT :newest
    ) AS newest
    WHERE newest.job_type = ANY (CAST(:names AS text[]))
    GROUP BY newest.job_type
) AS last
CROSS JOIN LATERAL (
    SELECT a.run_id, a.error_code FROM wakeboard.job_attempts AS a
    WHERE a.outcome IN ({sql_list(FAILURES)}) AND a.job_type = last.job_type
        AND a.finished_at BETWEEN last.finished_at AND last.finished_at
    ORDER BY a.finished_at DESC LIMIT 1
) AS own
""")

# The range of one value and the order: as above.
_DEAD = text(f"""
SELECT newest.job_type, count(*)
FROM (
    SELECT r.job_type FROM wakeboard.job_runs AS r
    WHERE r.status IN ({sql_list(FAILING)})
        AND r.status BETWEEN '{Status.DEAD.value}' AND '{Status.DEAD.value}'
    ORDER BY r.status DESC, r.id DESC LIMIT :most
) AS newest
GROUP BY newest.job_type
""")

_WORKERS = text(f"""
SELECT can.job_type, count(DISTINCT w.id) AS alive,
    count(DISTINCT w.id) FILTER (WHERE {worker_states.is_claiming("w")}) AS claiming,
    count(DISTINCT w.id) FILTER (WHERE {worker_states.is_draining("w")}) AS draining
FROM wakeboard.workers AS w CROSS JOIN {worker_states.types_of("w")} AS can (job_type)
WHERE {leases.is_alive("w")} AND can.job_type = ANY (CAST(:names AS text[]))
GROUP BY can.job_type
""")


@dataclass(frozen=True, slots=True)
class TypeLoad:
    """How many runs of one type are in each state, at most CAP + 1.

    ``is_cut``: more may be queued or failed; ``is_dead_cut``: more may be dead.
    """

    queued: int = 0
    failed: int = 0
    running: int = 0
    dead: int = 0
    is_cut: bool = False
    is_dead_cut: bool = False


@dataclass(frozen=True, slots=True)
class TypePace:
    """How the attempts of one type went in the last day: ``runs`` succeeded, ``hours`` are all by the hour.

    ``median`` and ``p95`` are seconds of those that succeeded, right to within 10 %.
    """

    runs: int = 0
    median: float | None = None
    p95: float | None = None
    hours: Sequence[Hour] = ()

    @property
    def ended(self) -> int:
        """How many attempts succeeded or failed."""
        return sum([hour.total for hour in self.hours])

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return sum([hour.bad for hour in self.hours])

    @property
    def overlong_seconds(self) -> float | None:
        """After how many seconds a run has run far longer than usual; None where too few have succeeded."""
        if self.runs < OVERLONG_FEWEST or self.p95 is None:
            return None
        return max(OVERLONG_LEAST_SECONDS, OVERLONG_TIMES * self.p95)

    def is_overlong(self, started_at: datetime, now: datetime) -> bool:
        """Return whether a run that runs since ``started_at`` has run far longer than usual at ``now``."""
        limit = self.overlong_seconds
        return limit is not None and (now - started_at).total_seconds() > limit


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The last failed attempt of one type."""

    run_id: int
    error_code: str | None
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class TypeWorkers:
    """How many live workers can run one type, and how many of them claim runs or drain."""

    alive: int = 0
    claiming: int = 0
    draining: int = 0

    @property
    def stopping(self) -> int:
        """How many stop."""
        return self.alive - self.claiming - self.draining


@dataclass(frozen=True, slots=True)
class TypeNumbers:
    """All numbers of the types of a page, by name."""

    loads: Mapping[str, TypeLoad] = field(default_factory=dict)
    paces: Mapping[str, TypePace] = field(default_factory=dict)
    failures: Mapping[str, LastFailure] = field(default_factory=dict)
    workers: Mapping[str, TypeWorkers] = field(default_factory=dict)
    oldest: Mapping[str, datetime] = field(default_factory=dict)


def list_types(connection: Connection, filters: Filters) -> Rows:
    """Return a page of job types by name: the columns of job_types, and most_running, the limit in force."""
    statement: Statement = select(job_types, _most_running.label("most_running"))
    if wanted := filters.get("state"):
        in_state = {
            "active": types.paused_at.is_(None),
            "paused": types.paused_at.is_not(None),
            "limited": _most_running.is_not(None),
        }
        statement = statement.where(or_(*(in_state[state] for state in wanted)))
    if words := filters.get("q"):
        statement = statement.where(types.name.icontains(words, autoescape=True))
    return read_page(connection, statement, [types.name], filters, ascending=True)


def find_type(connection: Connection, name: str) -> RowMapping | None:
    """Return the type ``name``, None when no worker ever registered it.

    Columns: those of ``list_types``, and workers_lease_seconds, the longest lease of the live workers that
    can run it, None without one.
    """
    columns = (job_types, _most_running.label("most_running"), _workers_lease.label("workers_lease_seconds"))
    statement = select(*columns).where(types.name == name)
    return connection.execute(statement).mappings().one_or_none()


def read_numbers(connection: Connection, paces: Mapping[str, TypePace]) -> TypeNumbers:
    """Return the numbers of the types in ``paces``."""
    names = list(paces)
    return TypeNumbers(
        _read_loads(connection, names),
        paces,
        _read_last_failures(connection, names),
        _count_workers(connection, names),
        _read_oldest(connection, names),
    )


def count_queued(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Return by type how many of its runs are queued, at most CAP + 1 each."""
    rows = connection.execute(_LOADS, {"names": list(names), "cap": CAP})
    return {row.name: min(row.queued, CAP + 1) for row in rows}


def list_unregistered(connection: Connection) -> list[str]:
    """Return the types of waiting runs that no worker has registered, at most MOST_UNKNOWN."""
    return list(connection.execute(_UNREGISTERED, {"most": MOST_UNKNOWN}).scalars())


def _read_loads(connection: Connection, names: Sequence[str]) -> dict[str, TypeLoad]:
    dead, is_dead_cut = _count_dead(connection)
    rows = connection.execute(_LOADS, {"names": list(names), "cap": CAP})
    return {
        row.name: TypeLoad(
            row.queued,
            row.failed,
            row.running,
            dead.get(row.name, 0),
            max(row.queued, row.failed) > CAP,
            is_dead_cut,
        )
        for row in rows
    }


def _count_dead(connection: Connection) -> tuple[dict[str, int], bool]:
    """Return dead runs by type among the NEWEST, and whether there are more."""
    counted: dict[str, int] = dict(connection.execute(_DEAD, {"most": NEWEST + 1}).all())
    return counted, sum(counted.values()) > NEWEST


def _read_oldest(connection: Connection, names: Sequence[str]) -> dict[str, datetime]:
    """Return by type since when its oldest due run has waited."""
    return dict(connection.execute(_OLDEST, {"names": list(names)}).all())


def read_paces(connection: Connection, now: datetime, names: Collection[str]) -> dict[str, TypePace]:
    """Return how the attempts of each of the types ``names`` went in the last day."""
    return {name: _pace_of_day(day) for name, day in read_days(connection, now, names).items()}


def read_usual_paces(connection: Connection, now: datetime, names: Collection[str]) -> dict[str, TypePace]:
    """Return the paces of those of the types ``names`` of which runs succeeded in the last day."""
    by_name = read_paces(connection, now, names) if names else {}
    return {name: pace for name, pace in by_name.items() if pace.runs}


def make_pace(bars: Sequence[WindowBar]) -> TypePace:
    """Return the pace of the type whose last day is in ``bars``, by the hour."""
    times = merged_histogram([bar.run_times for bar in bars if bar.good])
    return _pace_of_day(Day([Hour(bar.start_at, bar.good, bar.bad) for bar in bars], times))


def _pace_of_day(day: Day) -> TypePace:
    median, p95 = day.run_times.at_most_each((0.5, 0.95))
    return TypePace(day.run_times.count, median, p95, day.hours)


def _read_last_failures(connection: Connection, names: Sequence[str]) -> dict[str, LastFailure]:
    """Return the last failed attempt by type, among the NEWEST."""
    rows = connection.execute(_LAST_FAILURES, {"names": list(names), "newest": NEWEST})
    return {row.job_type: LastFailure(row.run_id, row.error_code, row.finished_at) for row in rows}


def _count_workers(connection: Connection, names: Sequence[str]) -> dict[str, TypeWorkers]:
    """Return how many live workers run each type that has any."""
    rows = connection.execute(_WORKERS, {"names": list(names)})
    return {job_type: TypeWorkers(*counts) for job_type, *counts in rows}


LATEST = 10
MOST_SHOWN = 50

runs = job_runs.c

# Codes are counted in the index; only the last attempt of each is read.
_FAILURES_BY_CODE = text(f"""
SELECT counted.error_code, counted.attempts, counted.finished_at, last.run_id
FROM (
    SELECT newest.error_code, count(*) AS attempts, max(newest.finished_at) AS finished_at FROM (
        SELECT a.job_type, a.error_code, a.finished_at FROM wakeboard.job_attempts AS a
        WHERE a.outcome IN ({sql_list(FAILURES)}) ORDER BY a.finished_at DESC LIMIT :newest
    ) AS newest
    WHERE newest.job_type = :name
    GROUP BY newest.error_code ORDER BY attempts DESC, finished_at DESC LIMIT :most
) AS counted
CROSS JOIN LATERAL (
    SELECT a.run_id FROM wakeboard.job_attempts AS a
    WHERE a.outcome IN ({sql_list(FAILURES)}) AND a.job_type = :name
        AND a.error_code IS NOT DISTINCT FROM counted.error_code
        AND a.finished_at BETWEEN counted.finished_at AND counted.finished_at
    ORDER BY a.finished_at DESC LIMIT 1
) AS last
ORDER BY counted.attempts DESC, counted.finished_at DESC
""")


def list_workers(connection: Connection, name: str) -> list[RowMapping]:
    """Return the live workers that can run a type, the busiest first, at most MOST_SHOWN.

    ``is_claiming``: it claims runs.
    """
    columns = workers.c
    statement = (
        select(
            columns.id,
            columns.name,
            columns.hostname,
            columns.pid,
            columns.concurrency,
            columns.running,
            columns.seen_at,
            columns.drain_requested_at,
            columns.stop_requested_at,
            columns.stopping_at,
            IS_CLAIMING.label("is_claiming"),
        )
        .where(IS_HEARD, RUNS_TYPE.bindparams(type=name))
        .order_by(columns.running.desc(), columns.id)
        .limit(MOST_SHOWN)
    )
    return list(connection.execute(statement).mappings())


def list_schedules(connection: Connection, name: str) -> list[RowMapping]:
    """Return the schedules that make runs of a type, by name, at most MOST_SHOWN."""
    columns = job_definitions.c
    statement = (
        select(
            columns.name,
            columns.schedule,
            columns.timezone,
            columns.enabled,
            columns.error,
            columns.next_fire_at,
        )
        .where(columns.job_type == name)
        .order_by(columns.name)
        .limit(MOST_SHOWN)
    )
    return list(connection.execute(statement).mappings())


def list_latest_runs(connection: Connection, name: str) -> list[RowMapping]:
    """Return the LATEST runs of a type, newest first."""
    return list(connection.execute(_LATEST_RUNS, {"name": name}).mappings())


def _select_latest_runs() -> Statement:
    shown = (runs.id, runs.status, runs.attempts, runs.started_at, runs.finished_at, runs.failed_at,
             runs.run_at, runs.error_code, runs.last_error)  # fmt: skip
    name = bindparam("name", type_=Text)
    # The range of one value and the order leave the planner one way: job_runs_listed_by_type.
    listed = (
        select(*shown)
        .where(runs.job_type.between(name, name), ~IS_RUNNING)
        .order_by(runs.job_type.desc(), runs.id.desc())
        .limit(LATEST)
    )
    both = union_all(listed, select_running(*shown, where=[runs.job_type == name])).subquery()
    return select(both).order_by(both.c.id.desc()).limit(LATEST)


# Making this statement takes longer than executing it: it is made once.
_LATEST_RUNS = _select_latest_runs()


def list_failures(connection: Connection, name: str) -> list[RowMapping]:
    """Return the failed attempts of a type among the NEWEST of all types, by code, the most frequent first.

    Columns: error_code, attempts, and finished_at and run_id of the last attempt.
    """
    values = {"name": name, "newest": NEWEST, "most": LATEST}
    return list(connection.execute(_FAILURES_BY_CODE, values).mappings())


_PAUSES = text(f"""
SELECT t.name, t.paused_at, t.paused_by, t.paused_reason, t.paused_until,
    coalesce({TOGETHER}, false) AS is_held
FROM wakeboard.job_types AS t WHERE t.name <> :alerts ORDER BY t.name
""")

_HAS_PAUSED_TOGETHER = text(
    f"SELECT EXISTS (SELECT FROM wakeboard.job_types AS t WHERE t.name <> :alerts AND {TOGETHER})"
)


@dataclass(frozen=True, slots=True)
class PausedTypes:
    """The types except that of alerts: ``held`` were paused together, ``alone`` one by one."""

    active: Sequence[RowMapping]
    held: Sequence[RowMapping]
    alone: Sequence[RowMapping]


def read_pauses(connection: Connection) -> PausedTypes:
    """Return all types by name, active and paused ones apart."""
    rows = connection.execute(_PAUSES, {"alerts": ALERTS}).mappings().all()
    paused = [row for row in rows if row["paused_at"] is not None]
    return PausedTypes(
        [row for row in rows if row["paused_at"] is None],
        [row for row in paused if row["is_held"]],
        [row for row in paused if not row["is_held"]],
    )


def has_paused_together(connection: Connection) -> bool:
    """Return whether types are paused together."""
    return bool(connection.execute(_HAS_PAUSED_TOGETHER, {"alerts": ALERTS}).scalar_one())
