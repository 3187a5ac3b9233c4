"""How words of the command line are read: ids, JSON, moments, durations. Every refusal is a sentence."""

from __future__ import annotations

import json
import re
import sys
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wakeboard.cli.refusals import Wrong
from wakeboard.core.time.durations import parse_duration

if TYPE_CHECKING:
    from click import ParamType
else:

    class ParamType(click.ParamType):
        """click's own, which takes the type of its values between brackets only since 8.4."""

        def __class_getitem__(cls, _of_values):
            return cls


LARGEST_ID = 2**63 - 1
# No payload may be larger, whatever the settings; a file of gigabytes is not read first.
LARGEST_FILE = 8 * 1_048_576


class RowId(ParamType[int]):
    """The id of a row of the kind ``noun``."""

    name = "ID"

    def __init__(self, noun: str) -> None:
        self._noun = noun

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the id; fails for anything but a whole number from 1 to 2⁶³−1."""
        text = str(value)
        if not re.fullmatch(r"[0-9]{1,19}", text) or not 0 < int(text) <= LARGEST_ID:
            self.fail(
                f"{text[:60]!r} is not {self._noun} id: a whole number from 1 to {LARGEST_ID}.", param, ctx
            )
        return int(text)


class Duration(ParamType[float]):
    """A duration such as 5m, in seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        if isinstance(value, (int, float)):
            return float(value)
        try:
            return parse_duration(str(value))
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


class Moment(ParamType[datetime]):
    """A point in time with its zone, such as 2026-11-21T09:00+01:00."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return an aware datetime."""
        found = _iso(str(value))
        if found is None or found.tzinfo is None:
            self.fail(
                f"{str(value)[:60]!r} is not a time with a zone: write 2026-11-21T09:00Z or …T10:00+01:00.",
                param,
                ctx,
            )
        return found


class Day(ParamType[Any]):
    """A point in time with its zone, or a day, whose zone is the thing's that it is asked of."""

    name = "TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | date:
        """Return an aware datetime (a date as well, to Python), or a date."""
        found = _iso(str(value))
        # Near the ends of the calendar a zone's midnight is no moment any more.
        if found is not None and not 1900 <= found.year <= 9000:
            self.fail(f"{str(value)[:60]!r} is out of reach: give a year from 1900 to 9000.", param, ctx)
        if found is not None and len(str(value)) == len("2026-11-21"):
            return found.date()
        return MOMENT.convert(value, param, ctx)


class End(ParamType[Any]):
    """When something ends: a time with its zone, a duration from now in seconds, or 'never'."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return an aware datetime, seconds, or 'never'."""
        text = str(value).strip()
        if text == "never":
            return text
        if _iso(text) is not None:
            return MOMENT.convert(text, param, ctx)
        try:
            return float(parse_duration(text))
        except ValueError:
            self.fail(
                f"{text[:60]!r}: neither a time with a zone (2026-11-21T09:00Z), a duration (2h), nor never.",
                param,
                ctx,
            )


def _iso(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) else None
    except ValueError:
        return None


def json_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object in ``text``, in the file of ``@FILE``, or on standard input for ``-``.

    Raises Wrong when it is not one.
    """
    if text is None:
        return {}
    source = _read(text)
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as wrong:
        place = f" ({wrong.msg} at character {wrong.pos})" if isinstance(wrong, json.JSONDecodeError) else ""
        raise Wrong(
            f"The payload is not JSON{place}: write it like '{{\"invoice_id\": 812}}', "
            "@FILE or - for standard input."
        ) from wrong
    if not isinstance(value, dict):
        raise Wrong('The payload is not a JSON object; wrap it, for example {"value": …}.')
    return value


def _read(text: str) -> str:
    try:
        if text == "-":
            source = sys.stdin.buffer.read(LARGEST_FILE + 1)
        elif text.startswith("@"):
            with Path(text[1:]).open("rb") as file:
                source = file.read(LARGEST_FILE + 1)
        else:
            return text
    except OSError as wrong:
        raise Wrong(f"The payload's file {text[1:]} cannot be read: {wrong.strerror}.") from wrong
    if len(source) > LARGEST_FILE:
        raise Wrong("The payload has more than 8 MiB; store the data elsewhere and enqueue its id.")
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise Wrong("The payload is not UTF-8 text.") from wrong


RUN_ID = RowId("a run")
EFFECT_ID = RowId("an effect")
DURATION = Duration()
MOMENT = Moment()
DAY = Day()
END = End()
