"""``enqueue``: one run from the terminal. A type nobody registered is a typing error until told otherwise."""

from __future__ import annotations

from datetime import datetime

import click

from wakeboard.cli import reach
from wakeboard.cli.flags import Verb
from wakeboard.cli.kinds import DURATION, MOMENT, json_object
from wakeboard.cli.printing import answer
from wakeboard.cli.refusals import Wrong
from wakeboard.database.audit import acting, record, terminal_actor
from wakeboard.queue.enqueue import enqueue as enqueue_run
from wakeboard.queue.manual_enqueue import near


@click.command(cls=Verb)
@click.argument("job_type", metavar="TYPE")
@click.option("--payload", metavar="JSON", help="A JSON object, @FILE, or - for standard input.")
@click.option("--in", "delay", type=DURATION, help="Not before this long from now, such as 5m.")
@click.option("--at", "run_at", type=MOMENT, help="Not before this time, such as 2026-11-21T09:00+01:00.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key gives the same run.")
@click.option("--priority", type=click.IntRange(0, 4), default=2, help="0 (first) to 4 (last) [2].")
@click.option("--max-attempts", type=click.IntRange(1, 2**31 - 1), help="Give up after so many failures.")
@click.option("--new-type", is_flag=True, help="Allow a type that no worker has registered yet.")
def enqueue(
    job_type: str,
    payload: str | None,
    delay: float | None,
    run_at: datetime | None,
    key: str | None,
    priority: int,
    max_attempts: int | None,
    new_type: bool,
) -> None:
    """Enqueue a run of TYPE and print its id."""
    if delay is not None and run_at is not None:
        raise Wrong("Give --in or --at, not both.")
    value, actor = json_object(payload), terminal_actor()
    with reach.connection() as connection, acting(connection):
        if not new_type:
            require_type(connection, job_type)
        run_id = enqueue_run(
            connection, job_type, value, run_at=run_at, delay=delay, key=key, priority=priority,
            max_attempts=max_attempts, enqueued_by=actor.name,
        )  # fmt: skip
        record(connection, actor, "run.enqueue", "run", run_id, after={"job_type": job_type, "key": key})
    answer({"id": run_id}, str(run_id))


def require_type(connection: reach.Connection, name: str) -> None:
    """Raise Wrong, naming what is near, unless a worker has ever registered the type ``name``."""
    if not name or not name.isprintable():
        raise Wrong("A job type is text of 1 to 200 characters without control characters.")
    known = [
        str(row["name"]) for row in reach.rows(connection, "SELECT name FROM wakeboard.job_types ORDER BY 1")
    ]
    if name in known:
        return
    hint = near(name, known) if known else " No worker has registered any yet."
    raise Wrong(
        f"There is no job type '{name}'.{hint} See: wakeboard types list. To enqueue it anyway: --new-type"
    )
