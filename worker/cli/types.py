"""``types``: what may run, and how many at once over all workers."""

from __future__ import annotations

import click

from worker.audit import terminal_actor
from worker.cli import reach, reading
from worker.cli.errors import Wrong
from worker.cli.flags import Noun, reason_option
from worker.cli.printing import listing, verdicts
from worker.transitions import types as moves

COLUMNS = (
    "name",
    "state",
    "running",
    "max_running",
    "workers",
    "max_attempts",
    "timeout_seconds",
    "backoff",
    "seen_at",
)


@click.group(cls=Noun)
def types() -> None:
    """Job types: list, pause, resume, limit."""


@types.command("list")
def list_() -> None:
    """List job types with their policy."""
    with reach.connection() as connection:
        now = reading.database_now(connection)
        listing(reading.types(connection), COLUMNS, "No worker has registered a type yet.", as_of=now)


@types.command()
@click.argument("name")
@reason_option
def pause(name: str, reason: str | None) -> int:
    """Claim no more runs of a type; what runs goes on."""
    with reach.connection() as connection:
        return verdicts([moves.pause(connection, name, terminal_actor(), reason)])


@types.command()
@click.argument("name")
@reason_option
def resume(name: str, reason: str | None) -> int:
    """Claim runs of a type again."""
    with reach.connection() as connection:
        return verdicts([moves.resume(connection, name, terminal_actor(), reason)])


@types.command()
@click.argument("name")
@click.argument("most", metavar="NUMBER|none")
@reason_option
def limit(name: str, most: str, reason: str | None) -> int:
    """Let at most NUMBER runs of a type run at once; `none` returns to the code's own limit."""
    if most != "none" and not (
        most.isascii() and most.isdigit() and int(most[:9]) <= 1_000_000 and len(most) < 9
    ):
        raise Wrong(f"The limit is {most[:60]!r}; allowed: 0 to 1000000, or none.")
    with reach.connection() as connection:
        value = None if most == "none" else int(most)
        return verdicts([moves.limit(connection, name, value, terminal_actor(), reason)])
