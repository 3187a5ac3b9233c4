"""``types``: what may run, and how many at once over all workers."""

from __future__ import annotations

from copy import copy
from datetime import datetime, timedelta

import click

from wakeboard.cli import reach
from wakeboard.cli.flags import CommandGroup, reason_option
from wakeboard.cli.parameters import read_end
from wakeboard.cli.printing import listing, verdicts
from wakeboard.cli.refusals import WrongUse
from wakeboard.core.leases import IS_HEARD
from wakeboard.database.audit import terminal_actor
from wakeboard.queue import pause_all
from wakeboard.queue import types as moves
from wakeboard.queue.manual_enqueue import near
from wakeboard.reporting import worker_states

COLUMNS = (
    "name",
    "state",
    "paused_until",
    "running",
    "max_running",
    "workers",
    "max_attempts",
    "timeout_seconds",
    "backoff",
    "keep_succeeded_days",
    "keep_dead_days",
    "seen_at",
)
TYPES = f"""
SELECT t.name, CASE WHEN t.paused_at IS NULL THEN 'active' ELSE 'paused' END AS state,
    (SELECT count(*) FROM wakeboard.job_runs AS b
        WHERE b.job_type = t.name AND b.status = 'running') AS running,
    coalesce(t.max_running_operator, t.max_running) AS max_running, t.max_running AS max_running_code,
    t.max_running_operator, t.max_attempts, t.timeout_seconds, t.lease_seconds, t.backoff, t.schedule,
    here.workers, here.claiming_workers, here.draining_workers,
    t.paused_at, t.paused_by, t.paused_reason, t.paused_until,
    t.keep_succeeded_days, t.keep_dead_days, t.seen_at
FROM wakeboard.job_types AS t
CROSS JOIN LATERAL (
    SELECT count(*) AS workers, count(*) FILTER (WHERE {worker_states.is_claiming("w")}) AS claiming_workers,
        count(*) FILTER (WHERE {worker_states.is_draining("w")}) AS draining_workers
    FROM wakeboard.workers AS w WHERE {IS_HEARD} AND t.name = ANY(w.job_types)
) AS here ORDER BY t.name
"""


@click.group(cls=CommandGroup)
def types() -> None:
    """Job types: list, pause, resume, pause-all, resume-all, limit, retention."""


@types.command("list")
def list_() -> None:
    """List job types with their policy."""
    with reach.connection() as connection:
        now = reach.database_now(connection)
        listing(reach.rows(connection, TYPES), COLUMNS, "No worker has registered a type yet.", as_of=now)


@types.command()
@click.argument("name")
@click.option(
    "--until",
    type=read_end,
    metavar="TIME",
    help="End by itself then, or after a duration such as 2h, or never.",
)
@reason_option
def pause(name: str, until: datetime | float | str | None, reason: str | None) -> int:
    """Claim no more runs of a type; what runs goes on. Once more with --until moves the end."""
    with reach.connection() as connection:
        end: datetime | moves.Same | None = "same" if until is None else _moment_of(connection, until)
        return verdicts([moves.pause(connection, name, terminal_actor(), reason, until=end)])


def _moment_of(connection: reach.Connection, until: datetime | float | str | None) -> datetime | None:
    """Return when a pause ends, as ``read_end`` reads it: None for one that lasts until it is resumed."""
    if isinstance(until, float):
        return reach.database_now(connection) + timedelta(seconds=until)
    return until if isinstance(until, datetime) else None


@types.command()
@click.argument("name")
@reason_option
def resume(name: str, reason: str | None) -> int:
    """Claim runs of a type again."""
    with reach.connection() as connection:
        return verdicts([moves.resume(connection, name, terminal_actor(), reason)])


@types.command("pause-all")
@click.option(
    "--for",
    "--until",
    "until",
    type=read_end,
    metavar="TIME",
    help="End by itself after a duration such as 2h, or at a time.",
)
@reason_option
def hold(until: datetime | float | str | None, reason: str | None) -> int:
    """Pause all types that are not paused; what runs goes on. resume-all resumes those alone."""
    with reach.connection() as connection:
        end = _moment_of(connection, until)
        return verdicts([pause_all.hold(connection, terminal_actor(), reason, until=end)])


@types.command("resume-all")
@reason_option
def let_go(reason: str | None) -> int:
    """Resume the types that were paused together; what was paused by itself stays so."""
    with reach.connection() as connection:
        return verdicts([pause_all.let_go(connection, terminal_actor(), reason)])


@types.command()
@click.argument("name")
@click.argument("most", metavar="NUMBER|none")
@reason_option
def limit(name: str, most: str, reason: str | None) -> int:
    """Let at most NUMBER runs of a type run at once; `none` returns to the code's own limit."""
    if most != "none" and not (
        most.isascii() and most.isdigit() and int(most[:9]) <= moves.LARGEST_LIMIT and len(most) < 9
    ):
        raise WrongUse(f"The limit is {most[:60]!r}; allowed: 0 to {moves.LARGEST_LIMIT}, or none.")
    with reach.connection() as connection:
        value = None if most == "none" else int(most)
        return verdicts([moves.limit(connection, name, value, terminal_actor(), reason)])


DAYS = click.IntRange(1, moves.MOST_DAYS)


@types.command("retention")
@click.argument("name")
@click.option("--succeeded", type=DAYS, metavar="DAYS", help="Keep succeeded runs for so long.")
@click.option("--dead", type=DAYS, metavar="DAYS", help="Keep dead and cancelled runs for so long.")
@click.option("--default", "is_default", is_flag=True, help="Return what is not given to the settings' own.")
@reason_option
def keep(name: str, succeeded: int | None, dead: int | None, is_default: bool, reason: str | None) -> int:
    """Keep ended runs of a type for days of its own; what is not given stays as it is."""
    if succeeded is None and dead is None and not is_default:
        raise WrongUse("Say for how long: --succeeded DAYS, --dead DAYS, or --default for the settings' own.")
    rest: moves.Same | None = None if is_default else "same"
    with reach.connection() as connection:
        answer = moves.keep(
            connection,
            name,
            terminal_actor(),
            reason,
            succeeded_days=rest if succeeded is None else succeeded,
            dead_days=rest if dead is None else dead,
        )
        return verdicts([answer])


def _keep_earlier_names() -> None:
    """Let the first names of commands work, unlisted: scripts have them."""
    for name, command in (("hold", hold), ("let-go", let_go), ("keep", keep)):
        earlier = copy(command)
        earlier.name, earlier.hidden = name, True
        types.add_command(earlier)


_keep_earlier_names()


def require_type(connection: reach.Connection, name: str) -> None:
    """Raise WrongUse, naming what is near, unless a worker has ever registered the type ``name``."""
    if not name or not name.isprintable():
        raise WrongUse("A job type is text of 1 to 200 characters without control characters.")
    known = [
        str(row["name"]) for row in reach.rows(connection, "SELECT name FROM wakeboard.job_types ORDER BY 1")
    ]
    if name in known:
        return
    hint = near(name, known) if known else " No worker has registered any yet."
    raise WrongUse(
        f"There is no job type '{name}'.{hint} See: wakeboard types list. To enqueue it anyway: --new-type"
    )
