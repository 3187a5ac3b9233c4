"""What an audit row changed, in words: ``status failed → queued``. Pure: no database, no page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache

from wakeboard.core.text.json_equality import same_value
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
# The same few moves stand in most rows of a log. What is longer than this is put into words each time.
MOST_REMEMBERED, LONGEST_REMEMBERED = 1000, 1000
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.\d+)?(?:\+00:00|Z)")


Values = Mapping[str, object] | None


class _Change:
    """What a row was and what it became; two are equal that read the same, so that 1 is not yes."""

    __slots__ = ("after", "before", "text")

    def __init__(self, before: Values, after: Values) -> None:
        self.before, self.after = before, after
        self.text = repr((before, after))

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Change) and self.text == other.text


def describe_changes(before: Values, after: Values) -> tuple[str, ...]:
    """Return one phrase per difference, at most MOST and a word for the rest; secrets are hidden.

    Without ``after`` nothing was changed, or the thing is gone: the phrases say what it was.
    """
    change = _Change(before, after)
    return _remembered(change) if len(change.text) <= LONGEST_REMEMBERED else _phrases(change)


def describe_all_changes(before: Values, after: Values) -> tuple[str, ...]:
    """Return the phrases of ``changes``, all and with their values whole; nothing where those are all."""
    change = _Change(before, after)
    if len(change.text) <= LONGEST:
        return ()
    phrases = _all(change, LONGEST_WHOLE)
    return () if phrases == list(describe_changes(before, after)) else tuple(phrases)


def redact_row(row: Row) -> dict[str, object]:
    """Return a row of the audit log, or the columns of it that were read, as twins give it.

    The secrets in what it says are hidden.
    """
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
            if key in new and not same_value(old.get(key), new[key])
        ]
    if "status" in keys:
        # A move of the status moves the time as well: the status says it.
        keys = [key for key in keys if key != "run_at"]
    if after is None:
        return [f"{_name(key)} {_value(old[key], longest)}" for key in keys]
    return [_phrase(key, old, new, longest) for key in keys]


_remembered = lru_cache(MOST_REMEMBERED)(_phrases)


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
