"""The effects that handlers make once: one guarded statement per step of an effect, and no decision.

``started`` and its removal are fenced by the run (still running, with this epoch, in this worker's name);
``done`` by the effect's row alone, because what was done stays done when the lease was lost meanwhile.
Every function is one statement on the connection it is given, in whatever transaction that is in.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from psycopg import Connection

from wakeboard.database.read import read_one


def is_unconfirmed(effect: str) -> str:
    """Return the SQL that says whether an effect was started by an attempt that no longer runs.

    Only a person can say whether it happened. ``effect`` is the name of its row in the query.
    """
    return f"""({effect}.status = 'started' AND NOT EXISTS (
        SELECT 1 FROM wakeboard.job_runs AS at_it
        WHERE at_it.id = {effect}.run_id AND at_it.status = 'running'
            AND at_it.lease_epoch = {effect}.lease_epoch
    ))"""


_FENCE = """
    FROM wakeboard.job_runs AS r
    WHERE r.id = %(run_id)s AND r.lease_epoch = %(lease_epoch)s AND r.locked_by = %(worker_id)s
        AND (r.status || '') = 'running'"""
_THIS_ENTRY = """
WHERE e.id = %(id)s AND e.status = 'started' AND e.run_id = %(run_id)s AND e.lease_epoch = %(lease_epoch)s"""

START = f"""
INSERT INTO wakeboard.effects (scope, key, run_id, attempt, lease_epoch, status)
SELECT %(scope)s, %(key)s, r.id, %(attempt)s, r.lease_epoch, 'started'{_FENCE}
ON CONFLICT (scope, key) DO NOTHING
RETURNING id
"""
FIND = """
SELECT e.id, e.scope, e.key, e.run_id, e.attempt, e.lease_epoch, e.created_at AS started_at,
    e.status = 'done' AS is_done, e.result,
    EXISTS (SELECT 1 FROM wakeboard.job_runs AS r
        WHERE r.id = e.run_id AND r.lease_epoch = e.lease_epoch AND (r.status || '') = 'running') AS is_live
FROM wakeboard.effects AS e
WHERE e.scope = %(scope)s AND e.key = %(key)s
"""
IS_HOLDER = f"SELECT 1{_FENCE}"
TAKE_OVER = f"""
UPDATE wakeboard.effects AS e
SET run_id = %(run_id)s, attempt = %(attempt)s, lease_epoch = %(lease_epoch)s, created_at = now()
WHERE e.id = %(id)s AND e.status = 'started' AND e.run_id = %(old_run_id)s
    AND e.lease_epoch = %(old_epoch)s AND EXISTS (SELECT 1{_FENCE})
RETURNING e.id
"""
FINISH = f"""
UPDATE wakeboard.effects AS e
SET status = 'done', result = %(result)s::jsonb, finished_at = now(){_THIS_ENTRY}
RETURNING e.id
"""
REMOVE = f"""
DELETE FROM wakeboard.effects AS e{_THIS_ENTRY} AND EXISTS (SELECT 1{_FENCE})
RETURNING e.id
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """The attempt that writes, and its fence: run, epoch, worker."""

    run_id: int
    attempt: int
    lease_epoch: int
    worker_id: str

    def values(self, **more: object) -> dict[str, object]:
        """Return the parameters of the fence, and ``more``."""
        return asdict(self) | more


class Entry(NamedTuple):
    """The row of an effect. ``is_live``: the attempt that started it still runs."""

    id: int
    scope: str
    key: str
    run_id: int
    attempt: int
    lease_epoch: int
    started_at: datetime
    is_done: bool
    result: Any
    is_live: bool


def start(connection: Connection, holder: Holder, scope: str, key: str) -> int | None:
    """Write ``started`` and return the row's id; None when the key is known or the lease is lost."""
    return _id(connection, START, holder.values(scope=scope, key=key))


def find(connection: Connection, scope: str, key: str) -> Entry | None:
    """Return the row of ``key``, None when there is none."""
    return read_one(connection, FIND, Entry, {"scope": scope, "key": key})


def is_holder(connection: Connection, holder: Holder) -> bool:
    """Return whether the attempt still owns its run."""
    return connection.execute(IS_HOLDER, holder.values()).fetchone() is not None


def take_over(connection: Connection, holder: Holder, entry: Entry) -> bool:
    """Make an unconfirmed row the attempt's own; False when somebody was faster or the lease is lost."""
    values = holder.values(id=entry.id, old_run_id=entry.run_id, old_epoch=entry.lease_epoch)
    return _id(connection, TAKE_OVER, values) is not None


def finish(connection: Connection, holder: Holder, entry_id: int, result: str | None) -> bool:
    """Write ``done`` with ``result`` (JSON text); False when the row is not the attempt's own any more."""
    return _id(connection, FINISH, holder.values(id=entry_id, result=result)) is not None


def remove(connection: Connection, holder: Holder, entry_id: int) -> bool:
    """Take ``started`` back after an ordinary error; False when the row or the lease is not ours."""
    return _id(connection, REMOVE, holder.values(id=entry_id)) is not None


def _id(connection: Connection, statement: str, values: dict[str, object]) -> int | None:
    row = connection.execute(statement.encode(), values).fetchone()
    return None if row is None else int(row[0])
