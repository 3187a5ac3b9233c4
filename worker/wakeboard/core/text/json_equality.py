"""Whether two values are the same, to people and to JSON: Python takes true for 1, and 1 for 1.0. Pure."""

from __future__ import annotations

import json
from typing import Any


def same_json(one: Any, other: Any) -> bool:
    """Return whether two JSON values are written alike, whatever the order of their keys."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)


def same_value(one: Any, other: Any) -> bool:
    """Return whether two values of a column are the same: JSON as JSON, and a number whatever its kind."""
    is_plain = not any(isinstance(each, dict | list | bool) for each in (one, other))
    return bool(one == other) if is_plain else same_json(one, other)
