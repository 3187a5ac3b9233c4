"""What commands answer: tables and sentences for people, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from wakeboard.cli.flags import is_json, settings
from wakeboard.cli.terminal import say, tell
from wakeboard.config.log import escaped

if TYPE_CHECKING:
    from wakeboard.core.answer import Answer

WIDEST = 60


def answer(value: Mapping[str, Any], sentence: str) -> None:
    """Print ``value`` as one JSON object per line, or ``sentence`` for people."""
    if is_json():
        click.echo(json.dumps(dict(value), default=_plain))
    else:
        say(sentence)


def verdicts(answers: Sequence[Answer]) -> int:
    """Print the answers of a verb, one line each, and return the exit code.

    2 when a target does not exist (wrong use), else 1 when one was not done, else 0.
    What was refused goes to standard error, in JSON to standard output like the rest. Where some of several
    were, a last line counts both.
    """
    for each in answers:
        if each.ok or is_json():
            answer({**each.body(), "result": each.result}, each.message)
        else:
            tell(each.message)
    done = sum(each.ok for each in answers)
    if 1 < len(answers) != done and not is_json():
        tell(f"{done} of {len(answers)} done, {len(answers) - done} left as they are.")
    if any(each.result in ("missing", "invalid") for each in answers):
        return 2
    return 0 if all(each.ok for each in answers) else 1


def listing(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], none: str, widest: int = WIDEST, **more: Any
) -> None:
    """Print rows as an aligned table of ``columns``, or as ``{"items": […], …}``; ``none`` when empty."""
    if is_json():
        click.echo(json.dumps({**more, "items": list(rows)}, default=_plain))
        return
    if not rows:
        tell(none)
        return
    zone = ZoneInfo(settings().timezone)
    table = [list(columns)] + [[cell(row[name], zone, widest) for name in columns] for row in rows]
    widths = [max(len(line[place]) for line in table) for place in range(len(columns))]
    numeric = [
        all(isinstance(row[name], (int, float)) or row[name] is None for row in rows) for name in columns
    ]
    for number, line in enumerate(table):
        if number == 0:
            line = [name.upper() for name in line]
        click.echo("  ".join(_padded(*parts) for parts in zip(line, widths, numeric, strict=True)).rstrip())


def _padded(text: str, width: int, is_number: bool) -> str:
    return text.rjust(width) if is_number else text.ljust(width)


def cell(value: Any, zone: ZoneInfo, widest: int = WIDEST) -> str:
    """Return ``value`` as one short line of printable text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return moment(value, zone)
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1 else f"{value:.1f}".removesuffix(".0")
    if isinstance(value, list):
        value = ", ".join(str(each) for each in value)
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
    text = escaped(text)
    return text if len(text) <= widest else text[: widest - 1] + "…"


def moment(value: datetime, zone: ZoneInfo) -> str:
    """Return ``2026-11-21 09:24:49Z`` or, in another zone, with its offset: text that filters take back."""
    local = value.astimezone(zone)
    offset = local.strftime("%z")
    return local.strftime("%Y-%m-%d %H:%M:%S") + ("Z" if offset == "+0000" else f"{offset[:3]}:{offset[3:]}")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value)
