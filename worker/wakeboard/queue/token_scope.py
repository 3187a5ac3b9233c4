"""The scope of a token for some job types: single runs of these types, and the types; nothing else.

Checked by each write (``wakeboard.queue.operator.permit``) and by the addresses of the dashboard.
``Actor.job_types`` has the types; it is None for everybody who is not bound by a scope.
"""

from __future__ import annotations

from psycopg import Connection

from wakeboard.core.states import Role
from wakeboard.database.audit import Actor

# Each type takes an index scan of its own in the list of runs.
MOST_TYPES = 20
MOST_NAMED = 5
LONGEST_NAMED = 60

TYPE_OF = "SELECT job_type FROM wakeboard.job_runs WHERE id = %s"


def is_in_scope(connection: Connection, actor: Actor, target_type: str, target: int | str) -> bool:
    """Return whether ``target``, of the kind ``target_type`` ('run', …), is in the scope of ``actor``.

    A run that does not exist is in no scope; nor is anything but a run and a type.
    """
    if actor.job_types is None:
        return True
    if target_type == "type":
        return target in actor.job_types
    return target_type == "run" and type_of(connection, int(target)) in actor.job_types


def type_of(connection: Connection, run_id: int) -> str | None:
    """Return the job type of run ``run_id``, None when there is no such run."""
    row = connection.execute(TYPE_OF, (run_id,)).fetchone()
    return None if row is None else str(row[0])


def describe(actor: Actor) -> str:
    """Return what the token ``actor`` is for and what it may do, for a request beyond its scope."""
    reads = "read its runs (/runs.json, /runs.csv, /runs/ID.json) and /types/NAME.json"
    acts = (
        ", enqueue runs (/runs/enqueue), retry, cancel or repeat one run (/runs/ID/retry, cancel, again), "
        "release its lease (/leases/ID/release) and pause or resume a type (/types/NAME/pause, resume)"
    )
    may = reads + (acts if actor.role.covers(Role.OPERATOR) else "")
    return (
        f"“{actor.name}”, {actor.role.value}, is for {_quote(actor.job_types or ())} alone: it may {may}. "
        "Everything else is closed to it, verbs on many runs at once and operations too."
    )


def _quote(names: tuple[str, ...]) -> str:
    quoted = [f"“{name[:LONGEST_NAMED]}{'…' if len(name) > LONGEST_NAMED else ''}”" for name in names]
    more = f" and {len(quoted) - MOST_NAMED} more" if len(quoted) > MOST_NAMED else ""
    return f"the job type{'' if len(names) == 1 else 's'} {', '.join(quoted[:MOST_NAMED])}{more}"
