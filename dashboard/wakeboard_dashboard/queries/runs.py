"""What the list of runs asks: which runs match, how these stand, how many there are, what is new; which views
of it were saved.

Runs are found by their ids first, on an index, and read by their ids afterwards: a live list reads the rows
it shows and searches nothing. Filters that no index serves look at a window of runs a request, newest first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    RowMapping,
    Text,
    all_,
    any_,
    bindparam,
    case,
    cast,
    func,
    literal,
    select,
)

from wakeboard.core.text.redaction import SECRET_KEYS
from wakeboard.database.tables import job_definitions, job_runs, job_types, saved_views
from wakeboard.reporting.filters.conditions import HiddenText
from wakeboard.reporting.filters.search import Search
from wakeboard.reporting.filters.search import search as filtered
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.queries.keyset import Rows, add_search_ends, read_page, read_start
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.leases import IS_LEASE_ENDED, IS_SILENT, IS_STUCK
from wakeboard_dashboard.queries.statements import Column, Statement

CAP = 10_000
# The pill says "100+ new" past this; nobody needs to know by how much.
MOST_NEW = 100
MOST_TYPES = 500
# In a list of ten thousand runs; a page shows as many characters of a payload beside its tree.
LONGEST_PAYLOAD = 4_000
DEFAULT_ATTEMPTS = 10
# Filters that read a text or another table of each run they look at.
COSTLY = ("q", "worker")

# Payloads and messages in which something is hidden from viewers: a search must not tell what it says.
# At least what wakeboard.core.text.redaction hides; PostgreSQL's own grammar.
_SECRET_NAME = (
    r"passw|passphrase|pwd|[_-]pass(?![\w-])|secret|token|(?:api|access|private)[-_]?key|credential|dsn"
)
# A name and a password of a text that was cut before the @; a number is a port.
_CUT_LOGIN = r"""://[^/\s:"']*:(?!\d{1,5}\W?END)[^\s/"']+END"""
_CUT_IN_JSON, _CUT_AT_THE_END = (_CUT_LOGIN.replace("END", end) for end in ('"', "$"))
SECRET_IN_JSON = rf"""{_SECRET_NAME}|pass["'\\]|authorization|cookie|bearer|://[^/\s]*@|{_CUT_IN_JSON}"""
SECRET_IN_TEXT = (
    rf"""({_SECRET_NAME}|authorization|cookie)[\w-]*\s*[=:"'\\]|-[\w-]*({_SECRET_NAME})[\w-]*[\s"'\\]"""
    rf"""|pass["'\\]|bearer|://[^/\s]*@|{_CUT_AT_THE_END}"""
)
_SECRET_FLAG = rf"^--?[\w-]*({_SECRET_NAME})[\w-]*$"

runs = job_runs.c
MOST_ATTEMPTS = func.coalesce(runs.max_attempts, job_types.c.max_attempts, DEFAULT_ATTEMPTS)


class Payloads(Enum):
    """Which payloads come with a list of runs."""

    NONE = "none"
    SHORT = "those of at most LONGEST_PAYLOAD characters"
    WHOLE = "all"


def search(
    connection: Connection,
    filters: Filters,
    now: datetime,
    *,
    sees_payloads: bool,
    types: Sequence[str] | None = None,
) -> Search:
    """Return the search that ``filters`` mean at ``now``, as ``wakeboard.reporting.filters.search`` does.

    Who does not see secrets in payloads (``sees_payloads``) cannot find runs by them either; with ``types``
    only runs of these job types are found. Raises FilterError.
    """
    if not sees_payloads:
        refuse_hidden(filters)
    hidden = None if sees_payloads else HiddenText(SECRET_IN_JSON, SECRET_IN_TEXT, _SECRET_FLAG)

    def ids_of(statement: Statement) -> Sequence[Any]:
        return connection.execute(statement).scalars().all()

    return filtered(filters, now, ids_of, start=read_start(filters), hidden=hidden, types=types)


def refuse_hidden(filters: Filters) -> None:
    """Raise FilterError when ``filters`` ask for what viewers may not see: secrets in payloads."""
    for path, value in filters.starting("payload.").items():
        steps = path.split(".")
        said = re.search(f"{SECRET_IN_JSON}|{_CUT_AT_THE_END}", value, re.IGNORECASE)
        if said or any(SECRET_KEYS.search(step) for step in steps):
            raise FilterError(
                f"“payload.{path[:100]}” with that value is hidden from viewers: ask an operator."
            )


def list_runs(
    connection: Connection, found: Search, filters: Filters, *, payloads: Payloads = Payloads.NONE
) -> Rows:
    """Return one page of the runs of ``found``, newest first, as ``shown`` reads them.

    A search that stopped at the end of its window goes on from there: its cursor leads past the rows.
    """
    ids = read_page(connection, found.statement, [found.id], filters, first=found.before_id)
    if found.end is not None:
        last = connection.execute(found.end).scalar_one_or_none()
        ids = add_search_ends(ids, last, read_start(filters))
    return replace(ids, items=read_runs(connection, [row["id"] for row in ids.items], payloads=payloads))


