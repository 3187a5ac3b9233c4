"""``types``: job types, their pauses, limits and retention."""

from __future__ import annotations

from copy import copy
from datetime import datetime, timedelta

import click

from wakeboard.cli.connection import Connection, connect, database_now, read_rows
from wakeboard.cli.exceptions import WrongUse
from wakeboard.cli.flags import CommandGroup, reason_option
from wakeboard.cli.parameters import read_end
from wakeboard.cli.printing import print_answers, print_query
from wakeboard.cli.verbs import add_verb
from wakeboard.core.leases import IS_ALIVE
from wakeboard.database.audit import terminal_actor
from wakeboard.queue import types as moves
from wakeboard.queue.manual_enqueue import suggest_names
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
    FROM wakeboard.workers AS w WHERE {IS_ALIVE} AND {worker_states.runs_type("w", "t.name")}
) AS here ORDER BY t.name
"""


@click.group(cls=CommandGroup)
def types() -> None:
    """Job types: list, pause, resume, pause-all, resume-all, limit, retention."""


@types.command("list")
def list_() -> None:
    """List job types with their policy."""
    print_query(TYPES, COLUMNS, "No worker has registered a type yet.")


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
    with connect() as connection:
        end: datetime | moves.Same | None = "same" if until is None else _pause_end(connection, until)
        return print_answers([moves.pause(connection, name, terminal_actor(), reason, until=end)])


def _pause_end(connection: Connection, until: datetime | float | str | None) -> datetime | None:
    """Return the end of a pause from what ``read_end`` returned, None for one without an end."""
    if isinstance(until, float):
        return database_now(connection) + timedelta(seconds=until)
    return until if isinstance(until, datetime) else None


add_verb(types, "resume", moves.resume, "Claim runs of a type again.")


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
def pause_all_types(until: datetime | float | str | None, reason: str | None) -> int:
    """Pause all types that are not paused; what runs goes on. resume-all resumes those alone."""
    with connect() as connection:
        end = _pause_end(connection, until)
        return print_answers([moves.pause_all(connection, terminal_actor(), reason, until=end)])


@types.command("resume-all")
@reason_option
def resume_all_types(reason: str | None) -> int:
    """Resume the types that were paused together; what was paused by itself stays so."""
    with connect() as connection:
        return print_answers([moves.resume_all(connection, terminal_actor(), reason)])


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
    with connect() as connection:
        value = None if most == "none" else int(most)
        return print_answers([moves.limit(connection, name, value, terminal_actor(), reason)])


DAYS = click.IntRange(1, moves.MOST_DAYS)


@types.command("retention")
@click.argument("name")
@click.option("--succeeded", type=DAYS, metavar="DAYS", help="Keep succeeded runs for so long.")
@click.option("--dead", type=DAYS, metavar="DAYS", help="Keep dead and cancelled runs for so long.")
@click.option("--default", "is_default", is_flag=True, help="Return what is not given to the settings' own.")
@reason_option
def set_retention(
    name: str, succeeded: int | None, dead: int | None, is_default: bool, reason: str | None
) -> int:
    """Keep ended runs of a type for days of its own; what is not given stays as it is."""
    if succeeded is None and dead is None and not is_default:
        raise WrongUse("Say for how long: --succeeded DAYS, --dead DAYS, or --default for the settings' own.")
    other_days: moves.Same | None = None if is_default else "same"
    with connect() as connection:
        answer = moves.keep(
            connection,
            name,
            terminal_actor(),
            reason,
            succeeded_days=other_days if succeeded is None else succeeded,
            dead_days=other_days if dead is None else dead,
        )
        return print_answers([answer])


# Earlier names of commands, which scripts may use; hidden in the help.
for _name, _command in (("hold", pause_all_types), ("let-go", resume_all_types), ("keep", set_retention)):
    _alias = copy(_command)
    _alias.name, _alias.hidden = _name, True
    types.add_command(_alias)


def require_type(connection: Connection, name: str) -> None:
    """Raise WrongUse, with similar names, unless a worker has ever registered the type ``name``."""
    if not name or not name.isprintable():
        raise WrongUse("A job type is text of 1 to 200 characters without control characters.")
    names = [
        str(row["name"]) for row in read_rows(connection, "SELECT name FROM wakeboard.job_types ORDER BY 1")
    ]
    if name in names:
        return
    hint = suggest_names(name, names) if names else " No worker has registered any yet."
    raise WrongUse(
        f"There is no job type '{name}'.{hint} See: wakeboard types list. To enqueue it anyway: --new-type"
    )
