"""What an audit row changed, in words: ``status failed → queued``. Pure: no database, no page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache

from wakeboard.core.text.json_equality import is_same_value
from wakeboard.core.text.redaction import redact
from wakeboard_dashboard.text.formats import Row

# The word for a column where its name alone would not say it.
WORDS = {
    "run_at": "due",
    "locked_by": "held by",
    "max_running": "limit",
    "max_running_operator": "limit",
    "timeout_seconds": "timeout in seconds",
    "grace_seconds": "grace in seconds",
    "job_type": "type",
}
MOST = 6
LONGEST = 80
# Of a value in ``whole``: more than a command line and its environment take.
LONGEST_WHOLE = 4000
# Most rows of a log have the same few changes. Longer ones are not cached.
CACHE_SIZE, LONGEST_CACHED = 1000, 1000
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.\d+)?(?:\+00:00|Z)")


Values = Mapping[str, object] | None


class _Change:
    """A row before and after. Two are equal when they read the same: 1 and True differ."""

    __slots__ = ("after", "before", "text")

    def __init__(self, before: Values, after: Values) -> None:
        self.before, self.after = before, after
        self.text = repr((before, after))

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Change) and self.text == other.text


def describe_changes(before: Values, after: Values) -> tuple[str, ...]:
    """Return one phrase per difference, at most MOST, then how many more there are; secrets are hidden.

    Without ``after`` nothing was changed, or the thing is gone: the phrases say what it was.
    """
    change = _Change(before, after)
    return _cached_phrases(change) if len(change.text) <= LONGEST_CACHED else _phrases(change)


def describe_all_changes(before: Values, after: Values) -> tuple[str, ...]:
    """Return all phrases with whole values; nothing where ``describe_changes`` leaves nothing out."""
    change = _Change(before, after)
    if len(change.text) <= LONGEST:
        return ()
    phrases = _all(change, LONGEST_WHOLE)
    return () if phrases == list(describe_changes(before, after)) else tuple(phrases)


def redact_row(row: Row) -> dict[str, object]:
    """Return a row of the audit log, or some of its columns, as twins give it, secrets hidden."""
    return dict(row) | {name: redact(row[name]) for name in ("reason", "before", "after") if name in row}


def _phrases(change: _Change) -> tuple[str, ...]:
    phrases = _all(change, LONGEST)
    more = len(phrases) - MOST
    return (*phrases[:MOST], *([f"and {more} more"] if more > 0 else []))


def _all(change: _Change, longest: int) -> list[str]:
    """Return one phrase per difference, no value longer than ``longest``."""
    after = change.after
    old, new = redact(dict(change.before or {})), redact(dict(after or {}))
    if after is None:
        keys = [key for key, value in old.items() if value is not None]
    else:
        keys = [
            key
            for key in dict.fromkeys((*old, *new))
            if key in new and not is_same_value(old.get(key), new[key])
        ]
    if "status" in keys:
        # A change of the status changes run_at as well.
        keys = [key for key in keys if key != "run_at"]
    if after is None:
        return [f"{_name(key)} {_value(old[key], longest)}" for key in keys]
    return [_phrase(key, old, new, longest) for key in keys]


_cached_phrases = lru_cache(CACHE_SIZE)(_phrases)


def _phrase(key: str, old: Mapping[str, object], new: Mapping[str, object], longest: int) -> str:
    if key in old:
        return f"{_name(key)} {_value(old[key], longest)} → {_value(new[key], longest)}"
    return _name(key) if new[key] is True else f"{_name(key)} {_value(new[key], longest)}"


def _name(key: str) -> str:
    return WORDS.get(key, key.replace("_", " "))


def _value(value: object, longest: int) -> str:
    """Return a JSON value as people read it, at most ``longest`` characters."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = _MOMENT.sub(r"\1 \2 UTC", text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
