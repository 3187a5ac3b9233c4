"""``workers``: who claims runs and how they stand; asking one to drain, to claim again, or to stop."""

from __future__ import annotations

from collections.abc import Callable

import click

from wakeboard.cli import reach
from wakeboard.cli.flags import CommandGroup, reason_option
from wakeboard.cli.printing import listing, verdicts
from wakeboard.core.answer import Answer
from wakeboard.database.audit import Actor, terminal_actor
from wakeboard.queue import workers as moves
from wakeboard.reporting import worker_states

COLUMNS = (
    "state", "id", "name", "hostname", "pid", "running", "concurrency", "seen_seconds_ago", "version",
    "started_at", "job_types",
)  # fmt: skip
WORKERS = f"""
SELECT {worker_states.rank("w")} AS rank, w.id, w.name, w.hostname, w.pid, w.version, w.running,
    w.concurrency, w.job_types, w.is_tick, w.started_at, w.seen_at,
    extract(epoch FROM now() - w.seen_at)::float8 AS seen_seconds_ago,
    w.drain_requested_at, w.stop_requested_at, w.stopping_at, w.stopped_at
FROM wakeboard.workers AS w WHERE %(with_stopped)s OR {worker_states.is_recent("w")}
ORDER BY 1, w.id LIMIT 1000
"""
Move = Callable[[reach.Connection, str, Actor, str | None], Answer]


@click.group(cls=CommandGroup)
def workers() -> None:
    """Workers: list, drain, undrain, stop."""


def _explained() -> str:
    words = "; ".join(f"{state.name}: {state.meaning}" for state in worker_states.STATES)
    return f"List the workers and how they stand. {words[0].upper()}{words[1:]}."


@workers.command("list", help=_explained(), short_help="List the workers and how they stand.")
@click.option("--all", "with_stopped", is_flag=True, help="Those that stopped over an hour ago as well.")
def list_(with_stopped: bool) -> None:
    """List the workers, silent ones first."""
    with reach.connection() as connection:
        now = reach.database_now(connection)
        rows = reach.rows(connection, WORKERS, {"with_stopped": with_stopped})
    found = [row | {"state": worker_states.NAMES[row.pop("rank")]} for row in rows]
    listing(found, COLUMNS, "No worker is there. Start one: wakeboard worker --app MODULE", as_of=now)


def _ask(move: Move, ids: tuple[str, ...], reason: str | None) -> int:
    with reach.connection() as connection:
        return verdicts([move(connection, each, terminal_actor(), reason) for each in ids])


@workers.command()
@click.argument("ids", nargs=-1, required=True)
@reason_option
def drain(ids: tuple[str, ...], reason: str | None) -> int:
    """Let workers claim nothing new; what they run goes on to its end."""
    return _ask(moves.drain, ids, reason)


@workers.command()
@click.argument("ids", nargs=-1, required=True)
@reason_option
def undrain(ids: tuple[str, ...], reason: str | None) -> int:
    """Let workers that were asked to drain claim again."""
    return _ask(moves.undrain, ids, reason)


@workers.command()
@click.argument("ids", nargs=-1, required=True)
@reason_option
def stop(ids: tuple[str, ...], reason: str | None) -> int:
    """Stop workers as SIGTERM would: they claim nothing new, and give back what does not end soon."""
    return _ask(moves.stop, ids, reason)
