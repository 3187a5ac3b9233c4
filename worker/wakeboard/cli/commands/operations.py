"""``operations``: one move on many runs: start, list, show, pause, resume, abort."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import click

from wakeboard.bulk import control, rules
from wakeboard.bulk.start import ConfirmedOperation, check_confirmation, start
from wakeboard.cli.commands.runs import read_filters
from wakeboard.cli.connection import connect, database_now, read_row
from wakeboard.cli.exceptions import WrongUse
from wakeboard.cli.flags import CommandGroup, is_json, reason_option
from wakeboard.cli.parameters import id_reader
from wakeboard.cli.printing import print_answers, print_fields, print_query, print_result
from wakeboard.cli.terminal import print_notice, print_text
from wakeboard.cli.verbs import add_verb
from wakeboard.database.audit import terminal_actor

if TYPE_CHECKING:
    from wakeboard.bulk.matching import Preview

OPERATION_ID = click.argument("target", metavar="ID", type=id_reader("an operation"))
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
    statement = f"{OPERATIONS} ORDER BY id DESC LIMIT %(limit)s"
    print_query(statement, COLUMNS, "There is no operation.", {"limit": limit})


@operations.command()
@OPERATION_ID
def show(target: int) -> None:
    """Show how far an operation is, and how the moved runs ended."""
    with connect() as connection:
        operation = read_row(connection, f"{OPERATIONS} WHERE id = %(id)s", {"id": target})
    if operation is None:
        raise WrongUse(control.missing(target).message)
    if is_json():
        print_result(operation, "")
    else:
        print_text(f"Operation {target}")
        print_fields({name: operation[name] for name in SHOWN if operation[name] != {}}, 500)


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
    # Imported here, because it loads SQLAlchemy, which no other command of this module needs.
    from wakeboard.bulk import matching

    if len(lines) > 1 and not all(line.strip() for line in lines):
        # Such as an unset shell variable, which was meant to narrow the others.
        raise WrongUse("One FILTER is empty: give it a value, or leave it out. Nothing was changed.")
    filters = read_filters(lines, ())
    if not filters:
        raise WrongUse("Say which runs: a filter such as 'status:dead type:mail since:24h'.")
    with connect() as connection:
        now = database_now(connection)
        preview = matching.preview(connection, verb, filters, now, also)
        _print_preview(preview)
        if dry_run:
            return 0
        if preview.moves == 0:
            print_notice("No run that matches can be moved by this verb now.")
            return 1
        if wrong := check_confirmation(preview.moves, confirm):
            raise WrongUse(f"{wrong} Say --confirm {preview.moves}.")
        query = urlencode(filters.texts, quote_via=quote, safe=":,")
        operation = ConfirmedOperation(verb, query, now, preview.moves, also, per_minute, stop_above, canary)
        return print_answers([start(connection, operation, preview.matched.ids, terminal_actor(), reason)])


def _print_preview(preview: Preview) -> None:
    """Print on standard error what would happen: the answer is the operation."""
    states = ", ".join(f"{runs} {state}" for state, runs in preview.states.items())
    print_notice(f"{preview.verb}: {preview.moves} runs" + (f" ({states})." if states else "."))
    for each in preview.skipped:
        why = each.status if each.why == "state" else rules.SKIP_REASONS[each.why]
        print_notice(f"  left: {each.runs}{'+' if each.has_more else ''} {why}")
    if not preview.matched.is_all:
        print_notice("  These are the newest; more match, or were not looked at.")


for _name, _move, _help in (
    ("pause", control.pause, "Move no further run until it is resumed."),
    ("resume", control.resume, "Let it go on where it was paused."),
    ("abort", control.abort, "End it here: what was moved stays moved, the others are left as they are."),
):
    add_verb(operations, _name, _move, _help, OPERATION_ID)
