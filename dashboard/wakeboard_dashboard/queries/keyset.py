"""Keyset pages: the next rows after a row, never a row number. Used by every list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import BigInteger, Connection, RowMapping, literal, tuple_

from wakeboard.reporting.filters.values import LARGEST_ID
from wakeboard_dashboard.queries.filters import Cursor, Filters, read_cursor
from wakeboard_dashboard.queries.statements import Column, Statement


@dataclass(frozen=True, slots=True)
class Rows:
    """One page of a list; ``older`` and ``newer`` are cursors, None at either end."""

    items: list[RowMapping]
    older: str | None = None
    newer: str | None = None

    def twin(self, item: Callable[[RowMapping], Mapping[str, object]] = dict) -> dict[str, object]:
        """Return the list's JSON body without ``as_of``: ``{"items", "next"}``, each row through ``item``."""
        return {"items": [item(row) for row in self.items], "next": self.older}


def keyset_page(
    connection: Connection,
    statement: Statement,
    keys: Sequence[Column],
    filters: Filters,
    *,
    ascending: bool = False,
    first: Sequence[Column] = (),
) -> Rows:
    """Return the page of ``statement`` that ``filters`` (cursor, limit) asks for.

    ``keys`` are selected, labelled by their column names, never NULL and together unique; rows come in
    descending order of them, or ascending. ``first`` is sorted by before them and the same in all rows: it
    says which index has the order. Raises FilterError for a foreign cursor.
    """
    kinds = [key.type.python_type for key in keys]
    cursor = read_cursor(filters.cursor_text, kinds) if filters.cursor_text else None
    backwards = cursor is not None and cursor.direction == "newer"
    rising = ascending != backwards
    if cursor is not None:
        here = tuple_(*keys)
        there = tuple_(*(_value(value, key) for value, key in zip(cursor.keys, keys, strict=True)))
        statement = statement.where(here > there if rising else here < there)
    order = [key.asc() if rising else key.desc() for key in (*first, *keys)]
    found = connection.execute(statement.order_by(*order).limit(filters.limit + 1)).mappings().all()
    more, items = len(found) > filters.limit, list(found[: filters.limit])
    if backwards:
        items.reverse()
    older = _cursor("older", items[-1:], keys) if (more or backwards) else None
    newer = _cursor("newer", items[:1], keys) if (more if backwards else cursor is not None) else None
    return Rows(items, older, newer)


def _value(value: object, key: Column) -> Column:
    """Return a cursor's ``value`` for ``key``; a number may be larger than the key's own type holds."""
    return literal(value, BigInteger() if isinstance(value, int) else key.type)


def _cursor(direction: str, rows: list[RowMapping], keys: Sequence[Column]) -> str | None:
    """Return the cursor from the one row in ``rows``; None when the page is empty."""
    if not rows:
        return None
    return Cursor(direction, tuple(rows[0][str(key.key)] for key in keys)).encode()


def beyond(last: int | None, rows: Rows, filters: Filters) -> Rows:
    """Return ``rows`` of a search that ended at the id ``last`` (None: at the end of the list itself).

    Its cursors lead on where the search ended and back where it began; the key of the list is the id.
    """
    cursor = read_cursor(filters.cursor_text, [int]) if filters.cursor_text else None
    if cursor is not None and cursor.direction == "newer":
        onward = Cursor("newer", (last,)).encode() if last else None
        behind = Cursor("older", (min(cursor.keys[0] + 1, LARGEST_ID),)).encode()
        return replace(rows, newer=rows.newer or onward, older=rows.older or behind)
    onward = Cursor("older", (last,)).encode() if last else None
    back = Cursor("newer", (cursor.keys[0] - 1,)).encode() if cursor else None
    return replace(rows, older=rows.older or onward, newer=rows.newer or back)
