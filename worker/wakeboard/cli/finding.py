"""The runs that filters ask for, found from a terminal by the statement of the pages. Never writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

from psycopg.rows import dict_row
from sqlalchemy import Select
from sqlalchemy.dialects.postgresql import psycopg as dialect

from wakeboard.cli.flags import settings
from wakeboard.cli.reach import Connection, Row, rows
from wakeboard.cli.reading import runs_with
from wakeboard.cli.refusals import Wrong
from wakeboard.reporting.filters.line import read_line
from wakeboard.reporting.filters.runs import FIELDS
from wakeboard.reporting.filters.search import Start, search
from wakeboard.reporting.filters.values import Asked, in_zone, read_pairs

VIEWS = "SELECT name, query FROM wakeboard.saved_views WHERE page = 'runs' ORDER BY name LIMIT 100"
_DIALECT = dialect.dialect()  # type: ignore[no-untyped-call]


def asked(lines: Iterable[str], pairs: Iterable[tuple[str, str]], view: str = "") -> Asked:
    """Return what typed lines and (name, text) pairs together ask for. Raises FilterError.

    ``view`` is the query string of a saved view: it says what the others leave open. Times without an offset
    are in the zone of the settings.
    """
    typed = [pair for line in lines for pair in read_line(line, FIELDS)]
    words = " ".join(text for name, text in typed if name == "q")
    given = [pair for pair in typed if pair[0] != "q"] + ([("q", words)] if words else [])
    given += pairs
    said = {name for name, _ in given}
    given += [pair for pair in parse_qsl(view, keep_blank_values=True) if pair[0] not in said]
    return read_pairs(given, in_zone(FIELDS, ZoneInfo(settings().timezone)))


def saved(connection: Connection, name: str) -> str:
    """Return the query string of the saved view ``name`` of runs. Raises Wrong."""
    found = rows(connection, VIEWS)
    for view in found:
        if view["name"] == name:
            return str(view["query"])
    names = ", ".join(f"“{view['name']}”" for view in found) or "none yet"
    raise Wrong(f"There is no saved view {name[:60]!r}; there are: {names}.")


def find(
    connection: Connection, wanted: Asked, now: datetime, limit: int, below: int | None
) -> tuple[list[Row], int | None, bool]:
    """Return up to ``limit`` runs, newest first, from below the id ``below`` on.

    With them the id to go on below, None at the end; and whether the search stopped early, with runs left
    that were not looked at.
    """

    def ids_of(statement: Select[Any]) -> Sequence[Any]:
        return [row["id"] for row in rows_of(connection, statement)]

    found = search(wanted, now, ids_of, start=None if below is None else Start(below))
    statement = found.statement if below is None else found.statement.where(found.id < below)
    ids = ids_of(statement.order_by(*found.newest_first).limit(limit + 1))
    if len(ids) > limit:
        return runs_with(connection, ids[:limit]), int(ids[limit - 1]), False
    last = None if found.end is None else next(iter(rows_of(connection, found.end)), None)
    return runs_with(connection, ids), None if last is None else int(last["id"]), last is not None


def rows_of(connection: Connection, statement: Select[Any]) -> list[Row]:
    """Return the rows of a statement that SQLAlchemy writes and psycopg runs."""
    compiled = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(str(compiled).encode(), compiled.params).fetchall()
