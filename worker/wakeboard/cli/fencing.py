"""``db fence``: put a restored database out of reach of the life that it left."""

from __future__ import annotations

import click

from wakeboard.cli import reach
from wakeboard.cli.flags import Verb, settings
from wakeboard.cli.printing import answer, tell
from wakeboard.cli.refusals import Failed
from wakeboard.database import db as databases
from wakeboard.database.audit import terminal_actor
from wakeboard.maintenance.backups.new_life import Before, begin_new_life, look

NOTHING_ELSE = "Payloads, results, schedules, people and tokens stay as they are."


@click.command(cls=Verb)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also while workers or dashboards are connected.")
def fence(yes: bool, force: bool) -> None:
    """Cut a restored database off from the workers of its old life; do it before anybody works on it."""
    url = reach.database_url(settings())
    with databases.connect(url, name="wakeboard fence", statement_timeout_seconds=0) as connection:
        _require_tables(connection)
        before = look(connection)
        if before.connected and not force:
            raise Failed(
                f"Programs of Wakeboard are connected ({', '.join(before.connected)}). Stop every worker and "
                "dashboard, then fence; --force if one cannot be stopped."
            )
        tell(_plan(before))
        if not yes and not click.confirm("Fence?", err=True):
            raise Failed("Nothing was done.")
        done = begin_new_life(connection, terminal_actor(), "database.fence", before.database)
    found = {
        "database": before.database, "fenced": before.unended, "running": done, "workers": before.workers,
        "sessions": before.sessions,
    }  # fmt: skip
    lost = f" {done:,} running runs have no worker: they count as lost and run again by their rule."
    answer(found, f"The database {before.database} is fenced.{lost if done else ''}")


def _require_tables(connection: reach.Connection) -> None:
    found, wanted = databases.current_revision(connection), databases.head_revision()
    if (mend := databases.way_to_head(found)) is not None:
        raise Failed(f"The schema is at revision {found or 'none'}; this version needs {wanted}. {mend}")


def _plan(before: Before) -> str:
    return "\n".join(
        (
            f"In the database {before.database} this will",
            f"- end the leases of {before.running:,} running runs: the first worker takes them as lost;",
            f"- refuse late answers to {before.unended:,} runs that have not succeeded;",
            f"- let new runs begin far above number {before.last_run:,}, so that none is given twice;",
            f"- mark {before.workers:,} workers as stopped, and end {before.sessions:,} sign-ins.",
            NOTHING_ELSE,
        )
    )
