"""``effects``: unconfirmed effects of ``once()``, and settling them."""

from __future__ import annotations

import click

from wakeboard.cli.connection import connect
from wakeboard.cli.flags import CommandGroup, reason_option
from wakeboard.cli.parameters import id_reader, read_run_id
from wakeboard.cli.printing import print_answers, print_query
from wakeboard.database.audit import terminal_actor
from wakeboard.queue.effect_store import is_unconfirmed
from wakeboard.queue.effects import settle as settle_effect

COLUMNS = ("id", "key", "counts_for", "run_id", "job_type", "attempt", "created_at", "run_status")
UNCONFIRMED = f"""
SELECT e.id, e.key, e.scope, e.run_id, r.job_type, e.attempt, e.lease_epoch, e.status, e.created_at,
    CASE e.scope WHEN 'global' THEN 'every run' ELSE 'this run alone' END AS counts_for,
    r.status AS run_status
FROM wakeboard.effects AS e LEFT JOIN wakeboard.job_runs AS r ON r.id = e.run_id
WHERE {is_unconfirmed("e")} AND (%(run_id)s::bigint IS NULL OR e.run_id = %(run_id)s)
ORDER BY e.created_at DESC, e.id DESC LIMIT 1000
"""
# Word of the option → whether the effect happened; the page answers "settled as done", "… as not made".
HAPPENED = {"done": True, "not-made": False}


@click.group(cls=CommandGroup)
def effects() -> None:
    """Unconfirmed effects of once(): list, settle."""


@effects.command("list")
@click.option("--run", "run_id", type=read_run_id, metavar="ID", help="Of this run alone.")
def list_(run_id: int | None) -> None:
    """List effects that were begun and never confirmed, newest first."""
    print_query(UNCONFIRMED, COLUMNS, "Every effect is confirmed.", {"run_id": run_id})


@effects.command()
@click.argument("ids", type=id_reader("an effect"), nargs=-1, required=True)
@click.option(
    "--as",
    "word",
    type=click.Choice([*HAPPENED]),
    required=True,
    help="Whether it happened: look there first.",
)
@reason_option
def settle(ids: tuple[int, ...], word: str, reason: str | None) -> int:
    """Say of effects that they happened (done), or did not: then the run that asks for one next makes it."""
    with connect() as connection:
        return print_answers(
            [
                settle_effect(connection, each, terminal_actor(), happened=HAPPENED[word], reason=reason)
                for each in ids
            ]
        )
