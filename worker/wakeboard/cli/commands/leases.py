"""``leases`` and ``release``: who runs what, whose lease is in danger, taking a run from a silent worker."""

from __future__ import annotations

import click

from wakeboard.cli import reach
from wakeboard.cli.flags import LeafCommand, is_json, reason_option
from wakeboard.cli.parameters import read_run_id
from wakeboard.cli.printing import listing, verdicts
from wakeboard.cli.reach import Row
from wakeboard.cli.terminal import say
from wakeboard.core import leases as lease_sql
from wakeboard.core.leases import STATES, takeover
from wakeboard.database.audit import terminal_actor
from wakeboard.queue import selection

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


def _explained() -> str:
    words = "; ".join(f"{state.name}: {state.meaning}" for state in STATES)
    return f"List running runs and how their leases stand. {words[0].upper()}{words[1:]}."


@click.command(cls=LeafCommand, help=_explained(), short_help="List running runs and how their leases stand.")
@click.option("--refused", is_flag=True, help="The late answers of stale workers that were refused in 24 h.")
def leases(refused: bool) -> None:
    """List running runs, those in danger first, or late answers that were refused."""
    with reach.connection() as connection:
        now = reach.database_now(connection)
        late = reach.rows(connection, REFUSED)
        if refused:
            listing(late, REFUSED_COLUMNS, "No late answer was refused in 24 h.", as_of=now)
            return
        found = reach.rows(connection, LEASES)
    listing(found, COLUMNS, "Nothing runs.", as_of=now, refused_24h=len(late))
    if not is_json():
        _conclude(found, len(late))


def _conclude(found: list[Row], late: int) -> None:
    """Say who takes over what is in danger, and that late answers were refused."""
    troubled = next((each for each in found if takeover(each["state"], each["takers"])), None)
    if troubled is not None:
        say(str(takeover(troubled["state"], troubled["takers"])))
    if late:
        say(f"Late answers refused in 24 h: {late} (wakeboard leases --refused).")


@click.command(cls=LeafCommand)
@click.argument("ids", type=read_run_id, nargs=-1, required=True)
@reason_option
def release(ids: tuple[int, ...], reason: str | None) -> int:
    """Take runs from a worker that is silent or whose lease has ended."""
    with reach.connection() as connection:
        return verdicts(selection.act_on_each(connection, "lease.release", ids, terminal_actor(), reason))
