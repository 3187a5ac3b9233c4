"""Parsers of arguments: ids, JSON, times, durations. Every refusal is a sentence.

Those of one argument are given to click as ``type=``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

from click import BadParameter

from wakeboard.cli.exceptions import WrongUse
from wakeboard.core.time.durations import parse_duration

LARGEST_ID = 2**63 - 1
# Larger than any setting allows a payload to be; more of a file is not read.
LARGEST_FILE = 8 * 1_048_576


def id_reader(noun: str) -> Callable[[str], int]:
    """Return a parser of an id of ``noun``: a whole number from 1 to 2⁶³−1."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", text) or not 0 < int(text) <= LARGEST_ID:
            raise BadParameter(f"{text[:60]!r} is not {noun} id: a whole number from 1 to {LARGEST_ID}.")
        return int(text)

    return read


read_run_id = id_reader("a run")


def read_duration(text: str | float) -> float:
    """Return the seconds of a duration such as 5m; a default may be a number of them."""
    if isinstance(text, (int, float)):
        return float(text)
    try:
        return parse_duration(text)
    except ValueError as wrong:
        raise BadParameter(str(wrong)) from wrong


def read_moment(text: str) -> datetime:
    """Return a point in time with its zone, such as 2026-11-21T09:00+01:00."""
    moment = _iso(text)
    if moment is None or moment.tzinfo is None:
        raise BadParameter(
            f"{text[:60]!r} is not a time with a zone: write 2026-11-21T09:00Z or …T10:00+01:00."
        )
    return moment


def read_moment_or_day(text: str) -> datetime | date:
    """Return a point in time with its zone, or a day, to be read in the zone of a schedule."""
    moment = _iso(text)
    # Near the ends of the calendar the midnight of a zone is out of range.
    if moment is not None and not 1900 <= moment.year <= 9000:
        raise BadParameter(f"{text[:60]!r} is out of reach: give a year from 1900 to 9000.")
    if moment is not None and len(text) == len("2026-11-21"):
        return moment.date()
    return read_moment(text)


def read_end(text: str) -> datetime | float | str:
    """Return when something ends: a time with its zone, the seconds of a duration from now, or 'never'."""
    text = text.strip()
    if text == "never":
        return text
    if _iso(text) is not None:
        return read_moment(text)
    try:
        return float(parse_duration(text))
    except ValueError as wrong:
        raise BadParameter(
            f"{text[:60]!r}: neither a time with a zone (2026-11-21T09:00Z), a duration (2h), nor never."
        ) from wrong


def _iso(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) else None
    except ValueError:
        return None


def read_json_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object in ``text``, in the file of ``@FILE``, or on standard input for ``-``.

    Raises WrongUse when it is not one.
    """
    if text is None:
        return {}
    source = _read_source(text)
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as wrong:
        place = f" ({wrong.msg} at character {wrong.pos})" if isinstance(wrong, json.JSONDecodeError) else ""
        raise WrongUse(
            f"The payload is not JSON{place}: write it like '{{\"invoice_id\": 812}}', "
            "@FILE or - for standard input."
        ) from wrong
    if not isinstance(value, dict):
        raise WrongUse('The payload is not a JSON object; wrap it, for example {"value": …}.')
    return value


def _read_source(text: str) -> str:
    try:
        if text == "-":
            source = sys.stdin.buffer.read(LARGEST_FILE + 1)
        elif text.startswith("@"):
            with Path(text[1:]).open("rb") as file:
                source = file.read(LARGEST_FILE + 1)
        else:
            return text
    except OSError as wrong:
        raise WrongUse(f"The payload's file {text[1:]} cannot be read: {wrong.strerror}.") from wrong
    if len(source) > LARGEST_FILE:
        raise WrongUse("The payload has more than 8 MiB; store the data elsewhere and enqueue its id.")
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise WrongUse("The payload is not UTF-8 text.") from wrong
