"""``workers``: the workers and their states; drain, undrain and stop."""

from __future__ import annotations

import click

from wakeboard.cli.connection import connect, database_now, read_rows
from wakeboard.cli.flags import CommandGroup
from wakeboard.cli.printing import help_with_states, print_table
from wakeboard.cli.verbs import add_verb
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
HELP = "List the workers and how they stand."


@click.group(cls=CommandGroup)
def workers() -> None:
    """Workers: list, drain, undrain, stop."""


@workers.command("list", help=help_with_states(HELP, worker_states.STATES), short_help=HELP)
@click.option("--all", "with_stopped", is_flag=True, help="Those that stopped over an hour ago as well.")
def list_(with_stopped: bool) -> None:
    """List the workers, silent ones first."""
    with connect() as connection:
        now = database_now(connection)
        rows = read_rows(connection, WORKERS, {"with_stopped": with_stopped})
    rows = [row | {"state": worker_states.NAMES[row.pop("rank")]} for row in rows]
    print_table(rows, COLUMNS, "No worker is there. Start one: wakeboard worker --app MODULE", as_of=now)


for _name, _move, _help in (
    ("drain", moves.drain, "Let workers claim nothing new; what they run goes on to its end."),
    ("undrain", moves.undrain, "Let workers that were asked to drain claim again."),
    (
        "stop",
        moves.stop,
        "Stop workers as SIGTERM would: they claim nothing new, and give back what does not end soon.",
    ),
):
    add_verb(
        workers, _name, _move, _help, click.argument("target", metavar="IDS...", nargs=-1, required=True)
    )
