"""Reads a search through psycopg, a page at a time: for the command line and bulk operations.

Imports SQLAlchemy, so no module that executes runs imports it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg.rows import dict_row
from sqlalchemy.dialects.postgresql import psycopg as dialect

from wakeboard.reporting.filters.conditions import Statement
from wakeboard.reporting.filters.search import Search

Row = dict[str, Any]
_DIALECT = dialect.dialect()  # type: ignore[no-untyped-call]


class SearchPage(NamedTuple):
    """Rows that match, newest first, and the id ``below`` which the next page begins, None at the end.

    ``is_cut``: the search stopped at the end of its window, with rows left that were not read.
    """

    rows: list[Row]
    below: int | None = None
    is_cut: bool = False

    @property
    def ids(self) -> list[int]:
        """The ids of the rows."""
        return [row["id"] for row in self.rows]


def read_page(
    connection: psycopg.Connection, search: Search, limit: int, below: int | None = None
) -> SearchPage:
    """Return up to ``limit`` rows of ``search``, from below the id ``below`` on."""
    statement = search.statement if below is None else search.statement.where(search.id < below)
    rows = read_select(connection, statement.order_by(*search.newest_first).limit(limit + 1))
    if len(rows) > limit:
        return SearchPage(rows[:limit], rows[max(0, limit - 1)]["id"])
    last = [] if search.end is None else read_select(connection, search.end)
    return SearchPage(rows, last[0]["id"], is_cut=True) if last else SearchPage(rows)


def read_select(connection: psycopg.Connection, statement: Statement) -> list[Row]:
    """Return the rows of a statement that SQLAlchemy compiles and psycopg executes."""
    compiled = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(str(compiled).encode(), compiled.params).fetchall()


def read_ids(connection: psycopg.Connection, statement: Statement) -> list[Any]:
    """Return the ids that ``statement`` selects."""
    return [row["id"] for row in read_select(connection, statement)]