def read_runs(
    connection: Connection, ids: Sequence[int], *, payloads: Payloads = Payloads.NONE
) -> list[RowMapping]:
    """Return the runs with ``ids`` that are still there, newest first.

    Rows carry the columns of job_runs (``payload`` only when asked for) and: most_attempts, definition (its
    name), is_lease_ended, is_silent (its worker missed two heartbeats), is_stuck (either). With the SHORT
    payloads alone a longer one is None.
    """
    return list(connection.execute(_SHOWN[payloads], {"ids": list(ids)}).mappings().all())


def _payloads(asked: Payloads) -> list[Column]:
    """Return the columns that have the payload as ``asked``."""
    if asked != Payloads.SHORT:
        return [runs.payload] if asked == Payloads.WHOLE else []
    # Kept, a payload takes at most four times its text, so most that are too long are never read.
    is_large = func.pg_column_size(runs.payload) > 4 * LONGEST_PAYLOAD + 100
    is_long = func.length(cast(runs.payload, Text)) > LONGEST_PAYLOAD
    return [case((is_large, None), (is_long, None), else_=runs.payload).label("payload")]


def _shown(payloads: Payloads) -> Statement:
    columns = [column for column in runs if column.name != "payload"]
    return (
        select(
            *columns,
            *_payloads(payloads),
            MOST_ATTEMPTS.label("most_attempts"),
            job_definitions.c.name.label("definition"),
            IS_LEASE_ENDED.label("is_lease_ended"),
            IS_SILENT.label("is_silent"),
            IS_STUCK.label("is_stuck"),
        )
        .select_from(job_runs)
        .outerjoin(job_types, job_types.c.name == runs.job_type)
        .outerjoin(job_definitions, job_definitions.c.id == runs.definition_id)
        .where(runs.id == any_(bindparam("ids", type_=ARRAY(BigInteger))))
        .order_by(runs.id.desc())
    )


# Built once: to put it together takes as long as to read its rows.
_SHOWN = {payloads: _shown(payloads) for payloads in Payloads}
_TYPE_NAMES = select(job_types.c.name).order_by(job_types.c.name).limit(MOST_TYPES)


def count_matching(connection: Connection, found: Search, filters: Filters, rows: Rows) -> tuple[int, bool] | None:
    """Return how many runs match, at most CAP + 1, and whether all were looked at or WINDOW of them alone.

    ``rows`` is the ``page`` of the same search. None where looking at each costs too much, and behind the
    first page of a search that does.
    """
    if found.end is None:
        return _count(connection, found, found.statement, CAP), True
    if filters.cursor_text or any(filters.get(name) for name in COSTLY) or filters.starting("payload."):
        return None
    if len(rows.items) < filters.limit:
        # The page has all that match in the window, and leads on where the search ended.
        return len(rows.items), rows.older is None
    newest = found.statement.order_by(*found.newest_first).limit(CAP + 1)
    matching = select(func.count()).select_from(newest.subquery()).scalar_subquery()
    number, end = connection.execute(select(matching, found.end.scalar_subquery())).one()
    return int(number), end is None


def count_newer(connection: Connection, found: Search, ids: Sequence[int], *, full: bool) -> int:
    """Return how many runs belong on the first page now and are not among ``ids``; at most MOST_NEW + 1.

    A page that was ``full`` ends at its last row: what is older belongs on the next one.
    """
    statement = found.statement.where(found.id != all_(literal(list(ids), ARRAY(BigInteger))))
    if full and ids:
        statement = statement.where(found.id > min(ids))
    return _count(connection, found, statement, MOST_NEW)


def _count(connection: Connection, found: Search, statement: Statement, most: int) -> int:
    """Count in the order of the list, which is an index's, so that it stops early."""
    newest = statement.order_by(*found.newest_first).limit(most + 1)
    capped = select(func.count()).select_from(newest.subquery())
    return int(connection.execute(capped).scalar_one())


def list_type_names(connection: Connection) -> list[str]:
    """Return the job types that workers have registered, by name."""
    return list(connection.execute(_TYPE_NAMES).scalars().all())


MOST_VIEWS = 100
views = saved_views.c
_VIEWS_OF_PAGE = (
    select(views.id, views.name, views.query, views.created_by)
    .where(views.page == bindparam("page"))
    .order_by(views.name)
    .limit(MOST_VIEWS)
)


def list_saved_views(connection: Connection, page: str) -> list[RowMapping]:
    """Return the views of ``page`` by name, at most MOST_VIEWS: id, name, query, created_by."""
    return list(connection.execute(_VIEWS_OF_PAGE, {"page": page}).mappings().all())


def find_saved_view(connection: Connection, view_id: int) -> RowMapping | None:
    """Return the view ``view_id``, None when there is none."""
    return connection.execute(select(saved_views).where(views.id == view_id)).mappings().one_or_none()
