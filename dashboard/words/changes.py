"""What an audit row changed, in words: ``status failed → queued``. Pure: no database, no page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dashboard.redaction import redact

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
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.\d+)?(?:\+00:00|Z)")


def changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    """Return one phrase per difference, at most MOST and a word for the rest; secrets are hidden.

    Without ``after`` nothing was changed, or the thing is gone: the phrases say what it was.
    """
    old, new = redact(dict(before or {})), redact(dict(after or {}))
    if after is None:
        keys = [key for key, value in old.items() if value is not None]
    else:
        keys = [key for key in dict.fromkeys((*old, *new)) if key in new and old.get(key) != new[key]]
    if "status" in keys:
        # A move of the status moves the time as well: the status says it.
        keys = [key for key in keys if key != "run_at"]
    phrases = [f"{_name(k)} {_value(old[k])}" if after is None else _phrase(k, old, new) for k in keys]
    more = len(phrases) - MOST
    return phrases[:MOST] + ([f"and {more} more"] if more > 0 else [])


def _phrase(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if key in old:
        return f"{_name(key)} {_value(old[key])} → {_value(new[key])}"
    return _name(key) if new[key] is True else f"{_name(key)} {_value(new[key])}"


def _name(key: str) -> str:
    return WORDS.get(key, key.replace("_", " "))


def _value(value: Any) -> str:
    """Return a JSON value as people read it, at most LONGEST characters."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = _MOMENT.sub(r"\1 \2 UTC", text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
