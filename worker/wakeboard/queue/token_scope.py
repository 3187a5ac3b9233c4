"""What a token for some job types may touch: single runs of these types, and the types; nothing else.

Asked where a write is done (``wakeboard.queue.operator.permit``) and where an address is asked for.
``Actor.job_types`` says which types; everybody else has None there and is not held by any of this.
"""

from __future__ import annotations

from typing import Any

import psycopg

from wakeboard.core.states import Role
from wakeboard.database.audit import Actor

# Each is an index scan of its own in the list of runs.
MOST_TYPES = 20
MOST_NAMED = 5
LONGEST_NAMED = 60

TYPE_OF = "SELECT job_type FROM wakeboard.job_runs WHERE id = %s"


def holds(connection: psycopg.Connection[Any], actor: Actor, target_type: str, target: int | str) -> bool:
    """Return whether ``actor`` may touch the thing ``target`` of the kind ``target_type`` ('run', 'type', …).

    A run that is not there is in nobody's scope; nor is anything but a run and a type.
    """
    if actor.job_types is None:
        return True
    if target_type == "type":
        return target in actor.job_types
    return target_type == "run" and type_of(connection, int(target)) in actor.job_types


def type_of(connection: psycopg.Connection[Any], run_id: int) -> str | None:
    """Return the job type of run ``run_id``, None when there is no such run."""
    row = connection.execute(TYPE_OF, (run_id,)).fetchone()
    return None if row is None else str(row[0])


def says(actor: Actor) -> str:
    """Return what the token ``actor`` is for and what it may do, for whoever asked for something else."""
    reads = "read its runs (/runs.json, /runs.csv, /runs/ID.json) and /types/NAME.json"
    acts = (
        ", enqueue runs (/runs/enqueue), retry, cancel or repeat one run (/runs/ID/retry, cancel, again), "
        "release its lease (/leases/ID/release) and pause or resume a type (/types/NAME/pause, resume)"
    )
    may = reads + (acts if actor.role.covers(Role.OPERATOR) else "")
    return (
        f"“{actor.name}”, {actor.role.value}, is for {_named(actor.job_types or ())} alone: it may {may}. "
        "Everything else is closed to it, verbs on many runs at once and operations too."
    )


def _named(names: tuple[str, ...]) -> str:
    shown = [f"“{name[:LONGEST_NAMED]}{'…' if len(name) > LONGEST_NAMED else ''}”" for name in names]
    more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
    return f"the job type{'' if len(names) == 1 else 's'} {', '.join(shown[:MOST_NAMED])}{more}"
