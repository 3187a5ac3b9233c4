"""What a query string asks of a list: the filters, and which page; writes the links of pages. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from wakeboard.reporting.filters.values import LARGEST_ID, FilterError, FilterValues

PAGE_SIZE = 50
LARGEST_PAGE = 200
LARGEST_EXPORT = 10_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a keyset page starts: ``direction`` is 'older' or 'newer', ``keys`` the row it goes on from."""

    direction: str
    keys: tuple[Any, ...]

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
        return Cursor(direction, tuple(_key(key, kind) for key, kind in zip(keys, kinds, strict=True)))
    except (ValueError, TypeError, OverflowError, binascii.Error, RecursionError) as wrong:
        raise FilterError(
            "The cursor is not one that this list gave out. Leave it out to start at the first page."
        ) from wrong


def _key(value: object, kind: type) -> object:
    if kind is datetime and isinstance(value, str):
        found = datetime.fromisoformat(value)
        if found.tzinfo is None:
            raise ValueError
        return found.astimezone(UTC)
    if kind is int and type(value) is int and abs(value) <= LARGEST_ID:
        return value
    if kind is str and isinstance(value, str) and "\0" not in value:
        return value.encode("utf-8", "strict").decode()
    raise ValueError


@dataclass(frozen=True, slots=True)
class Filters(FilterValues):
    """What a query string asks for, and which page of it."""

    cursor_text: str | None = None
    limit: int = PAGE_SIZE

    @property
    def query(self) -> str:
        """The canonical query string of the filters alone: no cursor, no page size."""
        return _encode(self.texts)

    @property
    def full_query(self) -> str:
        """The canonical query string of exactly this page, cursor included."""
        extra = {"limit": str(self.limit)} if self.limit not in (PAGE_SIZE, LARGEST_EXPORT) else {}
        cursor = {"cursor": self.cursor_text} if self.cursor_text else {}
        return _encode({**self.texts, **extra, **cursor})

    def link(self, path: str, **changes: str | None) -> str:
        """Return ``path`` with these filters, ``changes`` applied (None removes one)."""
        merged = {**self.texts, **changes}
        query = _encode({name: value for name, value in merged.items() if value is not None})
        return f"{path}?{query}" if query else path

    def chips(self, path: str) -> list[tuple[str, str, str]]:
        """Return (name, text, link without it) for each filter that is set."""
        return [(name, value, self.link(path, **{name: None})) for name, value in self.texts.items()]


def _encode(pairs: Mapping[str, str]) -> str:
    return urlencode(pairs, quote_via=quote, safe=":,")
