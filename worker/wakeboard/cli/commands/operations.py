"""``operations``: one move on many runs from a terminal: begin, list, show, pause, resume, abort."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

import click

from wakeboard.bulk import control, rules
from wakeboard.bulk.start import ConfirmedOperation, check_confirmation, start
from wakeboard.cli import reach
from wakeboard.cli.commands.runs import read_filters
from wakeboard.cli.flags import CommandGroup, is_json, reason_option, settings
from wakeboard.cli.parameters import id_reader
from wakeboard.cli.printing import answer, cell, listing, verdicts
from wakeboard.cli.refusals import WrongUse
from wakeboard.cli.terminal import say, tell
from wakeboard.database.audit import terminal_actor

if TYPE_CHECKING:
    from wakeboard.bulk.matching import Preview

OPERATION_ID = click.argument("operation_id", metavar="ID", type=id_reader("an operation"))
COLUMNS = (
    "id",
    "status",
    "verb",
    "filter",
    "total",
    "done",
    "skipped",
    "failed",
    "actor",
    "created_at",
    "finished_at",
)
SHOWN = (
    "status", "verb", "filter", "total", "done", "asked", "skipped", "skips", "succeeded", "failed",
    "dropped", "per_minute", "stop_above_percent", "canary_run_id", "canary_outcome", "actor",
    "reason", "note", "as_of", "created_at", "finished_at",
)  # fmt: skip
OPERATIONS = """
SELECT id, status, verb, coalesce(nullif(filter ->> 'query', ''), 'chosen runs') AS filter, total, done,
    asked, skipped, skips, succeeded, failed, dropped, per_minute, stop_above_percent, canary, canary_run_id,
    canary_outcome, actor, reason, note, as_of, created_at, finished_at
FROM wakeboard.operations
"""


@click.group(cls=CommandGroup)
def operations() -> None:
    """One move on many runs: start, list, show, pause, resume, abort."""


@operations.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="How many, newest first [50].")
def list_(limit: int) -> None:
    """List operations, newest first."""
    with reach.connection() as connection:
        now = reach.database_now(connection)
        rows = reach.rows(connection, f"{OPERATIONS} ORDER BY id DESC LIMIT %(limit)s", {"limit": limit})
        listing(rows, COLUMNS, "There is no operation.", as_of=now)


@operations.command()
@OPERATION_ID
def show(operation_id: int) -> None:
    """Show how far an operation is, and how the moved runs ended."""
    with reach.connection() as connection:
        found = reach.one(connection, f"{OPERATIONS} WHERE id = %(id)s", {"id": operation_id})
    if found is None:
        raise WrongUse(control.missing(operation_id).message)
    _print(found)


def _print(found: reach.Row) -> None:
    if is_json():
        answer(found, "")
        return
    zone = ZoneInfo(settings().timezone)
    say(f"Operation {found['id']}")
    for name in SHOWN:
        if found[name] not in (None, {}):
            say(f"  {name + ':':<21}{cell(found[name], zone, 500)}")


@operations.command("start")
@click.argument("verb", type=click.Choice(tuple(rules.VERB_MOVES)))
@click.argument("lines", metavar="FILTER…", nargs=-1, required=True)
@click.option("--per-minute", type=click.IntRange(1, rules.FASTEST), help="At most so many a minute.")
@click.option("--canary", is_flag=True, help="One run first; the others wait for it to succeed.")
@click.option("--stop-above", type=click.IntRange(0, 99), help="Stop when more than so many % fail again.")
@click.option(
    "--also", multiple=True, type=click.Choice(rules.INCLUDABLE), help="Take what is left by default."
)
@click.option(
    "--confirm", help=f"The number of runs, which has to match; needed for more than {rules.TYPED_ABOVE}."
)
@click.option("--dry-run", is_flag=True, help="Say what would happen to how many, and do nothing.")
@reason_option
def start_(
    verb: str,
    lines: tuple[str, ...],
    per_minute: int | None,
    canary: bool,
    stop_above: int | None,
    also: tuple[str, ...],
    confirm: str | None,
    dry_run: bool,
    reason: str | None,
) -> int:
    """Begin to retry, cancel or run again all runs that match FILTER now.

    FILTER is what the box on the page of runs takes: 'status:dead type:mail since:24h'. Workers move
    the runs.
    """
    # It brings SQLAlchemy along, which no other command of this file needs.
    from wakeboard.bulk import matching

    if len(lines) > 1 and not all(line.strip() for line in lines):
        # Such as an unset variable of a shell, which was to narrow the others.
        raise WrongUse("One FILTER is empty: give it a value, or leave it out. Nothing was changed.")
    wanted = read_filters(lines, ())
    if not wanted:
        raise WrongUse("Say which runs: a filter such as 'status:dead type:mail since:24h'.")
    with reach.connection() as connection:
        now = reach.database_now(connection)
        found = matching.preview(connection, verb, wanted, now, also)
        _tell(found)
        if dry_run:
            return 0
        if found.moves == 0:
            tell("No run that matches can be moved by this verb now.")
            return 1
        if wrong := check_confirmation(found.moves, confirm):
            raise WrongUse(f"{wrong} Say --confirm {found.moves}.")
        query = urlencode(wanted.texts, quote_via=quote, safe=":,")
        asked = ConfirmedOperation(verb, query, now, found.moves, also, per_minute, stop_above, canary)
        return verdicts([start(connection, asked, found.matched.ids, terminal_actor(), reason)])


def _tell(found: Preview) -> None:
    """Say what would happen, on standard error: the answer is the operation."""
    states = ", ".join(f"{runs} {state}" for state, runs in found.states.items())
    tell(f"{found.verb}: {found.moves} runs" + (f" ({states})." if states else "."))
    for each in found.skipped:
        why = each.status if each.why == "state" else rules.SKIP_REASONS[each.why]
        tell(f"  left: {each.runs}{'+' if each.has_more else ''} {why}")
    if not found.matched.is_all:
        tell("  These are the newest; more match, or were not looked at.")


@operations.command()
@OPERATION_ID
@reason_option
def pause(operation_id: int, reason: str | None) -> int:
    """Move no further run until it is resumed."""
    with reach.connection() as connection:
        return verdicts([control.pause(connection, operation_id, terminal_actor(), reason)])


@operations.command()
@OPERATION_ID
@reason_option
def resume(operation_id: int, reason: str | None) -> int:
    """Let it go on where it was paused."""
    with reach.connection() as connection:
        return verdicts([control.resume(connection, operation_id, terminal_actor(), reason)])


@operations.command()
@OPERATION_ID
@reason_option
def abort(operation_id: int, reason: str | None) -> int:
    """End it here: what was moved stays moved, the others are left as they are."""
    with reach.connection() as connection:
        return verdicts([control.abort(connection, operation_id, terminal_actor(), reason)])
