"""``schedule``: schedules and their next fires."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import click

from wakeboard.cli.commands.types import require_type
from wakeboard.cli.connection import connect, database_now, read_row
from wakeboard.cli.exceptions import WrongUse
from wakeboard.cli.flags import CommandGroup, is_json, reason_option
from wakeboard.cli.parameters import read_duration, read_json_object, read_moment_or_day
from wakeboard.cli.printing import print_answers, print_query, print_result, print_table
from wakeboard.cli.terminal import print_text
from wakeboard.cli.verbs import add_verb
from wakeboard.core.builtin_payloads import COMMAND_TYPE, command_type, command_user
from wakeboard.core.time.cron import Cron
from wakeboard.core.time.zones import check_timezone
from wakeboard.database.audit import terminal_actor
from wakeboard.queue import definitions
from wakeboard.queue.definitions import Definition
from wakeboard.schedules.next_fires import FIRES
from wakeboard.schedules.next_fires import preview as preview_of

COLUMNS = (
    "name",
    "state",
    "schedule",
    "timezone",
    "job_type",
    "next_fire_at",
    "last_fire_at",
    "misfire",
    "overlap",
)
LIST = """
SELECT name,
    CASE WHEN NOT enabled THEN 'paused' WHEN error IS NOT NULL THEN 'error' ELSE 'enabled' END AS state,
    schedule, timezone, job_type, payload, next_fire_at, last_fire_at, misfire, grace_seconds, overlap,
    max_attempts, timeout_seconds, priority, enabled, error, created_at, updated_at
FROM wakeboard.job_definitions ORDER BY name
"""
ONE = "SELECT schedule, timezone, enabled FROM wakeboard.job_definitions WHERE name = %(name)s"
MOST_FIRES = 1000


@click.group(cls=CommandGroup)
def schedule() -> None:
    """Schedules: add, list, preview, run, pause, resume, remove."""


@schedule.command()
@click.argument("name")
@click.option("--type", "job_type", required=True, metavar="TYPE", help="The job type to run.")
@click.option("--user", metavar="NAME", help="Run the command as this OS user alone (--type command).")
@click.option("--cron", required=True, metavar="TEXT", help="When, such as '30 2 * * *' or @daily.")
@click.option(
    "--timezone", default="UTC", metavar="ZONE", help="Whose wall clock, such as Europe/Paris [UTC]."
)
@click.option("--payload", metavar="JSON", help="A JSON object, @FILE, or - for standard input.")
@click.option(
    "--misfire",
    type=click.Choice(["one", "all", "none"]),
    default="one",
    help="Fires missed: make up for… [one]",
)
@click.option(
    "--grace",
    type=read_duration,
    metavar="DURATION",
    default=60,
    help="Late by at most this is not missed [60s].",
)
@click.option(
    "--overlap",
    type=click.Choice(["skip", "allow", "wait"]),
    default="skip",
    help="While the last run has not ended [skip].",
)
@click.option("--max-attempts", type=click.IntRange(1, 2**31 - 1), help="Instead of the type's own.")
@click.option("--timeout", type=read_duration, metavar="DURATION", help="Instead of the type's own.")
@click.option("--priority", type=click.IntRange(0, 4), default=2, help="0 (first) to 4 (last) [2].")
@click.option("--new-type", is_flag=True, help="Allow a type that no worker has registered yet.")
@reason_option
def add(
    name: str, job_type: str, user: str | None, cron: str, timezone: str, payload: str | None, misfire: str,
    grace: float, overlap: str, max_attempts: int | None, timeout: float | None, priority: int,
    new_type: bool, reason: str | None,
) -> int:  # fmt: skip
    """Create or change a schedule; says created, changed or unchanged."""
    if user is not None:
        if job_type != COMMAND_TYPE:
            raise WrongUse(f"--user goes with --type {COMMAND_TYPE}: other types run as their worker's user.")
        job_type = command_type(user)
    definition = Definition(
        name, job_type, cron, read_json_object(payload), timezone, misfire, round(grace), overlap,
        max_attempts, timeout, priority,
    )  # fmt: skip
    definition.check()
    with connect() as connection:
        # The type of a user's commands is valid before a worker has registered it.
        if not new_type and command_user(job_type) is None:
            require_type(connection, job_type)
        return print_answers([definitions.add(connection, definition, terminal_actor(), reason)])


@schedule.command("list")
def list_() -> None:
    """List schedules with their last and next fire."""
    print_query(LIST, COLUMNS, "There are no schedules.")


for _name, _move, _help in (
    ("pause", definitions.pause, "Stop a schedule's fires; runs that exist stay as they are."),
    ("resume", definitions.resume, "Let a schedule fire again, from now on."),
    ("run", definitions.run_now, "Enqueue one run now, beside the schedule."),
    ("remove", definitions.remove, "Remove a schedule; its runs and their history stay."),
):
    add_verb(schedule, _name, _move, _help)


@schedule.command()
@click.argument("name")
@click.option(
    "--from",
    "since",
    type=read_moment_or_day,
    metavar="TIME",
    help="From this time, or the beginning of this day, on [now].",
)
@click.option(
    "--to",
    "until",
    type=read_moment_or_day,
    metavar="TIME",
    help="Up to this time, or the beginning of this day [ten fires].",
)
def preview(name: str, since: datetime | date | None, until: datetime | date | None) -> None:
    """Print when a schedule will fire, and why where a fire is odd: clocks, missing days, either day.

    A day begins at midnight in the schedule's zone.
    """
    with connect() as connection:
        row = read_row(connection, ONE, {"name": name})
        now = database_now(connection)
    if row is None:
        raise WrongUse(f"There is no schedule '{name}'. See: wakeboard schedule list")
    zone = row["timezone"]
    try:
        check_timezone(zone)
    except ValueError as wrong:
        raise WrongUse(f"Schedule {name} cannot fire: {wrong}") from wrong
    start = now if since is None else _as_moment(since, zone)
    end = None if until is None else _as_moment(until, zone)
    if end is not None and end <= start:
        raise WrongUse("--to is not after --from.")
    fields = {"name": name, "timezone": zone, "enabled": row["enabled"]}
    if row["schedule"] is None:
        sentence = f"Schedule {name} has no time of its own: it runs when asked to."
        print_result({**fields, "description": None, "items": []}, sentence)
        return
    cron = Cron.parse(row["schedule"])
    # A moment before, so that a fire exactly at --from is included.
    fires = preview_of(
        cron, zone, start - timedelta(microseconds=1), until=end, most=FIRES if end is None else MOST_FIRES
    )
    items = [
        {"at": fire.at, "local": fire.local.isoformat(sep=" ", timespec="seconds"), "note": fire.note}
        for fire in fires
    ]
    if not is_json():
        paused = "" if row["enabled"] else " It is paused."
        print_text(f"{cron.text} in {zone}: {cron.describe()}.{paused}")
    print_table(
        items, ("at", "local", "note"), "It does not fire in this time.", 500,
        **fields, description=cron.describe(),
    )  # fmt: skip


def _as_moment(value: datetime | date, zone: str) -> datetime:
    """Return a time as it is, a day as its beginning in ``zone``."""
    if isinstance(value, datetime):
        return value
    return datetime(value.year, value.month, value.day, tzinfo=ZoneInfo(zone))
