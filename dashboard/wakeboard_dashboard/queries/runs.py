"""Searches, counts and reads runs for lists; reads saved views.

A search finds ids on an index, the rows are read by id afterwards: a live list reads the rows that it shows
and searches nothing. Filters without an index look at a window of runs a request, newest first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum

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
from wakeboard.reporting.filters.search import search as make_search
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.queries.keyset import Rows, add_search_ends, read_page, read_start
from wakeboard_dashboard.queries.leases import IS_LEASE_ENDED, IS_SILENT, IS_STUCK
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.statements import Column, Statement

CAP = 10_000
# A page says "100+ new" past this.
MOST_NEW = 100
MOST_TYPES = 500
# Characters. A list may have ten thousand runs.
LONGEST_PAYLOAD = 4_000
DEFAULT_ATTEMPTS = 10
# Filters that read a text or another table for each run.
COSTLY = ("q", "worker")

# Payloads and messages with parts that are hidden from viewers: a search must not reveal these. The patterns,
# in PostgreSQL's grammar, match at least what wakeboard.core.text.redaction hides.
_SECRET_NAME = (
    r"passw|passphrase|pwd|[_-]pass(?![\w-])|secret|token|(?:api|access|private)[-_]?key|credential|dsn"
)
# A login in a text that was cut before the @. Five digits at most are a port.
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
    """Return the search of ``filters`` at ``now``, made by ``wakeboard.reporting.filters.search``.

    Without ``sees_payloads`` secrets in payloads find no runs. With ``types`` only runs of these job types
    are found. Raises FilterError.
    """
    if not sees_payloads:
        refuse_hidden(filters)
    hidden = None if sees_payloads else HiddenText(SECRET_IN_JSON, SECRET_IN_TEXT, _SECRET_FLAG)

    def ids_of(statement: Statement) -> Sequence[int]:
        return connection.execute(statement).scalars().all()

    return make_search(filters, now, ids_of, start=read_start(filters), hidden=hidden, types=types)


def refuse_hidden(filters: Filters) -> None:
    """Raise FilterError when ``filters`` search for a secret in payloads, which viewers may not see."""
    for path, value in filters.starting("payload.").items():
        steps = path.split(".")
        is_secret = re.search(f"{SECRET_IN_JSON}|{_CUT_AT_THE_END}", value, re.IGNORECASE)
        if is_secret or any(SECRET_KEYS.search(step) for step in steps):
            raise FilterError(
                f"“payload.{path[:100]}” with that value is hidden from viewers: ask an operator."
            )


def list_runs(
    connection: Connection, search: Search, filters: Filters, *, payloads: Payloads = Payloads.NONE
) -> Rows:
    """Return one page of the runs of ``search``, newest first, with the columns of ``read_runs``.

    Where the search stopped at the end of its window, the cursor goes on from there.
    """
    ids = read_page(connection, search.statement, [search.id], filters, first=search.before_id)
    if search.end is not None:
        last = connection.execute(search.end).scalar_one_or_none()
        ids = add_search_ends(ids, last, read_start(filters))
    return replace(ids, items=read_runs(connection, [row["id"] for row in ids.items], payloads=payloads))


def read_runs(
    connection: Connection, ids: Sequence[int], *, payloads: Payloads = Payloads.NONE
) -> list[RowMapping]:
    """Return the runs with ``ids`` that are still there, newest first.

    Columns: those of job_runs (``payload`` as ``payloads`` says; with SHORT a longer one is None),
    most_attempts, definition (its name), is_lease_ended, is_silent (its worker missed two heartbeats) and
    is_stuck (either).
    """
    return list(connection.execute(_RUNS[payloads], {"ids": list(ids)}).mappings())


def _payload_columns(payloads: Payloads) -> list[Column]:
    if payloads != Payloads.SHORT:
        return [runs.payload] if payloads == Payloads.WHOLE else []
    # A stored payload takes at most four times its text: most that are too long are never read.
    is_large = func.pg_column_size(runs.payload) > 4 * LONGEST_PAYLOAD + 100
    is_long = func.length(cast(runs.payload, Text)) > LONGEST_PAYLOAD
    return [case((is_large, None), (is_long, None), else_=runs.payload).label("payload")]


def _select_runs(payloads: Payloads) -> Statement:
    columns = [column for column in runs if column.name != "payload"]
    return (
        select(
            *columns,
            *_payload_columns(payloads),
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


# Making such a statement takes as long as reading its rows: each is made once.
_RUNS = {payloads: _select_runs(payloads) for payloads in Payloads}
_TYPE_NAMES = select(job_types.c.name).order_by(job_types.c.name).limit(MOST_TYPES)


def count_matching(
    connection: Connection, search: Search, filters: Filters, rows: Rows
) -> tuple[int, bool] | None:
    """Return how many runs match, at most CAP + 1, and whether all runs were looked at, or only WINDOW.

    ``rows`` is the page of the same search. None where looking at each run costs too much, and behind the
    first page of a search that looks at each.
    """
    if search.end is None:
        return _count(connection, search, search.statement, CAP), True
    if filters.cursor_text or any(filters.get(name) for name in COSTLY) or filters.starting("payload."):
        return None
    if len(rows.items) < filters.limit:
        # The page has all matches of the window.
        return len(rows.items), rows.older is None
    newest = search.statement.order_by(*search.newest_first).limit(CAP + 1)
    matching = select(func.count()).select_from(newest.subquery()).scalar_subquery()
    number, end = connection.execute(select(matching, search.end.scalar_subquery())).one()
    return int(number), end is None


def count_newer(connection: Connection, search: Search, ids: Sequence[int], *, full: bool) -> int:
    """Return how many runs belong on the first page now and are not among ``ids``, at most MOST_NEW + 1.

    A ``full`` page ends at its last row: older runs belong on the next one.
    """
    statement = search.statement.where(search.id != all_(literal(list(ids), ARRAY(BigInteger))))
    if full and ids:
        statement = statement.where(search.id > min(ids))
    return _count(connection, search, statement, MOST_NEW)


def _count(connection: Connection, search: Search, statement: Statement, most: int) -> int:
    """Count in the order of the list, which an index has: counting stops early."""
    newest = statement.order_by(*search.newest_first).limit(most + 1)
    capped = select(func.count()).select_from(newest.subquery())
    return int(connection.execute(capped).scalar_one())


def list_type_names(connection: Connection) -> list[str]:
    """Return the job types that workers have registered, by name."""
    return list(connection.execute(_TYPE_NAMES).scalars())


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
    return list(connection.execute(_VIEWS_OF_PAGE, {"page": page}).mappings())


def find_saved_view(connection: Connection, view_id: int) -> RowMapping | None:
    """Return the view ``view_id``, None when there is none."""
    return connection.execute(select(saved_views).where(views.id == view_id)).mappings().one_or_none()
