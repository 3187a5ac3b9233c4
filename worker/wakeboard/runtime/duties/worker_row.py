"""The worker's row in ``workers``: who it is and what it can run. Each poll updates when it was last seen."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

import psycopg

from wakeboard import __version__
from wakeboard.core.time.clock_skew import is_before
from wakeboard.queue.engine.unbegun import REMOVE_ENDED
from wakeboard.runtime.worker import Worker
from wakeboard.schedules import code_schedules

REGISTER = """
INSERT INTO wakeboard.workers
    (id, name, hostname, pid, job_types, code_schedules, concurrency, heartbeat_seconds, lease_seconds,
    version, is_tick)
VALUES ($1, $2, $3, $4, $5, $6::jsonb, $7, $8, $9, $10, $11)
ON CONFLICT (id) DO UPDATE SET seen_at = now(), job_types = excluded.job_types,
    code_schedules = excluded.code_schedules
"""
STOPPED = "UPDATE wakeboard.workers SET stopped_at = now(), idle_since = NULL, running = 0 WHERE id = $1"
FORGET_LOOPS = "DELETE FROM wakeboard.loops WHERE process_id = $1"
FORGET_OLD = """
WITH gone AS (
    DELETE FROM wakeboard.workers
    WHERE coalesce(stopped_at, seen_at) < now() - interval '7 days' RETURNING id
)
DELETE FROM wakeboard.loops WHERE last_success_at < now() - interval '1 day'
"""
# The columns of job_types that have the rules of the code, each with its SQL type. What operators decided is
# in others.
TYPE_COLUMNS = {
    "name": "text", "max_attempts": "int", "timeout_seconds": "float8", "lease_seconds": "float8",
    "backoff": "text", "max_running": "int", "memory_mb": "int", "schedule": "text", "timezone": "text",
}  # fmt: skip
_NAMES = ", ".join(TYPE_COLUMNS)
_RULES = [name for name in TYPE_COLUMNS if name != "name"]
# The columns as arrays in turn. Written only where something differs or the row was not seen for a minute, so
# that many workers that start or beat at once do not queue for the same rows.
PUBLISH = f"""
INSERT INTO wakeboard.job_types AS t ({_NAMES}, seen_at)
SELECT {_NAMES}, now()
FROM unnest({", ".join(f"${place}::{name}[]" for place, name in enumerate(TYPE_COLUMNS.values(), 1))})
    AS policy ({_NAMES})
ORDER BY name
ON CONFLICT (name) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _RULES)},
    seen_at = now()
WHERE t.seen_at IS NULL OR {is_before("t.seen_at", 60)}
    OR ({", ".join(f"t.{name}" for name in _RULES)})
    IS DISTINCT FROM ({", ".join(f"excluded.{name}" for name in _RULES)})
"""

Policies = Sequence[Mapping[str, object]]


class WorkerRow:
    """Writes the rows of one worker process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.job_types: list[str] = []
        self._code_schedules: str | None = None

    def register(self, connection: psycopg.Connection, policies: Policies) -> None:
        """Write the policies of what the worker can run, then its row: who sees it finds its types."""
        self.job_types = sorted(str(policy["name"]) for policy in policies)
        self._code_schedules = code_schedules.as_published(policies)
        self.publish_types(connection, policies)
        self.insert(connection)

    def insert(self, connection: psycopg.Connection) -> None:
        """Write the worker's row, also after somebody has deleted it."""
        worker = self._worker
        _execute(
            connection, REGISTER, worker.id, worker.name, socket.gethostname(), os.getpid(), self.job_types,
            self._code_schedules, worker.concurrency, worker.heartbeat_seconds, worker.lease_seconds,
            __version__, worker.is_tick,
        )  # fmt: skip

    def publish_types(self, connection: psycopg.Connection, policies: Policies) -> None:
        """Write the types' policies, so that any worker's reaper can decide for any type."""
        columns = ([policy.get(column) for policy in policies] for column in TYPE_COLUMNS)
        _execute(connection, PUBLISH, *columns)

    def mark_stopped(self, connection: psycopg.Connection) -> None:
        """Note that the process ended in order."""
        _execute(connection, STOPPED, self._worker.id)
        _execute(connection, FORGET_LOOPS, self._worker.id)

    def delete_old(self, connection: psycopg.Connection) -> None:
        """Delete workers that ended or fell silent a week ago, and list entries of attempts that ended."""
        _execute(connection, FORGET_OLD)
        _execute(connection, REMOVE_ENDED)


def _execute(connection: psycopg.Connection, statement: str, *values: object) -> None:
    psycopg.RawCursor(connection).execute(statement.encode(), values)
