"""``retry``, ``cancel``, ``again``: the operator's buttons in a terminal."""

from __future__ import annotations

import click

from wakeboard import queue as transitions
from wakeboard.cli import reach
from wakeboard.cli.flags import Verb, reason_option
from wakeboard.cli.kinds import RUN_ID, json_object
from wakeboard.cli.printing import verdicts
from wakeboard.database.audit import terminal_actor
from wakeboard.queue import selection


@click.command(cls=Verb)
@click.argument("ids", type=RUN_ID, nargs=-1, required=True)
@reason_option
def retry(ids: tuple[int, ...], reason: str | None) -> int:
    """Make runs due now: out of a backoff, or back from dead and cancelled."""
    with reach.connection() as connection:
        return verdicts(selection.each(connection, "run.retry", ids, terminal_actor(), reason))


@click.command(cls=Verb)
@click.argument("ids", type=RUN_ID, nargs=-1, required=True)
@reason_option
def cancel(ids: tuple[int, ...], reason: str | None) -> int:
    """Cancel runs: waiting and dead ones at once, running ones are asked to stop."""
    with reach.connection() as connection:
        return verdicts(selection.each(connection, "run.cancel", ids, terminal_actor(), reason))


@click.command(cls=Verb)
@click.argument("run_id", metavar="ID", type=RUN_ID)
@click.option(
    "--payload", metavar="JSON", help="Another payload: a JSON object, @FILE, or - for standard input."
)
@reason_option
def again(run_id: int, payload: str | None, reason: str | None) -> int:
    """Enqueue a new run like an ended one."""
    value = None if payload is None else json_object(payload)
    with reach.connection() as connection:
        return verdicts([transitions.run_again(connection, run_id, terminal_actor(), reason, value)])
