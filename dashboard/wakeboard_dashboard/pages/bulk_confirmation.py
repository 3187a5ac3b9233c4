"""Reads from a request what was confirmed about a bulk operation: pace, canary, when to stop, the preview.

What is malformed is a 400 with a sentence; a preview that is too old is a 409.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from flask import abort, request

from wakeboard.bulk import rules
from wakeboard.reporting.filters.runs import FIELDS
from wakeboard_dashboard.web import params

# Arguments of the address that are no filters.
NO_FILTERS = ("also", "next", "reason", "run")
YES = ("1", "true", "on", "yes")


@dataclass(frozen=True, slots=True)
class Options:
    """How an operation moves its runs. Without any option a few runs are moved at once."""

    per_minute: int | None = None
    stop_above_percent: int | None = None
    canary: bool = False

    @property
    def is_any_set(self) -> bool:
        """Whether the runs have to be moved by an operation, however few they are."""
        return self.per_minute is not None or self.canary or self.stop_above_percent is not None


@dataclass(frozen=True, slots=True)
class ConfirmedPreview:
    """The preview that was confirmed: when it counted, how many runs, and the highest id among them."""

    as_of: datetime
    counted: int
    highest: int | None


def read_filters(text: str | None = None) -> params.Filters:
    """Return the filters of a query string, or of the address of this request. Raises FilterError."""
    if text is not None:
        return params.read_text(text, FIELDS)
    arguments = request.args.copy()
    for name in NO_FILTERS:
        arguments.poplist(name)
    return params.read_whole(arguments, FIELDS)


def read_also(text: str | None) -> tuple[str, ...]:
    """Return the kinds of runs that are included though left out by default: ``paused,unconfirmed``."""
    kinds = tuple(dict.fromkeys(part for part in (text or "").split(",") if part))
    if unknown := set(kinds) - set(rules.INCLUDABLE):
        allowed = ", ".join(rules.INCLUDABLE)
        abort(400, f"“{sorted(unknown)[0][:50]}” cannot be included; allowed: {allowed}.")
    return kinds


def read_options(given: Mapping[str, object]) -> Options:
    """Return the options in the fields of a form or a JSON object."""
    return Options(
        _whole(given, "per_minute", 1, rules.FASTEST),
        _whole(given, "stop_above_percent", 0, 99),
        str(given.get("canary") or "").strip().lower() in YES,
    )


def read_confirmed_preview(given: Mapping[str, object], now: datetime) -> ConfirmedPreview | None:
    """Return the preview in the fields of a request, None where it comes from none."""
    text = str(given.get("as_of") or "")
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None or moment > now:
            raise ValueError
        age = now - moment
    except (ValueError, OverflowError):
        abort(400, "as_of must be the time that the preview said, such as 2026-11-21T08:30:00Z.")
    if age > timedelta(seconds=rules.OLDEST_PREVIEW_SECONDS):
        abort(409, "These runs were counted over an hour ago: look again. Nothing was changed.")
    counted = _whole(given, "counted", 1, rules.MOST_RUNS)
    if counted is None:
        abort(400, "counted must come with as_of: how many runs the preview said.")
    return ConfirmedPreview(moment, counted, _whole(given, "highest", 1, params.LARGEST_ID))


def _whole(given: Mapping[str, object], name: str, low: int, high: int) -> int | None:
    value = given.get(name)
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text) or not low <= int(text) <= high:
        abort(400, f"{name} is “{text[:50]}”; it must be a whole number from {low} to {high}.")
    return int(text)
