"""Reads definitions, their missed fires, and their latest runs: which are late, overlapping or done twice.

Reads no cron text: the views make words and next fires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Interval,
    RowMapping,
    Text,
    and_,
    any_,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
)

from wakeboard.database.tables import job_definitions, job_runs, job_types, missed_fires
from wakeboard.queue.definitions import WAITING
from wakeboard.reporting.activity_report.fires import LATE, LATE_BY
from wakeboard.reporting.diagnosis.standstill import standstill
from wakeboard.reporting.filters.conditions import removed_schedules_named
from wakeboard_dashboard.queries.keyset import Rows, read_page
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.statements import Column, Statement
from wakeboard_dashboard.text.oddities import LatestRun, find_repeated_times

LATEST = 20

# A run that a person ran again was done twice. A run that its handler enqueued
# (core.parent_run.enqueuer_name) is other work.
_RAN_AGAIN = """(r.status = 'succeeded' AND EXISTS (
        SELECT FROM wakeboard.job_runs AS g WHERE g.origin_run_id = r.id AND g.status = 'succeeded'
            AND g.enqueued_by IS DISTINCT FROM 'run:' || r.id
    ))"""
# A run was also done twice where a worker that had lost it came back with success. Without OFFSET the planner
# may collect all refused attempts instead of looking at those of each run.
_CAME_BACK = """(r.status = 'succeeded' AND r.attempts > 1 AND EXISTS (
        SELECT FROM wakeboard.job_attempts AS a
        WHERE a.run_id = r.id AND a.refused_outcome = 'succeeded' OFFSET 0
    ))"""


def _runs_of(definition: str) -> str:
    """Return the SQL of the LATEST runs of a definition, newest first.

    With "=" and the order by id alone the planner walks the primary key back from the newest run.
    """
    return f"""(
    SELECT r.* FROM wakeboard.job_runs AS r WHERE r.definition_id BETWEEN {definition} AND {definition}
    ORDER BY r.definition_id DESC, r.id DESC LIMIT {LATEST}
) AS r"""


_LATEST = text(f"""
SELECT r.definition_id, r.id, r.status, r.scheduled_for, r.run_at,
    coalesce(r.finished_at, r.failed_at, r.started_at, r.run_at) AS changed_at,
    left(r.error_code, 100) AS error_code, {LATE_BY} AS late_by, r.overlapped, {_CAME_BACK} AS came_back,
    {_RAN_AGAIN} AS ran_again
