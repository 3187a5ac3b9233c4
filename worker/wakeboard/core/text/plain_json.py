"""Python's plain values as JSON: their encoder, and a search for the value that JSON has no form for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from wakeboard.core.text.sanitize import clean_text

Default = Callable[[Any], Any]
# A value that lies deeper, or behind so many others, is not searched for.
_MAX_DEPTH = 100
_MAX_VALUES = 100_000
_NAME_CHARACTERS = 40
_LEAVES = (str, int, float, bool, type(None))


def plain(value: Any) -> Any:
    """Return a plain form of a ``value`` that JSON has none for. Raises TypeError for all other types.

    Dates, times and datetimes are ISO text, a timedelta is seconds, Decimal and UUID are text, an Enum is
    its value, a dataclass an object of its fields, a set a list (in order where its members have one).
    """
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, set | frozenset):
        try:
            return sorted(value)
        except TypeError:
            return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class PlainEncoder(json.JSONEncoder):
    """A JSON encoder that writes what ``plain`` knows; for ``enqueue(…, encoder=PlainEncoder)``."""

    def default(self, o: Any) -> Any:
        """Return a plain form of ``o``. Raises TypeError where there is none."""
        return plain(o)


_RESULTS = PlainEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def result_text(value: Any) -> str:
    """Return a handler's result, or that of an effect, as JSON. Raises what its encoding raises."""
    return _RESULTS.encode(value)


def explain_json_error(value: Any, name: str, fallback: str, default: Default | None = None) -> str:
    """Return why ``value`` is no JSON: ``payload.customer.since is a datetime``.

    ``name`` stands for the whole, ``default`` is the encoder's function for values that JSON has no form for.
    Returns ``fallback`` where no single field is the cause.
    """
    try:
        return next(_FaultSearch(default or json.JSONEncoder().default).faults(value, name), fallback)
    except Exception:
        # A value of somebody else's class may raise anything when it is read.
        return fallback


class _FaultSearch:
    """Looks for what JSON has no form for, in at most _MAX_VALUES values."""

    def __init__(self, default: Default) -> None:
        self._default = default
        self._remaining = _MAX_VALUES

    def faults(self, value: Any, path: str, depth: int = 0) -> Iterator[str]:
        """Yield the fault of each part of ``value``, which is at ``path``."""
        self._remaining -= 1
        if depth > _MAX_DEPTH or self._remaining < 0:
            return
        if isinstance(value, dict):
            for key, part in value.items():
                if not isinstance(key, _LEAVES):
                    yield f"{path} has a key that is {_type_name(key)}, and the keys of an object are text"
                yield from self.faults(part, path + _path_step(key), depth + 1)
        elif isinstance(value, list | tuple):
            for index, part in enumerate(value):
                yield from self.faults(part, f"{path}[{index}]", depth + 1)
        elif isinstance(value, _LEAVES):
            try:
                json.dumps(value, allow_nan=False)
            except ValueError as wrong:
                yield f"{path} is {value}" if isinstance(value, float) else f"{path}: {wrong}"
        else:
            try:
                plain_form = self._default(value)
            except (TypeError, ValueError):
                yield f"{path} is {_type_name(value)}"
            else:
                yield from self.faults(plain_form, path, depth + 1)


def _path_step(key: object) -> str:
    name = clean_text(str(key), _NAME_CHARACTERS)
    return f".{name}" if name.isidentifier() else f"[{name!r}]"


def _type_name(value: object) -> str:
    name = clean_text(type(value).__name__, _NAME_CHARACTERS)
    return f"an {name}" if name[:1].lower() in "aeio" else f"a {name}"
