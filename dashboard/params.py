"""The query string as one object: parsed once, checked, and able to write the links of a page.

Pure but for ``from_request``. Anything unknown or malformed is a WrongFilter, which the shell shows as a
400 with its sentence.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from flask import g, request
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import BadRequest

from worker.states import Status

PAGE_SIZE = 50
LARGEST_PAGE = 200
LARGEST_EXPORT = 10_000
LARGEST_ID = 2**63 - 1
LONGEST_TEXT = 500
# Pages add and take away months from a time, and show it in any zone.
EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)


class WrongFilter(BadRequest):
    """The query string asks for something that does not exist; ``description`` is a sentence."""


@dataclass(frozen=True, slots=True)
class Field:
    """How one filter is read: ``read`` raises ValueError, ``allowed`` completes "… must be …".

    ``many`` filters take several values, comma-separated or repeated, and read to a tuple.
    ``canonical`` writes the value back when the text alone would be ambiguous.
    """

    read: Callable[[str], Any]
    allowed: str
    many: bool = False
    canonical: Callable[[Any], str] | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time as filters say it: absolute, or so long before "now"."""

    absolute: datetime | None = None
    before_now: timedelta | None = None

    def at(self, now: datetime) -> datetime:
        """Return the moment as an aware datetime, ``now`` being the database's clock."""
        if self.absolute is not None:
            return self.absolute
        assert self.before_now is not None
        return now - self.before_now


def text(value: str) -> str:
    """Read free text of 1 to 500 characters."""
    if not 0 < len(value) <= LONGEST_TEXT:
        raise ValueError
    return value


def identifier(value: str) -> int:
    """Read a row id (1 … 2⁶³−1)."""
    if not re.fullmatch(r"[0-9]{1,19}", value) or not 0 < int(value) <= LARGEST_ID:
        raise ValueError
    return int(value)


def whole(low: int, high: int) -> Field:
    """Return a field for a whole number from ``low`` to ``high``."""

    def read(value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", value) or not low <= int(value) <= high:
            raise ValueError
        return int(value)

    return Field(read, f"a whole number from {low} to {high}")


def one_of(words: Sequence[str], *, many: bool = False) -> Field:
    """Return a field that takes one of ``words`` (or several of them)."""

    def read(value: str) -> str:
        if value not in words:
            raise ValueError
        return value

    return Field(read, ("some of " if many else "one of ") + ", ".join(words), many=many)


def moment(value: str, zone: tzinfo = UTC) -> Moment:
    """Read ``24h`` (ago; units s m h d w) or an ISO 8601 time; without an offset it is in ``zone``."""
    relative = re.fullmatch(r"([0-9]{1,6})([smhdw])", value)
    try:
        if relative:
            names = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
            span = timedelta(**{names[relative[2]]: int(relative[1])})
            if span > timedelta(days=36_500):
                raise ValueError
            return Moment(before_now=span)
        if not re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
            raise ValueError
        found = datetime.fromisoformat(value)
        found = (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
        if not EARLIEST <= found <= LATEST:
            raise ValueError
        return Moment(absolute=found)
    except OverflowError as wrong:
        raise ValueError from wrong


def _moment_text(value: Moment) -> str:
    """Return the text that means the same for every reader: relative as it is, absolute in UTC."""
    if value.before_now is not None:
        seconds = int(value.before_now.total_seconds())
        for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
            if seconds and seconds % size == 0:
                return f"{seconds // size}{unit}"
        return f"{seconds}s"
    assert value.absolute is not None
    return value.absolute.isoformat().replace("+00:00", "Z")


TEXT = Field(text, f"text of 1 to {LONGEST_TEXT} characters")
ID = Field(identifier, f"an id, a whole number from 1 to {LARGEST_ID}")
STATUS = one_of([status.value for status in Status], many=True)
MOMENT = Field(
    moment,
    "a time such as 2026-11-21T08:30Z, or an age such as 30m, 24h or 7d",
    canonical=_moment_text,
)


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
class Filters:
    """What a query string asks for. ``values`` are parsed, ``texts`` canonical, in the fields' order."""

    values: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    cursor_text: str | None = None
    limit: int = PAGE_SIZE

    def get(self, name: str, default: Any = None) -> Any:
        """Return the parsed value of filter ``name``, or ``default`` when it is not given."""
        return self.values.get(name, default)

    def starting(self, prefix: str) -> dict[str, Any]:
        """Return the values of filters named ``prefix…``, keyed by the rest of their names."""
        return {name[len(prefix) :]: value for name, value in self.values.items() if name.startswith(prefix)}

    def __bool__(self) -> bool:
        return bool(self.texts)

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


def read_filters(
    arguments: MultiDict[str, str], fields: Mapping[str, Field], *, largest: int = LARGEST_PAGE
) -> Filters:
    """Return the filters in ``arguments``; a field named ``payload.`` reads every ``payload.<path>``.

    Empty values count as not given (forms send them). Raises WrongFilter with a sentence.
    """
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name in sorted(arguments, key=lambda name: _order(name, fields)):
        given = [value for value in arguments.getlist(name) if value != ""]
        if name in ("cursor", "limit") or not given:
            continue
        values[name], texts[name] = _read(name, given, _field(name, fields))
    return Filters(
        values, texts, arguments.get("cursor") or None, _page_size(arguments.get("limit"), largest)
    )


def _order(name: str, fields: Mapping[str, Field]) -> tuple[int, str]:
    names = list(fields)
    return (names.index(name) if name in names else len(names), name)


def _field(name: str, fields: Mapping[str, Field]) -> Field:
    prefix = name.split(".")[0] + "."
    found = None if name == prefix else fields.get(name) or fields.get(prefix)
    if found is None:
        known = ", ".join(f"{each}<path>" if each.endswith(".") else each for each in fields) or "none"
        raise WrongFilter(f"There is no filter “{name[:100]}” here. Filters of this page: {known}.")
    return found


def _read(name: str, given: list[str], how: Field) -> tuple[Any, str]:
    if not how.many and len(given) > 1:
        raise WrongFilter(f"The filter “{name}” is given {len(given)} times; give it once.")
    parts = [part for value in given for part in value.split(",") if part] if how.many else given
    try:
        if any("\0" in part for part in parts):
            raise ValueError
        read = [how.read(part) for part in parts]
    except (ValueError, KeyError) as wrong:
        raise WrongFilter(
            f"The filter “{name}” is “{','.join(parts)[:100]}”; it must be {how.allowed}."
        ) from wrong
    if how.many:
        return tuple(dict.fromkeys(read)), ",".join(dict.fromkeys(parts))
    return read[0], how.canonical(read[0]) if how.canonical else parts[0]


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
    """Return the filters of the current request; a page without filters passes none and refuses all."""
    largest = LARGEST_EXPORT if request.path.endswith(".csv") else LARGEST_PAGE
    here = {
        name: replace(how, read=partial(moment, zone=g.zone)) if how.read is moment else how
        for name, how in (fields or {}).items()
    }
    return read_filters(request.args, here, largest=largest)
