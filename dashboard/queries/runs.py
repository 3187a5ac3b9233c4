"""What the list of runs asks: which runs match, how these stand, how many there are, what is new.

Runs are found by their ids first, on an index, and read by their ids afterwards: a live list reads the rows
it shows and searches nothing. Filters that no index serves walk from the newest run back; the statement
timeout bounds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    Text,
    all_,
    and_,
    any_,
    cast,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    union_all,
)

from dashboard.formats import SECRET_KEYS
from dashboard.params import LARGEST_ID, Filters, WrongFilter
from dashboard.queries.keyset import Rows, keyset_page
from dashboard.queries.overview import ALIVE
from worker.states import Status
from worker.tables import job_attempts, job_definitions, job_runs, job_types, workers

CAP = 10_000
# The pill says "100+ new" past this; nobody needs to know by how much.
MOST_NEW = 100
MOST_TYPES = 500
DEFAULT_ATTEMPTS = 10
FAILING = (Status.FAILED.value, Status.DEAD.value)
# A run's created_at is when its transaction began, its id is given later: ids may run ahead by this much.
ID_SLACK = timedelta(hours=1)

# Payloads that may hold a secret; wider than the pattern that hides values, since it sees one text.
SECRET_INSIDE = (
    r"pass(word|wd|phrase)|secret|token|api[-_]?key|authorization|cookie|private[-_]?key|dsn|credential"
    r"|bearer |://[^/\s]*@"
)

runs = job_runs.c
is_running = runs.status == literal(Status.RUNNING.value, literal_execute=True)
IS_LEASE_ENDED = and_(is_running, runs.locked_until < func.now())
_holder = select(literal(1)).where(workers.c.id == runs.locked_by, ALIVE).correlate(job_runs)
IS_SILENT = and_(is_running, ~_holder.exists())
MOST_ATTEMPTS = func.coalesce(runs.max_attempts, job_types.c.max_attempts, DEFAULT_ATTEMPTS)

# The largest id so that it and all before it are older than :moment, found by halving: created_at has no
# index of its own, but grows with the id.
_LAST_BEFORE = text("""
WITH RECURSIVE search (low, high) AS (
    SELECT greatest(min(id), 1) - 1, max(id) FROM wakeboard.job_runs
    UNION ALL
    SELECT CASE WHEN probe.created_at < :moment THEN probe.id ELSE low END,
        CASE WHEN probe.created_at < :moment THEN high ELSE low + (high - low + 1) / 2 - 1 END
    FROM search CROSS JOIN LATERAL (
        SELECT r.id, r.created_at FROM wakeboard.job_runs AS r
        WHERE r.id >= low + (high - low + 1) / 2 ORDER BY r.id LIMIT 1
    ) AS probe
    WHERE low < high
)
SELECT low FROM search WHERE low >= high
""")


@dataclass(frozen=True, slots=True)
class Search:
    """The runs that filters ask for, as a select of ``id``; it ``walks`` when no index bounds the work."""

    statement: Select[Any]
    id: ColumnElement[int]
    walks: bool


def search(connection: Connection, filters: Filters, now: datetime, *, sees_payloads: bool) -> Search:
    """Return the search that ``filters`` mean at ``now``.

    Without a status, ``error`` looks among the runs that fail now: failed and dead. Who does not
    see secrets in payloads (``sees_payloads``) cannot find runs by them either. Raises WrongFilter.
    """
    conditions = [
        *_times(connection, filters, now),
        *_plain(filters),
        *_walking(connection, filters, sees_payloads),
    ]
    walks = any(filters.get(name) for name in ("q", "attempts", "worker")) or bool(
        filters.starting("payload.")
    )
    arms = [and_(*arm, *conditions) for arm in _states(filters)]
    if len(arms) == 1:
        return Search(select(runs.id).where(arms[0]), runs.id, walks)
    each = union_all(*(select(runs.id).where(arm) for arm in arms)).subquery()
    return Search(select(each.c.id), each.c.id, walks)


def _states(filters: Filters) -> list[list[ColumnElement[bool]]]:
    """Return the alternatives of the status filter: one ordered index scan each, merged."""
    wanted: tuple[str, ...] = filters.get("status") or ()
    if filters.get("error") and set(wanted) <= set(FAILING):
        states = [literal(each, literal_execute=True) for each in wanted or FAILING]
        return [[runs.status.in_(states)]]
    return [[runs.status == literal(each, literal_execute=True)] for each in wanted] or [[]]


def _times(connection: Connection, filters: Filters, now: datetime) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if since := filters.get("since"):
        moment = since.at(now)
        found += [runs.created_at >= moment, runs.id > _last_before(connection, moment - ID_SLACK)]
    if until := filters.get("until"):
        moment = until.at(now)
        found += [runs.created_at < moment, runs.id <= _last_before(connection, moment + ID_SLACK)]
    return found


def _last_before(connection: Connection, moment: datetime) -> int:
    return connection.execute(_LAST_BEFORE, {"moment": moment}).scalar_one_or_none() or 0


def _plain(filters: Filters) -> list[ColumnElement[bool]]:
    """Return the filters that are a comparison with an indexed column."""
    columns = {"type": runs.job_type, "error": runs.error_code, "key": runs.idempotency_key}
    return [column == filters.get(name) for name, column in columns.items() if filters.get(name)]


def _walking(connection: Connection, filters: Filters, sees_payloads: bool) -> list[ColumnElement[bool]]:
    """Return the filters that have to look at each run."""
    found: list[ColumnElement[bool]] = []
    if attempts := filters.get("attempts"):
        low, high = attempts
        found.append(runs.attempts >= low if high is None else runs.attempts.between(low, high))
    if worker := filters.get("worker"):
        found.append(_worked_on_by(connection, worker))
    for path, value in filters.starting("payload.").items():
        if not sees_payloads and SECRET_KEYS.search(path):
            raise WrongFilter(f"“payload.{path}” is hidden from viewers; it takes the role operator.")
        found.append(runs.payload[tuple(path.split("."))].astext == value)
    if words := filters.get("q"):
        found.append(_mentions(words, sees_payloads))
    return found


def _worked_on_by(connection: Connection, worker: str) -> ColumnElement[bool]:
    """Match what a worker holds or has held; a worker is named by its id, its name or its host."""
    named = select(workers.c.id).where(or_(workers.c.name == worker, workers.c.hostname == worker))
    ids = literal([worker, *connection.execute(named).scalars()], ARRAY(Text))
    attempts = job_attempts.c
    held = exists().where(attempts.run_id == runs.id, attempts.worker_id == any_(ids))
    return or_(runs.locked_by == any_(ids), held)


def _mentions(words: str, sees_payloads: bool) -> ColumnElement[bool]:
    """Match text in payload, error or type, and the run's own number."""
    payload = cast(runs.payload, Text)
    in_payload = payload.icontains(words, autoescape=True)
    if not sees_payloads:
        in_payload = and_(in_payload, ~payload.regexp_match(SECRET_INSIDE, flags="i"))
    places = [in_payload, *(c.icontains(words, autoescape=True) for c in (runs.last_error, runs.error_code))]
    places.append(runs.job_type.icontains(words, autoescape=True))
    if words.isascii() and words.isdecimal() and int(words) <= LARGEST_ID:
        places.append(runs.id == int(words))
    return or_(*places)


