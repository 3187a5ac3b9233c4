"""A search read through psycopg, a page at a time: for terminals and bulk operations. Imports SQLAlchemy."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import Select
from sqlalchemy.dialects.postgresql import psycopg as dialect

from wakeboard.reporting.filters.search import Search

_DIALECT = dialect.dialect()  # type: ignore[no-untyped-call]


class SearchPage(NamedTuple):
    """Rows that match, newest first, and the id ``below`` which the next page begins, None at the end.

    ``is_cut``: the search stopped at the end of its window, with rows left that were not looked at.
    """

    rows: list[dict[str, Any]]
    below: int | None = None
    is_cut: bool = False

    @property
    def ids(self) -> list[int]:
        """The ids of the rows."""
        return [row["id"] for row in self.rows]


def read_page(
    connection: psycopg.Connection[Any], found: Search, limit: int, below: int | None = None
) -> SearchPage:
    """Return up to ``limit`` rows of ``found``, from below the id ``below`` on."""
    statement = found.statement if below is None else found.statement.where(found.id < below)
    rows = read_select(connection, statement.order_by(*found.newest_first).limit(limit + 1))
    if len(rows) > limit:
        return SearchPage(rows[:limit], rows[max(0, limit - 1)]["id"])
    last = [] if found.end is None else read_select(connection, found.end)
    return SearchPage(rows, last[0]["id"], is_cut=True) if last else SearchPage(rows)


def read_select(connection: psycopg.Connection[Any], statement: Select[Any]) -> list[dict[str, Any]]:
    """Return the rows of a statement that SQLAlchemy writes and psycopg runs."""
    compiled = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(str(compiled).encode(), compiled.params).fetchall()


def read_ids(connection: psycopg.Connection[Any], statement: Select[Any]) -> list[Any]:
    """Return the ids that ``statement`` selects."""
    return [row["id"] for row in read_select(connection, statement)]
