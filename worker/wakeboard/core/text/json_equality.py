"""Equality of values as people and JSON see it: Python takes true for 1, and 1 for 1.0. Pure."""

from __future__ import annotations

import json


def is_same_json(one: object, other: object) -> bool:
    """Return whether two JSON values are written alike, whatever the order of their keys."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)


def is_same_value(one: object, other: object) -> bool:
    """Return whether two values of a column are the same: JSON as JSON, and a number whatever its kind."""
    is_plain = not any(isinstance(each, dict | list | bool) for each in (one, other))
    return bool(one == other) if is_plain else is_same_json(one, other)