def page(connection: Connection, found: Search, filters: Filters, *, payloads: bool = False) -> Rows:
    """Return one page of the runs of ``found``, newest first, as ``shown`` reads them."""
    ids = keyset_page(connection, found.statement, [found.id], filters)
    return replace(ids, items=shown(connection, [row["id"] for row in ids.items], payloads=payloads))


def shown(connection: Connection, ids: Sequence[int], *, payloads: bool = False) -> list[RowMapping]:
    """Return the runs with ``ids`` that are still there, newest first.

    Rows carry the columns of job_runs (``payload`` only when asked for) and: most_attempts, definition (its
    name), is_lease_ended, is_silent (its worker missed two heartbeats).
    """
    columns = [column for column in runs if payloads or column.name != "payload"]
    statement = (
        select(
            *columns,
            MOST_ATTEMPTS.label("most_attempts"),
            job_definitions.c.name.label("definition"),
            IS_LEASE_ENDED.label("is_lease_ended"),
            IS_SILENT.label("is_silent"),
        )
        .select_from(job_runs)
        .outerjoin(job_types, job_types.c.name == runs.job_type)
        .outerjoin(job_definitions, job_definitions.c.id == runs.definition_id)
        .where(runs.id == any_(literal(list(ids), ARRAY(BigInteger))))
        .order_by(runs.id.desc())
    )
    return list(connection.execute(statement).mappings())


def count(connection: Connection, found: Search) -> int | None:
    """Return how many runs match, at most CAP + 1; None when counting would walk the table."""
    if found.walks:
        return None
    return _count(connection, found.statement, CAP)


def newcomers(connection: Connection, found: Search, ids: Sequence[int], *, full: bool) -> int:
    """Return how many runs belong on the first page now and are not among ``ids``; at most MOST_NEW + 1.

    A page that was ``full`` ends at its last row: what is older belongs on the next one.
    """
    statement = found.statement.where(found.id != all_(literal(list(ids), ARRAY(BigInteger))))
    if full and ids:
        statement = statement.where(found.id > min(ids))
    return _count(connection, statement, MOST_NEW)


def _count(connection: Connection, statement: Select[Any], most: int) -> int:
    capped = select(func.count()).select_from(statement.limit(most + 1).subquery())
    return int(connection.execute(capped).scalar_one())


def type_names(connection: Connection) -> list[str]:
    """Return the job types that workers have registered, by name."""
    return list(
        connection.execute(select(job_types.c.name).order_by(job_types.c.name).limit(MOST_TYPES)).scalars()
    )
