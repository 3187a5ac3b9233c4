"""``leases`` and ``release``: running runs and their leases, taking a run from a silent worker."""

from __future__ import annotations

import click

from wakeboard.cli.connection import connect, database_now, read_rows
from wakeboard.cli.flags import LeafCommand, is_json
from wakeboard.cli.printing import help_with_states, print_table
from wakeboard.cli.terminal import print_text
from wakeboard.cli.verbs import make_run_verb
from wakeboard.core import leases as lease_sql
from wakeboard.core.leases import STATES, takeover

COLUMNS = (
    "id", "job_type", "attempt", "state", "seconds_left", "renewed_seconds_ago", "seen_seconds_ago", "worker",
    "hostname", "pid", "started_at",
)  # fmt: skip
REFUSED_COLUMNS = ("id", "job_type", "attempt", "worker", "refused_at", "refused_outcome")
LEASES = f"""
SELECT r.id, r.job_type, r.attempts AS attempt, r.locked_by AS worker, w.name AS worker_name, w.hostname,
    w.pid, r.started_at, r.locked_until, extract(epoch FROM r.locked_until - now())::float8 AS seconds_left,
    extract(epoch FROM now() - w.seen_at)::float8 AS seen_seconds_ago,
    extract(epoch FROM now() - ({lease_sql.RENEWED_AT}))::float8 AS renewed_seconds_ago,
    {lease_sql.STATE} AS state, {lease_sql.SECONDS} AS lease_seconds,
    {lease_sql.RENEWED_AT} AS renewed_at, {lease_sql.TAKEOVER_AT} AS takeover_at,
    {lease_sql.TAKERS} AS takers, r.cancel_requested_at
FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.workers AS w ON w.id = r.locked_by
LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
WHERE r.status = 'running' ORDER BY {lease_sql.RANK}, r.locked_until, r.id LIMIT 1000
"""
REFUSED = """
SELECT run_id AS id, job_type, attempt, worker_id AS worker, refused_at, refused_outcome
FROM wakeboard.job_attempts WHERE refused_at > now() - interval '24 hours'
ORDER BY refused_at DESC, run_id DESC LIMIT 1000
"""


HELP = "List running runs and how their leases stand."


@click.command(cls=LeafCommand, help=help_with_states(HELP, STATES), short_help=HELP)
@click.option("--refused", is_flag=True, help="The late answers of stale workers that were refused in 24 h.")
def leases(refused: bool) -> None:
    """List running runs, those in danger first, or late answers that were refused."""
    with connect() as connection:
        now = database_now(connection)
        refused_rows = read_rows(connection, REFUSED)
        if refused:
            print_table(refused_rows, REFUSED_COLUMNS, "No late answer was refused in 24 h.", as_of=now)
            return
        rows = read_rows(connection, LEASES)
    print_table(rows, COLUMNS, "Nothing runs.", as_of=now, refused_24h=len(refused_rows))
    if is_json():
        return
    if sentence := next(filter(None, (takeover(row["state"], row["takers"]) for row in rows)), None):
        print_text(sentence)
    if refused_rows:
        print_text(f"Late answers refused in 24 h: {len(refused_rows)} (wakeboard leases --refused).")


release = make_run_verb(
    "release", "lease.release", "Take runs from a worker that is silent or whose lease has ended."
)
