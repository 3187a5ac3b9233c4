"""Output of commands: tables and sentences for people, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from wakeboard.cli.connection import connect, database_now, read_rows
from wakeboard.cli.flags import is_json, read_settings
from wakeboard.cli.terminal import print_notice, print_text
from wakeboard.config.log import escaped

if TYPE_CHECKING:
    from wakeboard.core.answer import Answer
    from wakeboard.core.leases import LeaseState
    from wakeboard.reporting.worker_states import WorkerState

MAX_WIDTH = 60


def print_result(value: Mapping[str, object], sentence: str) -> None:
    """Print ``value`` as one JSON object per line, or ``sentence`` for people."""
    if is_json():
        click.echo(json.dumps(dict(value), default=_plain))
    else:
        print_text(sentence)


def print_answers(answers: Sequence[Answer]) -> int:
    """Print the answers of a verb, one line each, and return the exit code.

    The code is 2 when a target does not exist (wrong use), else 1 when one was refused, else 0. Refusals go
    to standard error; in JSON to standard output like the rest. Where some of several were refused, a last
    line counts both.
    """
    for each in answers:
        if each.ok or is_json():
            print_result({**each.body(), "result": each.result}, each.message)
        else:
            print_notice(each.message)
    done = sum(each.ok for each in answers)
    if 1 < len(answers) != done and not is_json():
        print_notice(f"{done} of {len(answers)} done, {len(answers) - done} left as they are.")
    if any(each.result in ("missing", "invalid") for each in answers):
        return 2
    return 0 if all(each.ok for each in answers) else 1


def print_table(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    none: str,
    max_width: int = MAX_WIDTH,
    **more: object,
) -> None:
    """Print rows as an aligned table of ``columns``, or as ``{"items": […], …}``; ``none`` when empty."""
    if is_json():
        click.echo(json.dumps({**more, "items": list(rows)}, default=_plain))
        return
    if not rows:
        print_notice(none)
        return
    zone = ZoneInfo(read_settings().timezone)
    table = [[name.upper() for name in columns]] + [
        [cell(row[name], zone, max_width) for name in columns] for row in rows
    ]
    widths = [max(len(line[place]) for line in table) for place in range(len(columns))]
    numeric = [
        all(isinstance(row[name], (int, float)) or row[name] is None for row in rows) for name in columns
    ]
    for line in table:
        cells = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, numeric, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def print_query(
    statement: str, columns: Sequence[str], none: str, values: Mapping[str, object] | None = None
) -> None:
    """Print the rows of ``statement`` by ``print_table``; ``as_of`` in JSON is the database's clock."""
    with connect() as connection:
        now, rows = database_now(connection), read_rows(connection, statement, values)
    print_table(rows, columns, none, as_of=now)


def print_fields(fields: Mapping[str, object], max_width: int) -> None:
    """Print those of ``fields`` that are not None, a line each."""
    zone = ZoneInfo(read_settings().timezone)
    for name, value in fields.items():
        if value is not None:
            print_text(f"  {name + ':':<21}{cell(value, zone, max_width)}")


def help_with_states(sentence: str, states: Iterable[LeaseState | WorkerState]) -> str:
    """Return the help of a command: ``sentence``, then the name and meaning of each state."""
    meanings = "; ".join(f"{state.name}: {state.meaning}" for state in states)
    return f"{sentence} {meanings[0].upper()}{meanings[1:]}."


def cell(value: object, zone: ZoneInfo, max_width: int = MAX_WIDTH) -> str:
    """Return ``value`` as one short line of printable text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return format_moment(value, zone)
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1 else f"{value:.1f}".removesuffix(".0")
    if isinstance(value, list):
        value = ", ".join(str(each) for each in value)
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
    text = escaped(text)
    return text if len(text) <= max_width else text[: max_width - 1] + "…"


def format_moment(value: datetime, zone: ZoneInfo) -> str:
    """Return ``2026-11-21 09:24:49Z`` or, in another zone, with its offset: text that filters take back."""
    local = value.astimezone(zone)
    offset = local.strftime("%z")
    return local.strftime("%Y-%m-%d %H:%M:%S") + ("Z" if offset == "+0000" else f"{offset[:3]}:{offset[3:]}")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value)