FROM unnest(CAST(:ids AS bigint[])) AS d (id) CROSS JOIN LATERAL {_runs_of("d.id")}
ORDER BY r.id""")
# The fires of schedules in zones that have clock changes.
_TIMES = text(f"""
SELECT d.id, d.timezone, array_agg(r.scheduled_for)
FROM wakeboard.job_definitions AS d CROSS JOIN LATERAL {_runs_of("d.id")}
WHERE d.timezone <> 'UTC' AND r.scheduled_for IS NOT NULL
GROUP BY d.id""")
_ODD = {
    "late": f"{LATE_BY} > {LATE.total_seconds()}",
    "overlapping": "r.overlapped",
    "twice": f"({_CAME_BACK} OR {_RAN_AGAIN})",
}


def read_latest_runs(connection: Connection, ids: Sequence[int]) -> Mapping[int, Sequence[LatestRun]]:
    """Return the LATEST runs of each definition that has any, oldest first."""
    by_definition: dict[int, list[LatestRun]] = {}
    for definition_id, *run in connection.execute(_LATEST, {"ids": list(ids)}) if ids else ():
        by_definition.setdefault(definition_id, []).append(LatestRun(*run))
    return by_definition


def is_odd(word: str) -> ColumnElement[bool]:
    """Return the condition that one of the LATEST runs of a definition is ``word``, a key of _ODD.

    ``list_repeated`` has the definitions whose fires a clock change repeated.
    """
    runs = _runs_of(str(job_definitions.c.id))
    return literal_column(f"EXISTS (SELECT FROM {runs} WHERE {_ODD[word]})", Boolean())


def list_repeated(connection: Connection) -> list[int]:
    """Return the ids of definitions of which two of the LATEST fires have one local time in their zone."""
    rows = connection.execute(_TIMES)
    return [definition_id for definition_id, zone, moments in rows if find_repeated_times(moments, zone)]


MOST_SHOWN = 50
MISSED_HOURS = 24
CAP = 1000
# While a worker lives, a fire is made within seconds of its time.
OVERDUE: ColumnElement[timedelta] = literal_column("interval '1 minute'", Interval())

# Of a schedule's latest runs.
ODD_STATES = ("late", "overlapping", "twice")
STATES = ("enabled", "paused", "overdue", "missed", *ODD_STATES, "unreadable", "by hand")

definitions = job_definitions.c
runs = job_runs.c
IS_OVERDUE = and_(
    definitions.enabled, definitions.schedule.is_not(None), definitions.next_fire_at < func.now() - OVERDUE
)
# Missed fires of the last hours, but for those of paused and removed schedules. The overview counts these
# too.
MISSED_LATELY = and_(
    missed_fires.c.noted_at >= func.now() - literal_column(f"interval '{MISSED_HOURS} hours'", Interval()),
    missed_fires.c.reason != "paused",
    missed_fires.c.definition_id.is_not(None),
)
_IN_STATE: dict[str, ColumnElement[bool]] = {
    "enabled": and_(definitions.enabled, definitions.schedule.is_not(None), definitions.error.is_(None)),
    "paused": ~definitions.enabled,
    "overdue": IS_OVERDUE,
    "missed": select(literal(1))
    .where(missed_fires.c.definition_id == definitions.id, MISSED_LATELY)
    .correlate(job_definitions)
    .exists(),
    "unreadable": definitions.error.is_not(None),
    "by hand": definitions.schedule.is_(None),
    **{word: is_odd(word) for word in ODD_STATES},
}
_recent = (
    select(missed_fires.c.definition_id)
    .where(MISSED_LATELY)
    .order_by(missed_fires.c.noted_at.desc())
    .limit(CAP)
    .subquery()
)
# Making such a statement takes longer than executing it: each is made once.
_MISSED_BY_DEFINITION = select(_recent.c.definition_id, func.count()).group_by(_recent.c.definition_id)
_WAITING = text(WAITING.replace("%(id)s", ":id"))
_TYPE_NAMES = select(definitions.job_type).distinct().order_by(definitions.job_type).limit(CAP)
# Why no run of its type would start, NULL where one may: wakeboard.reporting.diagnosis.standstill.
_STANDSTILL = literal_column(standstill(str(definitions.job_type)), Text()).label("standstill")
_STATE_COLUMNS = (IS_OVERDUE.label("is_overdue"), _STANDSTILL)
_COLUMNS = (*(column for column in definitions if column.name != "payload"), *_STATE_COLUMNS)


# With "=" and the order by id alone the planner walks the primary key back from the newest run: the whole
# table for a schedule that has not fired for long. Only job_runs_by_definition has this order.
_NEWEST_FIRST = (runs.definition_id.desc(), runs.id.desc())


def _made_by(definition_id: ColumnElement[int]) -> ColumnElement[bool]:
    return runs.definition_id.between(definition_id, definition_id)


def list_schedules(connection: Connection, filters: Filters) -> Rows:
    """Return a page of definitions by name.

    Columns: those of job_definitions without payload, is_overdue and standstill.
    """
    statement: Statement = select(*_COLUMNS)
    if job_type := filters.get("type"):
        statement = statement.where(definitions.job_type == job_type)
    if words := filters.get("q"):
        statement = statement.where(definitions.name.icontains(words, autoescape=True))
    if wanted := filters.get("state"):
        states = [_IN_STATE[state] for state in wanted]
        if "twice" in wanted:
            states.append(definitions.id == any_(literal(list_repeated(connection), ARRAY(BigInteger))))
        statement = statement.where(or_(*states))
    return read_page(connection, statement, [definitions.name], filters, ascending=True)


def find_schedule(connection: Connection, name: str) -> RowMapping | None:
    """Return the definition ``name``, None when there is none.

    Columns: those of job_definitions, is_overdue, standstill, and code_schedule and code_timezone, which the
    code of its type has.
    """
    statement = (
        select(
            job_definitions,
            *_STATE_COLUMNS,
            _of_code(job_types.c.schedule, 0).label("code_schedule"),
            _of_code(job_types.c.timezone, 1).label("code_timezone"),
        )
        .outerjoin(job_types, job_types.c.name == definitions.job_type)
        .where(definitions.name == name)
    )
    return connection.execute(statement).mappings().one_or_none()


def _of_code(published: Column, place: int) -> Column:
    """Return what the newest release says; ``published`` may be of an older one that still runs."""
    releases = job_types.c.said_in_code
    return case((releases.is_(None), published), else_=releases[-1][place].astext)


def was_removed(connection: Connection, name: str) -> bool:
    """Return whether the audit log has the removal of a schedule ``name``."""
    return connection.execute(removed_schedules_named(name)).first() is not None


def count_waiting(connection: Connection, definition_id: int) -> int:
    """Return how many runs of a definition wait, retries included, at most MOST_WAITING + 1."""
    return int(connection.execute(_WAITING, {"id": definition_id}).scalar_one())


def count_missed(connection: Connection) -> Mapping[int, int]:
    """Return by definition id how many of the newest CAP fires MISSED_LATELY are its own."""
    return dict(connection.execute(_MISSED_BY_DEFINITION).all())


def list_missed(connection: Connection, definition_id: int) -> list[RowMapping]:
    """Return the newest missed fires of a definition, latest first, at most MOST_SHOWN.

    Each row also has how many there are, ``among``, at most CAP + 1.
    """
    missed = missed_fires.c
    counted = select(literal(1)).where(missed.definition_id == definition_id).limit(CAP + 1).subquery()
    among = select(func.count()).select_from(counted).scalar_subquery()
    statement = (
        select(missed_fires, among.label("among"))
        .where(missed.definition_id == definition_id)
        .order_by(missed.scheduled_for.desc())
        .limit(MOST_SHOWN)
    )
    return list(connection.execute(statement).mappings())


def list_missed_page(connection: Connection, definition_id: int, filters: Filters) -> Rows:
    """Return a page of the missed fires of a definition, latest first."""
    missed = missed_fires.c
    statement = select(missed_fires).where(missed.definition_id == definition_id)
    return read_page(connection, statement, [missed.scheduled_for], filters)


def list_runs(connection: Connection, definition_id: int) -> list[RowMapping]:
    """Return the newest runs of a definition, newest first, at most LATEST, without payload."""
    columns = [column for column in runs if column.name != "payload"]
    statement = (
        select(*columns)
        .where(_made_by(literal(definition_id, BigInteger)))
        .order_by(*_NEWEST_FIRST)
        .limit(LATEST)
    )
    return list(connection.execute(statement).mappings())


def list_type_names(connection: Connection) -> list[str]:
    """Return the job types that definitions name."""
    return list(connection.execute(_TYPE_NAMES).scalars())
