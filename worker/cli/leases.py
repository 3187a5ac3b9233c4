"""``leases`` and ``release``: who runs what, whose lease is in danger, taking a run from a silent worker."""

from __future__ import annotations

import click

from worker import transitions
from worker.audit import terminal_actor
from worker.cli import reach, reading
from worker.cli.flags import Verb, reason_option
from worker.cli.kinds import RUN_ID
from worker.cli.printing import listing, verdicts

COLUMNS = ("id", "job_type", "attempt", "state", "seconds_left", "worker", "hostname", "pid", "started_at")


@click.command(cls=Verb)
def leases() -> None:
    """List running runs: renewed, silent (its worker was not heard for two heartbeats) or ended."""
    with reach.connection() as connection:
        now = reading.database_now(connection)
        listing(reading.leases(connection), COLUMNS, "Nothing runs.", as_of=now)


@click.command(cls=Verb)
@click.argument("ids", type=RUN_ID, nargs=-1, required=True)
@reason_option
def release(ids: tuple[int, ...], reason: str | None) -> int:
    """Take runs from a worker that is silent or whose lease has ended."""
    with reach.connection() as connection:
        return verdicts(
            [transitions.release_lease(connection, each, terminal_actor(), reason) for each in ids]
        )
