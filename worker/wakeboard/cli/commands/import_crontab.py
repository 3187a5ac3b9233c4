"""``import-crontab``: the lines of a crontab become schedules of commands, each one reported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from wakeboard.cli.connection import Connection, connect, read_row
from wakeboard.cli.exceptions import WrongUse
from wakeboard.cli.flags import LeafCommand, is_json
from wakeboard.cli.printing import print_result
from wakeboard.cli.terminal import print_text
from wakeboard.core.builtin_payloads import (
    COMMAND_TYPE,
    LARGEST_EXIT_CODE,
    USER_PREFIX,
    command_type,
    workers_for,
)
from wakeboard.core.process import os_user
from wakeboard.core.time.zones import check_timezone
from wakeboard.database.audit import terminal_actor
from wakeboard.database.read import read_all
from wakeboard.queue import definitions
from wakeboard.queue.definitions import DefinitionError
from wakeboard.reporting import worker_states
from wakeboard.schedules.crontab import LARGEST_FILE, CrontabLine, parse_crontab, read_crontab

# Reasons of imports in the audit log. Imports of earlier versions kept no user, whatever the file.
USER_CRONTAB, SYSTEM_CRONTAB = "imported from a crontab of one user", "imported from a system crontab"
EARLIER_IMPORT = "imported from a crontab"
# A definition whose last import did not record whose crontab it was.
IS_OF_UNKNOWN_USER = f"""(d.job_type = '{COMMAND_TYPE}' AND '{EARLIER_IMPORT}' = (
    SELECT a.reason FROM wakeboard.audit_log AS a
    WHERE a.target_type = 'schedule' AND a.target_id = d.name AND a.action = 'schedule.edit'
        AND a.reason IN ('{EARLIER_IMPORT}', '{USER_CRONTAB}', '{SYSTEM_CRONTAB}')
    ORDER BY a.id DESC LIMIT 1
))"""
COMMANDS = f"""
SELECT d.name, d.job_type, d.payload->'ok_codes' AS ok_codes, {IS_OF_UNKNOWN_USER} AS is_of_unknown_user
FROM wakeboard.job_definitions AS d
WHERE d.job_type = '{COMMAND_TYPE}' OR starts_with(d.job_type, '{USER_PREFIX}')
ORDER BY d.id
"""
IS_SERVED = f"""
SELECT EXISTS (
    SELECT FROM wakeboard.workers AS w
    WHERE {worker_states.runs_type("w", "%(type)s")} AND {worker_states.is_claiming("w")}
) AS is_served
"""


# A line of the report, as JSON has it.
Item = dict[str, Any]


class ExistingCommand(NamedTuple):
    """A schedule of a command that exists already."""

    name: str
    job_type: str
    ok_codes: list[int] | None
    is_of_unknown_user: bool


class Import(NamedTuple):
    """How lines are imported; ``existing`` are the schedules that no line has matched yet."""

    connection: Connection
    reason: str
    ok_codes: list[int] | None
    existing: list[ExistingCommand]


def _codes(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> list[int] | None:
    if text is None:
        return None
    codes = [code.strip() for code in text.split(",")]
    if not all(code.isdecimal() and int(code) <= LARGEST_EXIT_CODE for code in codes):
        raise click.BadParameter(f"give exit codes from 0 to {LARGEST_EXIT_CODE}, such as --ok-codes 0,1")
    return [int(code) for code in codes]


@click.command(cls=LeafCommand)
@click.argument("file", metavar="FILE")
@click.option(
    "--system", is_flag=True, help="As /etc/crontab: the sixth field is the user who runs the command."
)
@click.option("--timezone", metavar="ZONE", help="Zone of its times [this machine's, as cron has it].")
@click.option(
    "--ok-codes",
    callback=_codes,
    metavar="0,1",
    help="Exit codes that are success, of lines where others than 0 are ordinary.",
)
@click.option("--dry-run", is_flag=True, help="Say what would happen; change nothing.")
def import_crontab(
    file: str, system: bool, timezone: str | None, ok_codes: list[int] | None, dry_run: bool
) -> int:
    """Make a schedule of each line of FILE (- for standard input); a second time nothing changes."""
    zone = timezone or machine_zone()
    try:
        text = _read(file)
        lines = parse_crontab(text, system=system, user=os_user.name(), timezone=zone)
    except ValueError as wrong:
        raise WrongUse(str(wrong)) from wrong
    with connect() as connection, connection.transaction(force_rollback=dry_run):
        existing = read_all(connection, COMMANDS, ExistingCommand)
        current = Import(connection, SYSTEM_CRONTAB if system else USER_CRONTAB, ok_codes, existing)
        items = [_import_line(current, line) for line in lines if line.kind in ("taken", "refused")]
        users = _users(connection, items) if system else []
    for line in lines:
        if line.kind == "environment" and line.note:
            items.append({"line": line.number, "result": "noted", "name": None, "says": line.note})
    _report(sorted(items, key=lambda item: int(item["line"])), zone, dry_run, users, system)
    is_imported = any(item["result"] not in ("refused", "noted") for item in items)
    return 0 if is_imported or not any(item["result"] == "refused" for item in items) else 1


def _read(file: str) -> str:
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as source:
            data = source.read(LARGEST_FILE + 1)
    except OSError as wrong:
        raise WrongUse(f"The crontab {file} cannot be read: {wrong.strerror}.") from wrong
    name = "Standard input" if file == "-" else file
    return read_crontab(data, name)


def _import_line(current: Import, line: CrontabLine) -> Item:
    if line.definition is None:
        unit = {} if line.unit is None else {"unit": line.unit}
        return {"line": line.number, "result": "refused", "name": None, "says": line.reason, **unit}
    name, codes = _name_and_codes(current, line)
    codes = current.ok_codes if line.ordinary_exit and current.ok_codes else codes
    payload = line.definition.payload | ({} if codes is None else {"ok_codes": codes})
    definition = replace(line.definition, name=name, payload=payload)
    refused = {"line": line.number, "result": "refused", "name": name}
    try:
        done = definitions.add(current.connection, definition, terminal_actor(), current.reason)
    except DefinitionError as wrong:
        return refused | {"says": str(wrong)}
    if not done.ok:
        return refused | {"says": done.message}
    says = f"{definition.schedule} {payload['argv'][-1]}"
    notes = "; ".join(note for note in (line.note, _exit_note(line, codes)) if note)
    return {
        "line": line.number,
        "result": done.status,
        "name": name,
        "timezone": definition.timezone,
        "user": line.user,
        "says": f"{says} ({notes})" if notes else says,
    }


def _name_and_codes(current: Import, line: CrontabLine) -> tuple[str, list[int] | None]:
    """Return the name of the schedule that a line has, or will have, and the exit codes of an existing one.

    A schedule of the line's user comes first, else one that was imported without a user.
    """
    assert line.definition is not None
    job_type = line.definition.job_type
    of_its_user = [each for each in current.existing if each.job_type == job_type]
    of_unknown_user = [each for each in current.existing if each.is_of_unknown_user]
    for commands in (of_its_user, of_unknown_user):
        for mark in line.suffixes:
            for command in commands:
                if command.name.endswith(mark):
                    current.existing.remove(command)
                    return command.name, command.ok_codes
    return line.definition.name, None


def _exit_note(line: CrontabLine, codes: Sequence[int] | None) -> str | None:
    """Return a note about a line whose program has other ordinary exit codes than 0, else None."""
    if line.ordinary_exit is None:
        return None
    program, code, why = line.ordinary_exit.program, line.ordinary_exit.code, line.ordinary_exit.why
    if codes is not None and code in codes:
        return f"exit codes {', '.join(map(str, codes))} are success"
    return (
        f"'{program}' ends with {code} when {why}, which is a failure here: if it is none, import with "
        f'--ok-codes 0,{code}, or add "ok_codes": [0, {code}] to its payload'
    )


def _users(connection: Connection, items: Sequence[Item]) -> list[Item]:
    """Return for each user whose lines were imported which worker runs them, and whether one does."""
    lines: dict[str, list[int]] = {}
    for item in items:
        if item.get("user"):
            lines.setdefault(item["user"], []).append(item["line"])
    users: list[Item] = []
    for user, numbers in lines.items():
        row = read_row(connection, IS_SERVED, {"type": command_type(user)})
        assert row is not None
        users.append({"user": user, "lines": numbers, "worker": workers_for([user]), **row})
    return users


def _report(items: list[Item], zone: str, dry_run: bool, users: list[Item], system: bool) -> None:
    imported = [item["line"] for item in items if item["result"] not in ("refused", "noted")]
    refused = [item["line"] for item in items if item["result"] == "refused"]
    is_used = any(item.get("timezone") == zone for item in items)
    if is_json():
        lines = {"active_in_cron": imported, "left_to_cron": refused, "users": users}
        print_result({"dry_run": dry_run, "timezone": zone if is_used else None, "items": items, **lines}, "")
        return
    for item in items:
        name = f" {item['name']}" if item["name"] else ""
        would = "would be " if dry_run and item["line"] in imported else ""
        line_zone = item.get("timezone", zone)
        says = item["says"] if line_zone == zone else f"{item['says']} [times of {line_zone}]"
        print_text(f"line {item['line']}: {would}{item['result']}{name}: {says}")
    for item in items:
        if "unit" in item:
            print_text(f"A unit of systemd for line {item['line']} (then: systemctl enable):\n{item['unit']}")
    if dry_run:
        print_text("Nothing was changed: this was a dry run.")
    if not items:
        print_text("There is no line with a command in it.")
    for user in users:
        runs = "a worker that runs them is there" if user["is_served"] else f"start {user['worker']}"
        print_text(f"As {user['user']}: {_numbers(user['lines'])}; {runs}.")
    if imported and not system:
        me = os_user.name()
        print_text(f"They run as the user of their worker: start one as {me} for commands of {me}.")
    if imported:
        times = f" Times are in the zone {zone}, where a line does not say another." if is_used else ""
        print_text(
            f"Still active in cron: {_numbers(imported)}. To keep cron from running the same once more, "
            f"comment out there (crontab -e).{times}"
        )
    if refused:
        print_text(f"Left to cron alone: {_numbers(refused)}.")


def _numbers(lines: list[int]) -> str:
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(str(number) for number in lines)}"


def machine_zone() -> str:
    """Return the name of this machine's time zone, which cron goes by; UTC when it has no name."""
    names = [os.environ.get("TZ", "").removeprefix(":")]
    for file in (Path("/etc/timezone"), Path("/etc/localtime")):
        try:
            is_link = file.name == "localtime"
            names.append(
                str(file.resolve()).partition("zoneinfo/")[2] if is_link else file.read_text().strip()
            )
        except OSError:
            continue
    for name in filter(None, names):
        if name in ("Etc/UTC", "Etc/UCT", "Etc/Zulu"):
            return "UTC"
        try:
            return check_timezone(name).key
        except ValueError:
            continue
    return "UTC"
