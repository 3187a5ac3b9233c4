"""The query string as one object: parsed once, checked, and able to write the links of a page.

What filters may say is ``wakeboard.reporting.filters``. Pure but for ``from_request`` and ``read_here``.
Anything unknown or malformed is a WrongFilter, which the shell shows as a 400 with its sentence.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from flask import g, request
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import BadRequest

from wakeboard.reporting.filters.values import (
    ID,
    LARGEST_ID,
    LONGEST_TEXT,
    MOMENT,
    STATUS,
    TEXT,
    Asked,
    Field,
    FilterError,
    Moment,
    identifier,
    in_zone,
    moment,
    one_of,
    read_pairs,
    text,
    whole,
)

__all__ = [
    "ID",
    "LARGEST_ID",
    "LONGEST_TEXT",
    "MOMENT",
    "STATUS",
    "TEXT",
    "Cursor",
    "Field",
    "Filters",
    "Moment",
    "WrongFilter",
    "from_request",
    "identifier",
    "moment",
    "one_of",
    "read_cursor",
    "read_filters",
    "read_here",
    "read_text",
    "read_whole",
    "readable",
    "text",
    "whole",
]

PAGE_SIZE = 50
LARGEST_PAGE = 200
LARGEST_EXPORT = 10_000


class WrongFilter(BadRequest):
    """The query string asks for something that does not exist; ``description`` is a sentence."""


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

    Raises WrongFilter for anything that this program did not write.
    """
    try:
        padded = value + "=" * (-len(value) % 4)
        direction, *keys = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if direction not in ("older", "newer") or len(keys) != len(kinds):
            raise ValueError
        return Cursor(direction, tuple(_key(key, kind) for key, kind in zip(keys, kinds, strict=True)))
    except (ValueError, TypeError, OverflowError, binascii.Error, RecursionError) as wrong:
        raise WrongFilter(
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
class Filters(Asked):
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


def readable(value: str) -> str:
    """Return ``value`` without halves of characters: JSON spells them, no answer or database holds one."""
    return value.encode("utf-8", "replace").decode()


def _encode(pairs: Mapping[str, str]) -> str:
    return urlencode(pairs, quote_via=quote, safe=":,")


def read_filters(
    arguments: MultiDict[str, str],
    fields: Mapping[str, Field],
    *,
    largest: int = LARGEST_PAGE,
    is_form: bool = False,
) -> Filters:
    """Return the filters in ``arguments``; a field named ``payload.`` reads every ``payload.<path>``.

    Where a form may have sent them (``is_form``) empty values count as not given. Raises WrongFilter with a
    sentence.
    """
    pairs = [pair for pair in arguments.items(multi=True) if pair[0] not in ("cursor", "limit")]
    try:
        asked = read_pairs(pairs, fields, is_form=is_form)
    except FilterError as wrong:
        raise WrongFilter(str(wrong)) from wrong
    return Filters(
        asked.values,
        asked.texts,
        arguments.get("cursor") or None,
        _page_size(arguments.get("limit"), largest),
    )


def _page_size(value: str | None, largest: int) -> int:
    if largest == LARGEST_EXPORT and not value:
        return LARGEST_EXPORT
    if not value:
        return PAGE_SIZE
    try:
        return int(whole(1, LARGEST_PAGE).read(value))
    except ValueError as wrong:
        raise WrongFilter(
            f"The limit is “{value[:100]}”; it must be a whole number from 1 to {LARGEST_PAGE}."
        ) from wrong


def from_request(fields: Mapping[str, Field] | None = None) -> Filters:
    """Return the filters of the current request; a page without filters passes none and refuses all.

    Forms lead to pages: a program, which asks for their twins, leaves out what it does not mean.
    """
    largest = LARGEST_EXPORT if request.path.endswith(".csv") else LARGEST_PAGE
    is_form = not request.path.endswith((".json", ".csv"))
    return read_here(request.args, fields or {}, largest=largest, is_form=is_form)


def read_here(
    arguments: MultiDict[str, str],
    fields: Mapping[str, Field],
    *,
    largest: int = LARGEST_PAGE,
    is_form: bool = False,
) -> Filters:
    """Return the filters in ``arguments``, whose times without an offset are in the operator's zone."""
    return read_filters(arguments, in_zone(fields, g.zone), largest=largest, is_form=is_form)


def read_whole(arguments: MultiDict[str, str], fields: Mapping[str, Field]) -> Filters:
    """Return the filters in ``arguments`` that mean all that match: neither a page of them nor so many.

    Raises WrongFilter.
    """
    for name in ("cursor", "limit"):
        if name in arguments:
            raise WrongFilter(
                f"“{name}” is for a page of a list; here a filter means all that match: leave it out."
            )
    return read_here(arguments, fields)


def read_text(query: str, fields: Mapping[str, Field]) -> Filters:
    """Return the filters of a query string such as ``status=dead&type=mail``. Raises WrongFilter."""
    return read_whole(MultiDict(parse_qsl(readable(query), keep_blank_values=True)), fields)
