"""What the list of runs asks: which runs match, how these stand, how many there are, what is new.

Runs are found by their ids first, on an index, and read by their ids afterwards: a live list reads the rows
it shows and searches nothing. Filters that no index serves look at WINDOW runs a request, newest first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
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
    false,
    func,
    literal,
    or_,
    select,
    true,
    union_all,
)

from dashboard.formats import SECRET_KEYS
from dashboard.params import LARGEST_ID, Cursor, Filters, WrongFilter, read_cursor
from dashboard.queries.keyset import Rows, keyset_page
from dashboard.queries.overview import ALIVE
from worker.states import Status
from worker.tables import job_attempts, job_definitions, job_runs, job_types, workers

CAP = 10_000
# How many runs one request looks at for filters that no index serves; the cursor leads on to the next ones.
WINDOW = 20_000
WALKING = ("q", "attempts", "worker", "since", "until")
LOOKED_AT = ("id", "created_at", "attempts", "locked_by", "payload", "last_error", "error_code", "job_type")
# The pill says "100+ new" past this; nobody needs to know by how much.
MOST_NEW = 100
MOST_TYPES = 500
DEFAULT_ATTEMPTS = 10
FAILING = (Status.FAILED.value, Status.DEAD.value)

# Payloads and messages in which something is hidden from viewers: a search must not tell what it says.
# At least what dashboard.formats hides; PostgreSQL's own grammar.
_SECRET_NAME = r"passw|passphrase|pwd|secret|token|api[-_]?key|private[-_]?key|credential"
SECRET_INSIDE = rf"""{_SECRET_NAME}|pass[\\"]|authorization|cookie|dsn|bearer|://[^/\s]*@"""
SECRET_SAID = (
    rf"""({_SECRET_NAME}|authorization|cookie)[\w-]*\s*[=:"']|-[\w-]*({_SECRET_NAME})[\w-]*\s"""
    r"|bearer|://[^/\s]*@"
)
MOST_STEPS = 50

runs = job_runs.c
is_running = runs.status == literal(Status.RUNNING.value, literal_execute=True)
IS_LEASE_ENDED = and_(is_running, runs.locked_until < func.now())
_holder = select(literal(1)).where(workers.c.id == runs.locked_by, ALIVE).correlate(job_runs)
IS_SILENT = and_(is_running, ~_holder.exists())
MOST_ATTEMPTS = func.coalesce(runs.max_attempts, job_types.c.max_attempts, DEFAULT_ATTEMPTS)


@dataclass(frozen=True, slots=True)
class Search:
    """The runs that filters ask for, as a select of ``id``.

    ``window`` selects the ids that this request looks at, when some filter has to look at each run: at most
    WINDOW of them from the cursor on. None when indexes find the runs, however many there are.
    """

    statement: Select[Any]
    id: ColumnElement[int]
    window: Select[Any] | None = None


def search(connection: Connection, filters: Filters, now: datetime, *, sees_payloads: bool) -> Search:
    """Return the search that ``filters`` mean at ``now``.

    Without a status, ``error`` looks among the runs that fail now: failed and dead. Who does not
    see secrets in payloads (``sees_payloads``) cannot find runs by them either. Raises WrongFilter.
    """
    arms = [and_(true(), *arm, *_plain(filters)) for arm in _states(filters)]
    if any(filters.get(name) for name in WALKING) or filters.starting("payload."):
        return _walk(filters, arms, lambda run: _walking(connection, run, filters, now, sees_payloads))
    if len(arms) == 1:
        return Search(select(runs.id).where(arms[0]), runs.id)
    each = union_all(*(select(runs.id).where(arm) for arm in arms)).subquery()
    return Search(select(each.c.id), each.c.id)


def _walk(
    filters: Filters, arms: list[Any], conditions: Callable[[Any], list[ColumnElement[bool]]]
) -> Search:
    """Return the search that looks at each of the next WINDOW runs in the direction of the cursor."""
    looked_at = [select(*(runs[name] for name in LOOKED_AT)).where(arm) for arm in arms]
    source = looked_at[0].subquery() if len(arms) == 1 else union_all(*looked_at).subquery()
    cursor = read_cursor(filters.cursor_text, [int]) if filters.cursor_text else None
    order = source.c.id.desc()
    ahead = select(source)
    if cursor is not None:
        newer = cursor.direction == "newer"
        ahead = ahead.where(source.c.id > cursor.keys[0] if newer else source.c.id < cursor.keys[0])
        order = source.c.id.asc() if newer else order
    near = ahead.order_by(order).limit(WINDOW).subquery()
    matching = select(near.c.id).where(*conditions(near.c))
    return Search(matching, near.c.id, ahead.with_only_columns(source.c.id).order_by(order))


def _states(filters: Filters) -> list[list[ColumnElement[bool]]]:
    """Return the alternatives of the status filter: one ordered index scan each, merged."""
    wanted: tuple[str, ...] = filters.get("status") or ()
    if filters.get("error") and set(wanted) <= set(FAILING):
        states = [literal(each, literal_execute=True) for each in wanted or FAILING]
        return [[runs.status.in_(states)]]
    return [[runs.status == literal(each, literal_execute=True)] for each in wanted] or [[]]


def _plain(filters: Filters) -> list[ColumnElement[bool]]:
    """Return the filters that are a comparison with an indexed column."""
    columns = {"type": runs.job_type, "error": runs.error_code, "key": runs.idempotency_key}
    return [column == filters.get(name) for name, column in columns.items() if filters.get(name)]


def _walking(
    connection: Connection, run: Any, filters: Filters, now: datetime, sees_payloads: bool
) -> list[ColumnElement[bool]]:
    """Return the filters that have to look at each ``run`` (columns LOOKED_AT)."""
    found: list[ColumnElement[bool]] = []
    if since := filters.get("since"):
        found.append(run.created_at >= since.at(now))
    if until := filters.get("until"):
        found.append(run.created_at < until.at(now))
    if attempts := filters.get("attempts"):
        low, high = attempts
        found.append(run.attempts >= low if high is None else run.attempts.between(low, high))
    if worker := filters.get("worker"):
        found.append(_worked_on_by(connection, run, worker))
    for path, value in filters.starting("payload.").items():
        found.append(_holds(run, path.split("."), value, sees_payloads))
    if words := filters.get("q"):
        found.append(_mentions(run, words, sees_payloads))
    return found


def _holds(run: Any, steps: list[str], value: str, sees_payloads: bool) -> ColumnElement[bool]:
    """Match payloads with ``value`` behind ``steps``. Raises WrongFilter for what viewers may not ask."""
    if len(steps) > MOST_STEPS:
        raise WrongFilter(f"“payload.” is followed by {len(steps)} names; it must be at most {MOST_STEPS}.")
    hidden = any(SECRET_KEYS.search(step) for step in steps) or re.search(SECRET_INSIDE, value, re.IGNORECASE)
    if not sees_payloads and hidden:
        asked = ".".join(steps)[:100]
        raise WrongFilter(f"“payload.{asked}” with that value is hidden from viewers: ask an operator.")
    return cast(run.payload.op("#>>")(literal(steps, ARRAY(Text))), Text) == value


def _worked_on_by(connection: Connection, run: Any, worker: str) -> ColumnElement[bool]:
    """Match what a worker holds or has held; a worker is named by its id, its name or its host."""
    named = select(workers.c.id).where(or_(workers.c.name == worker, workers.c.hostname == worker))
    ids = literal([worker, *connection.execute(named).scalars()], ARRAY(Text))
    attempts = job_attempts.c
    # A scalar with a limit is probed once per run; EXISTS would be hashed, by reading every attempt there is.
    held = select(true()).where(attempts.run_id == run.id, attempts.worker_id == any_(ids)).limit(1)
    return or_(run.locked_by == any_(ids), func.coalesce(held.scalar_subquery(), false()))


def _mentions(run: Any, words: str, sees_payloads: bool) -> ColumnElement[bool]:
    """Match text in payload, error or type, and the run's own number."""
    payload, error = cast(run.payload, Text), run.last_error
    columns = (payload, error, run.error_code, run.job_type)
    places = [column.icontains(words, autoescape=True) for column in columns]
    if not sees_payloads:
        places[0] = and_(places[0], ~payload.regexp_match(SECRET_INSIDE, flags="i"))
        places[1] = and_(places[1], ~error.regexp_match(SECRET_SAID, flags="i"))
    if words.isascii() and words.isdecimal() and int(words) <= LARGEST_ID:
        places.append(run.id == int(words))
    return or_(*places)


def page(connection: Connection, found: Search, filters: Filters, *, payloads: bool = False) -> Rows:
    """Return one page of the runs of ``found``, newest first, as ``shown`` reads them.

    A search that stopped at the end of its window goes on from there: its cursor leads past the rows.
    """
    ids = keyset_page(connection, found.statement, [found.id], filters)
    if found.window is not None:
        ids = _beyond(connection, found.window, ids, filters)
    return replace(ids, items=shown(connection, [row["id"] for row in ids.items], payloads=payloads))


def _beyond(connection: Connection, window: Select[Any], rows: Rows, filters: Filters) -> Rows:
    """Return ``rows`` with cursors that lead on where the window ended and back where it began."""
    last: int | None = connection.execute(window.offset(WINDOW - 1).limit(1)).scalar_one_or_none()
    cursor = read_cursor(filters.cursor_text, [int]) if filters.cursor_text else None
    if cursor is not None and cursor.direction == "newer":
        onward = Cursor("newer", (last,)).encode() if last else None
        behind = Cursor("older", (min(cursor.keys[0] + 1, LARGEST_ID),)).encode()
        return replace(rows, newer=rows.newer or onward, older=rows.older or behind)
    onward = Cursor("older", (last,)).encode() if last else None
    back = Cursor("newer", (cursor.keys[0] - 1,)).encode() if cursor else None
    return replace(rows, older=rows.older or onward, newer=rows.newer or back)


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
    """Return how many runs match, at most CAP + 1; None when counting would look at each run."""
    if found.window is not None:
        return None
    return _count(connection, found, found.statement, CAP)


def newcomers(connection: Connection, found: Search, ids: Sequence[int], *, full: bool) -> int:
    """Return how many runs belong on the first page now and are not among ``ids``; at most MOST_NEW + 1.

    A page that was ``full`` ends at its last row: what is older belongs on the next one.
    """
    statement = found.statement.where(found.id != all_(literal(list(ids), ARRAY(BigInteger))))
    if full and ids:
        statement = statement.where(found.id > min(ids))
    return _count(connection, found, statement, MOST_NEW)


def _count(connection: Connection, found: Search, statement: Select[Any], most: int) -> int:
    """Count in the order of the list, which is an index's, so that it stops early."""
    newest = statement.order_by(found.id.desc()).limit(most + 1)
    capped = select(func.count()).select_from(newest.subquery())
    return int(connection.execute(capped).scalar_one())


def type_names(connection: Connection) -> list[str]:
    """Return the job types that workers have registered, by name."""
    return list(
        connection.execute(select(job_types.c.name).order_by(job_types.c.name).limit(MOST_TYPES)).scalars()
    )
