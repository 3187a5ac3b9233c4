"""Keyset pages: the rows next to a row, never a row number. Every list uses them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import BigInteger, Connection, RowMapping, literal, tuple_

from wakeboard.reporting.filters.search import Start
from wakeboard.reporting.filters.values import LARGEST_ID, FilterError
from wakeboard_dashboard.queries.query_string import Filters
from wakeboard_dashboard.queries.statements import Column, Statement

Key = int | str | datetime


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page starts: ``direction`` is 'older' or 'newer', ``keys`` are those of the row beside it."""

    direction: str
    keys: tuple[Key, ...]

    def encode(self) -> str:
        """Return the opaque text of this cursor."""
        keys = [key.isoformat() if isinstance(key, datetime) else key for key in self.keys]
        raw = json.dumps([self.direction, *keys], separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def read_cursor(value: str, kinds: Sequence[type]) -> Cursor:
    """Return the cursor in ``value``, whose keys must be of ``kinds`` (int, str, datetime).

    Raises FilterError for anything that this program did not write.
    """
    try:
        padded = value + "=" * (-len(value) % 4)
        direction, *keys = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if direction not in ("older", "newer") or len(keys) != len(kinds):
            raise ValueError
        return Cursor(direction, tuple(_read_key(key, kind) for key, kind in zip(keys, kinds, strict=True)))
    except (ValueError, TypeError, OverflowError, binascii.Error, RecursionError) as wrong:
        raise FilterError(
            "The cursor is not one that this list gave out. Leave it out to start at the first page."
        ) from wrong


def _read_key(value: object, kind: type) -> Key:
    if kind is datetime and isinstance(value, str):
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError
        return moment.astimezone(UTC)
    if kind is int and type(value) is int and abs(value) <= LARGEST_ID:
        return value
    if kind is str and isinstance(value, str) and "\0" not in value:
        return value.encode("utf-8", "strict").decode()
    raise ValueError


@dataclass(frozen=True, slots=True)
class Rows:
    """One page of a list; ``older`` and ``newer`` are cursors, None at either end."""

    items: list[RowMapping]
    older: str | None = None
    newer: str | None = None

    def twin(self, item: Callable[[RowMapping], Mapping[str, object]] = dict) -> dict[str, object]:
        """Return the list's JSON body without ``as_of``: ``{"items", "next"}``, each row through ``item``."""
        return {"items": [item(row) for row in self.items], "next": self.older}


def read_page(
    connection: Connection,
    statement: Statement,
    keys: Sequence[Column],
    filters: Filters,
    *,
    ascending: bool = False,
    first: Sequence[Column] = (),
) -> Rows:
    """Return the page of ``statement`` that the cursor and limit of ``filters`` mean.

    ``keys`` are selected, labelled by their column names, never NULL and together unique; rows are in
    descending order of them, or ``ascending``. ``first`` columns come before them in the order and are the
    same in all rows: they choose the index. Raises FilterError for a cursor of another list.
    """
    kinds = [key.type.python_type for key in keys]
    cursor = read_cursor(filters.cursor_text, kinds) if filters.cursor_text else None
    backwards = cursor is not None and cursor.direction == "newer"
    rising = ascending != backwards
    if cursor is not None:
        row_keys = tuple_(*keys)
        start_keys = tuple_(*(_value(value, key) for value, key in zip(cursor.keys, keys, strict=True)))
        statement = statement.where(row_keys > start_keys if rising else row_keys < start_keys)
    order = [key.asc() if rising else key.desc() for key in (*first, *keys)]
    items = list(connection.execute(statement.order_by(*order).limit(filters.limit + 1)).mappings())
    has_more = len(items) > filters.limit
    del items[filters.limit :]
    if backwards:
        items.reverse()
    if not items:
        return Rows(items)
    older = _cursor("older", items[-1], keys) if has_more or backwards else None
    newer = _cursor("newer", items[0], keys) if (has_more if backwards else cursor is not None) else None
    return Rows(items, older, newer)


def _value(value: object, key: Column) -> Column:
    """Return the literal of a cursor's ``value``; a number may be too large for the type of ``key``."""
    return literal(value, BigInteger() if isinstance(value, int) else key.type)


def _cursor(direction: str, row: RowMapping, keys: Sequence[Column]) -> str:
    return Cursor(direction, tuple(row[str(key.key)] for key in keys)).encode()


def read_start(filters: Filters) -> Start | None:
    """Return the row that a list by id goes on from, None for the first page. Raises FilterError."""
    if not filters.cursor_text:
        return None
    cursor = read_cursor(filters.cursor_text, [int])
    (row_id,) = cursor.keys
    assert isinstance(row_id, int)
    return Start(row_id, newer=cursor.direction == "newer")


def add_search_ends(rows: Rows, last: int | None, start: Start | None) -> Rows:
    """Return ``rows`` with cursors to where their search ended and began, where the rows have none.

    The search looked at the ids from ``start`` to ``last`` (None: to the end of the list).
    """
    is_rising = start is not None and start.newer
    onward = Cursor("newer" if is_rising else "older", (last,)).encode() if last else None
    if start is None:
        return replace(rows, older=rows.older or onward)
    if start.newer:
        back = Cursor("older", (min(start.id + 1, LARGEST_ID),)).encode()
        return replace(rows, newer=rows.newer or onward, older=rows.older or back)
    back = Cursor("newer", (start.id - 1,)).encode()
    return replace(rows, older=rows.older or onward, newer=rows.newer or back)
