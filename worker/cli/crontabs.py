"""``import-crontab``: the lines of a crontab become schedules of the type ``command``, each one reported."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from worker.audit import terminal_actor
from worker.cli import reach
from worker.cli.flags import Verb, is_json
from worker.cli.people import os_user
from worker.cli.printing import answer, say
from worker.cli.refusals import Wrong
from worker.crontab import Line, parse_crontab
from worker.transitions import definitions
from worker.transitions.definitions import Definition, DefinitionError
from worker.zones import check_timezone

LARGEST_FILE = 4 * 1_048_576
REASON = "imported from a crontab"


@click.command(cls=Verb)
@click.argument("file", metavar="FILE")
@click.option(
    "--system", is_flag=True, help="As /etc/crontab: the sixth field is a user; only yours are taken."
)
@click.option("--timezone", metavar="ZONE", help="Zone of its times [this machine's, as cron has it].")
@click.option("--dry-run", is_flag=True, help="Say what would happen; change nothing.")
def import_crontab(file: str, system: bool, timezone: str | None, dry_run: bool) -> int:
    """Make a schedule of each line of FILE (- for standard input); a second time nothing changes."""
    zone = timezone or machine_zone()
    try:
        lines = parse_crontab(_read(file), system=system, user=os_user(), timezone=zone)
    except ValueError as wrong:
        raise Wrong(str(wrong)) from wrong
    with reach.connection() as connection, connection.transaction(force_rollback=dry_run):
        items = [_take(connection, line) for line in lines if line.kind in ("taken", "refused")]
    for line in lines:
        if line.kind == "environment" and line.note:
            items.append({"line": line.number, "result": "noted", "name": None, "says": line.note})
    _report(sorted(items, key=lambda item: int(item["line"])), zone, dry_run)
    taken = any(item["result"] not in ("refused", "noted") for item in items)
    return 0 if taken or not any(item["result"] == "refused" for item in items) else 1


def _read(file: str) -> str:
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as source:
            text = source.read(LARGEST_FILE + 1)
    except OSError as wrong:
        raise Wrong(f"The crontab {file} cannot be read: {wrong.strerror}.") from wrong
    if len(text) > LARGEST_FILE:
        raise Wrong(f"{file} has more than 4 MiB; it is no crontab.")
    return text.decode("utf-8", "surrogateescape")


def _take(connection: reach.Connection, line: Line) -> dict[str, Any]:
    if line.definition is None:
        return {"line": line.number, "result": "refused", "name": None, "says": line.reason}
    try:
        definition = Definition(**asdict(line.definition))
        done = definitions.add(connection, definition, terminal_actor(), REASON)
    except DefinitionError as wrong:
        return {"line": line.number, "result": "refused", "name": line.definition.name, "says": str(wrong)}
    if not done.ok:
        return {"line": line.number, "result": "refused", "name": line.definition.name, "says": done.message}
    says = f"{line.definition.schedule} {line.definition.payload['argv'][-1]}"
    return {
        "line": line.number,
        "result": done.status,
        "name": line.definition.name,
        "timezone": line.definition.timezone,
        "says": f"{says} ({line.note})" if line.note else says,
    }


def _report(items: list[dict[str, Any]], zone: str, dry_run: bool) -> None:
    taken = [item["line"] for item in items if item["result"] not in ("refused", "noted")]
    refused = [item["line"] for item in items if item["result"] == "refused"]
    is_used = any(item.get("timezone") == zone for item in items)
    if is_json():
        lines = {"active_in_cron": taken, "left_to_cron": refused}
        answer({"dry_run": dry_run, "timezone": zone if is_used else None, "items": items, **lines}, "")
        return
    for item in items:
        name = f" {item['name']}" if item["name"] else ""
        would = "would be " if dry_run and item["line"] in taken else ""
        there = item.get("timezone", zone)
        says = item["says"] if there == zone else f"{item['says']} [times of {there}]"
        say(f"line {item['line']}: {would}{item['result']}{name}: {says}")
    if dry_run:
        say("Nothing was changed: this was a dry run.")
    if not items:
        say("There is no line with a command in it.")
    if taken:
        times = f" Times are in the zone {zone}, where a line does not say another." if is_used else ""
        say(
            f"Still active in cron: {_numbers(taken)}. To keep cron from running the same once more, comment "
            f"out there (crontab -e).{times}"
        )
    if refused:
        say(f"Left to cron alone: {_numbers(refused)}.")


def _numbers(lines: list[int]) -> str:
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(str(number) for number in lines)}"


def machine_zone() -> str:
    """Return the name of this machine's time zone, which cron goes by; UTC when it has no name."""
    places = [os.environ.get("TZ", "").removeprefix(":")]
    for file in (Path("/etc/timezone"), Path("/etc/localtime")):
        try:
            is_link = file.name == "localtime"
            places.append(
                str(file.resolve()).partition("zoneinfo/")[2] if is_link else file.read_text().strip()
            )
        except OSError:
            continue
    for name in filter(None, places):
        if name in ("Etc/UTC", "Etc/UCT", "Etc/Zulu"):
            return "UTC"
        try:
            return check_timezone(name).key
        except ValueError:
            continue
    return "UTC"
