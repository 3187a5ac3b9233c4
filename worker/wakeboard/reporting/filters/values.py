"""Reads filters: pairs of name and text become checked values. Pure.

Anything unknown or malformed raises FilterError, whose text is a sentence for the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import partial
from typing import Any

from wakeboard.core.states import Status

LARGEST_ID = 2**63 - 1
LONGEST_TEXT = 500
# The steps of a payload.<path>.
MAX_STEPS = 50
# Pages add months to a time or subtract them, and show it in any zone.
EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)


class FilterError(ValueError):
    """A filter is unknown or malformed; ``str()`` is a sentence."""


@dataclass(frozen=True, slots=True)
class Field:
    """How one filter is read. ``read`` raises ValueError, or a FilterError that says more.

    ``allowed`` completes the sentence "… must be …". ``many`` filters take several values, comma-separated or
    repeated, and become a tuple. ``canonical`` writes the value back where its text alone is ambiguous.
    """

    read: Callable[[str], Any]
    allowed: str
    many: bool = False
    canonical: Callable[[Any], str] | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: ``absolute``, or so long ``before_now``."""

    absolute: datetime | None = None
    before_now: timedelta | None = None

    def at(self, now: datetime) -> datetime:
        """Return the moment as an aware datetime, ``now`` being the database's clock."""
        if self.absolute is not None:
            return self.absolute
        assert self.before_now is not None
        return now - self.before_now


@dataclass(frozen=True, slots=True)
class FilterValues:
    """The filters of a request by name, in the order of the fields: parsed, and as canonical texts."""

    values: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the parsed value of filter ``name``, ``default`` without one."""
        return self.values.get(name, default)

    def starting(self, prefix: str) -> dict[str, Any]:
        """Return the values of filters named ``prefix…``, keyed by the rest of their names."""
        return {name[len(prefix) :]: value for name, value in self.values.items() if name.startswith(prefix)}

    def __bool__(self) -> bool:
        return bool(self.texts)


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
        absolute = datetime.fromisoformat(value)
        absolute = (absolute if absolute.tzinfo else absolute.replace(tzinfo=zone)).astimezone(UTC)
        if not EARLIEST <= absolute <= LATEST:
            raise ValueError
        return Moment(absolute=absolute)
    except OverflowError as overflow:
        raise ValueError from overflow


def _moment_text(value: Moment) -> str:
    """Return the text of a moment that does not depend on a zone: an age, or a time in UTC."""
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


def in_zone(fields: Mapping[str, Field], zone: tzinfo) -> dict[str, Field]:
    """Return ``fields`` whose times without an offset are in ``zone``."""
    return {
        name: replace(field, read=partial(moment, zone=zone)) if field.read is moment else field
        for name, field in fields.items()
    }


def read_pairs(
    pairs: Iterable[tuple[str, str]], fields: Mapping[str, Field], *, is_form: bool = False
) -> FilterValues:
    """Return the filters of (name, text) ``pairs``; the field ``payload.`` reads every ``payload.<path>``.

    An empty text is refused: from an unset variable of a shell it would find everything. In the pairs of a
    form (``is_form``) it is a control that was left empty, and is ignored. Raises FilterError.
    """
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        if not (is_form and value == "" and name in fields):
            given.setdefault(name, []).append(value)
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name in sorted(given, key=lambda name: _order(name, fields)):
        values[name], texts[name] = _read(name, given[name], _field(name, fields))
    return FilterValues(values, texts)


def refuse_reversed(
    filters: FilterValues, now: datetime, what: str, names: tuple[str, str] = ("since", "until")
) -> None:
    """Raise FilterError where the first of ``names`` is not before the second: no ``what`` in between."""
    since, until = map(filters.get, names)
    if since and until and not since.at(now) < until.at(now):
        first, second = (f"“{name}” ({filters.texts[name]})" for name in names)
        raise FilterError(
            f"{first} is not before {second}: no {what} in between. An age such as 7d is earlier than 24h."
        )


def _order(name: str, fields: Mapping[str, Field]) -> tuple[int, str]:
    names = list(fields)
    return (names.index(name) if name in names else len(names), name)


def _field(name: str, fields: Mapping[str, Field]) -> Field:
    stem, _, path = name.partition(".")
    prefix = f"{stem}."
    if prefix in fields and not path:
        # As a field of its own "payload" would be one that no search reads: all runs would match.
        raise FilterError(f"“{name[:100]}” names nothing: write {prefix}<path>, such as {prefix}customer.id.")
    field = fields.get(prefix) or fields.get(name)
    if field is None:
        known = ", ".join(f"{each}<path>" if each.endswith(".") else each for each in fields) or "none"
        near = get_close_matches(name[:100], fields, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise FilterError(f"There is no filter “{name[:100]}” here.{hint} Filters of this page: {known}.")
    steps = name.count(".")
    if steps > MAX_STEPS:
        raise FilterError(f"“{prefix}” is followed by {steps} names; it must be at most {MAX_STEPS}.")
    return field


def _read(name: str, texts: list[str], field: Field) -> tuple[object, str]:
    """Return the value of a filter and its canonical text."""
    if not field.many and len(texts) > 1:
        raise FilterError(f"The filter “{name}” is given {len(texts)} times; give it once.")
    if "" in texts:
        raise FilterError(f"The filter “{name[:100]}” is empty: give it a value, or leave it out.")
    parts = [part for each in texts for part in each.split(",") if part] if field.many else texts
    try:
        # Commas alone are refused: without a value, the filter would find everything.
        if not parts or any("\0" in part for part in parts):
            raise ValueError
        values = [field.read(part) for part in parts]
    except FilterError:
        raise
    except (ValueError, KeyError) as malformed:
        raise FilterError(
            f"The filter “{name}” is “{','.join(texts)[:100]}”; it must be {field.allowed}."
        ) from malformed
    if field.many:
        return tuple(dict.fromkeys(values)), ",".join(dict.fromkeys(parts))
    return values[0], field.canonical(values[0]) if field.canonical else parts[0]
