"""``effects``: what was begun once and never confirmed, and a person's word on it."""

from __future__ import annotations

import click

from wakeboard.cli import reach
from wakeboard.cli.flags import CommandGroup, reason_option
from wakeboard.cli.parameters import id_reader, read_run_id
from wakeboard.cli.printing import listing, verdicts
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
# What a person may say, in the words of the page's answer: "settled as done", "settled as not made".
HAPPENED = {"done": True, "not-made": False}


@click.group(cls=CommandGroup)
def effects() -> None:
    """Unconfirmed effects of once(): list, settle."""


@effects.command("list")
@click.option("--run", "run_id", type=read_run_id, metavar="ID", help="Of this run alone.")
def list_(run_id: int | None) -> None:
    """List effects that were begun and never confirmed, newest first."""
    with reach.connection() as connection:
        now = reach.database_now(connection)
        found = reach.rows(connection, UNCONFIRMED, {"run_id": run_id})
        listing(found, COLUMNS, "Every effect is confirmed.", as_of=now)


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
    with reach.connection() as connection:
        return verdicts(
            [
                settle_effect(connection, each, terminal_actor(), happened=HAPPENED[word], reason=reason)
                for each in ids
            ]
        )
