"""The worker's own row: who it is and what it can run. That it lives is said by every ``look``."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from wakeboard import __version__
from wakeboard.queue.engine.unbegun import REMOVE_ENDED
from wakeboard.queue.types import PUBLISH
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


def new_worker_id(name: str | None) -> str:
    """Return an identity for this process start: never the same twice, so a name is no fence."""
    return f"{(name or socket.gethostname())[:60]}-{secrets.token_hex(4)}"


def _run(connection: psycopg.Connection[Any], statement: str, *values: Any) -> psycopg.Cursor[Any]:
    return psycopg.RawCursor(connection).execute(statement.encode(), values)


class Presence:
    """Writes the rows of one worker process."""

    def __init__(
        self,
        worker_id: str,
        *,
        name: str | None,
        concurrency: int,
        heartbeat_seconds: float,
        lease_seconds: float,
        is_tick: bool,
    ) -> None:
        self.worker_id = worker_id
        self._facts = (name, socket.gethostname(), os.getpid())
        self._shape = (concurrency, heartbeat_seconds, lease_seconds, __version__, is_tick)
        self.job_types: list[str] = []
        self._said: str | None = None

    def register(self, connection: psycopg.Connection[Any], policies: Sequence[Mapping[str, Any]]) -> None:
        """Publish the policies of what the worker can run, then insert it: who sees it finds its types."""
        self.job_types = sorted(policy["name"] for policy in policies)
        self._said = code_schedules.as_published(policies)
        self.publish(connection, policies)
        self.insert(connection)

    def insert(self, connection: psycopg.Connection[Any]) -> None:
        """Write the worker's row, also when somebody has removed it."""
        _run(connection, REGISTER, self.worker_id, *self._facts, self.job_types, self._said, *self._shape)

    def publish(self, connection: psycopg.Connection[Any], policies: Sequence[Mapping[str, Any]]) -> None:
        """Write the types' policies, so that any reaper can decide for any type."""
        columns = (
            "name", "max_attempts", "timeout_seconds", "lease_seconds", "backoff", "max_running", "memory_mb",
            "schedule", "timezone",
        )  # fmt: skip
        _run(connection, PUBLISH, *([policy.get(column) for policy in policies] for column in columns))

    def stopped(self, connection: psycopg.Connection[Any]) -> None:
        """Say that the process ended in order."""
        _run(connection, STOPPED, self.worker_id)
        _run(connection, FORGET_LOOPS, self.worker_id)

    def forget_old(self, connection: psycopg.Connection[Any]) -> None:
        """Remove workers that ended or fell silent a week ago, and what is listed of attempts that ended."""
        _run(connection, FORGET_OLD)
        _run(connection, REMOVE_ENDED)
