"""The worker's own row: who it is, that it lives, what it can run, whether somebody wants it gone.

Beside it the ``loops`` rows: when each background duty of this process last succeeded.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import psycopg

from worker import __version__
from worker.transitions.types import PUBLISH

REGISTER = """
INSERT INTO wakeboard.workers
    (id, name, hostname, pid, job_types, concurrency, heartbeat_seconds, lease_seconds, version, is_tick)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (id) DO UPDATE SET seen_at = now(), job_types = excluded.job_types
"""
SEEN = """
UPDATE wakeboard.workers SET seen_at = now(), running = $2, memory_bytes = $3,
    stopping_at = CASE WHEN $4 THEN coalesce(stopping_at, now()) ELSE stopping_at END
WHERE id = $1
RETURNING drain_requested_at IS NOT NULL, stop_requested_at IS NOT NULL
"""
STOPPED = "UPDATE wakeboard.workers SET stopped_at = now(), idle_since = NULL, running = 0 WHERE id = $1"
# Sent on the claim's own connection, so that it is ordered with the claims around it.
IDLE = "UPDATE wakeboard.workers SET idle_since = now() WHERE id = $1"
BUSY = "UPDATE wakeboard.workers SET idle_since = NULL WHERE id = $1"
LIMITED = """
SELECT name FROM wakeboard.job_types
WHERE name = ANY($1) AND paused_at IS NULL AND coalesce(max_running_operator, max_running) IS NOT NULL
"""
LOOPS = """
INSERT INTO wakeboard.loops
    (process_id, name, interval_seconds, last_success_at, last_error, last_error_at, numbers)
SELECT $1, name, interval, now() - make_interval(secs => ago), error,
    CASE WHEN error IS NULL THEN NULL ELSE now() END, numbers::jsonb
FROM unnest($2::text[], $3::float8[], $4::float8[], $5::text[], $6::text[])
    AS loop (name, interval, ago, error, numbers)
ON CONFLICT (process_id, name) DO UPDATE SET last_success_at = excluded.last_success_at,
    interval_seconds = excluded.interval_seconds, numbers = excluded.numbers,
    last_error = coalesce(excluded.last_error, loops.last_error),
    last_error_at = coalesce(excluded.last_error_at, loops.last_error_at)
"""
FORGET_LOOPS = "DELETE FROM wakeboard.loops WHERE process_id = $1"
FORGET_OLD = """
WITH gone AS (
    DELETE FROM wakeboard.workers
    WHERE coalesce(stopped_at, seen_at) < now() - interval '7 days' RETURNING id
)
DELETE FROM wakeboard.loops WHERE last_success_at < now() - interval '1 day'
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person asked of this worker."""

    drain: bool = False
    stop: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    """One loop's standing: seconds between its steps, seconds since it last succeeded, its last error."""

    name: str
    interval_seconds: float
    ago_seconds: float
    error: str | None = None
    numbers: Mapping[str, Any] | None = None


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
        self._job_types: list[str] = []

    def register(self, connection: psycopg.Connection[Any], policies: Sequence[Mapping[str, Any]]) -> None:
        """Insert the worker and publish the policies of what it can run."""
        self._job_types = sorted(policy["name"] for policy in policies)
        self._insert(connection)
        self.publish(connection, policies)

    def _insert(self, connection: psycopg.Connection[Any]) -> None:
        _run(connection, REGISTER, self.worker_id, *self._facts, self._job_types, *self._shape)

    def publish(self, connection: psycopg.Connection[Any], policies: Sequence[Mapping[str, Any]]) -> None:
        """Write the types' policies, so that any reaper can decide for any type."""
        columns = (
            "name", "max_attempts", "timeout_seconds", "lease_seconds", "backoff", "max_running", "memory_mb",
            "schedule",
        )  # fmt: skip
        _run(connection, PUBLISH, *([policy.get(column) for policy in policies] for column in columns))

    def seen(self, connection: psycopg.Connection[Any], running: int, *, is_stopping: bool) -> Wanted:
        """Say that the process lives; return what people asked of it meanwhile."""
        memory = _memory_bytes()
        row = _run(connection, SEEN, self.worker_id, running, memory, is_stopping).fetchone()
        if row is None:
            self._insert(connection)
            return Wanted()
        return Wanted(drain=row[0], stop=row[1])

    def limited_types(self, connection: psycopg.Connection[Any]) -> list[str]:
        """Return which of the worker's types have a limit and are not paused."""
        return [row[0] for row in _run(connection, LIMITED, self._job_types).fetchall()]

    def beat(self, connection: psycopg.Connection[Any], beats: Sequence[Beat]) -> None:
        """Write when each loop last succeeded."""
        _run(
            connection, LOOPS, self.worker_id,
            [beat.name for beat in beats], [beat.interval_seconds for beat in beats],
            [beat.ago_seconds for beat in beats], [beat.error for beat in beats],
            [None if beat.numbers is None else json.dumps(beat.numbers) for beat in beats],
        )  # fmt: skip

    def stopped(self, connection: psycopg.Connection[Any]) -> None:
        """Say that the process ended in order."""
        _run(connection, STOPPED, self.worker_id)
        _run(connection, FORGET_LOOPS, self.worker_id)

    def forget_old(self, connection: psycopg.Connection[Any]) -> None:
        """Remove workers that ended or fell silent a week ago."""
        _run(connection, FORGET_OLD)


def _memory_bytes() -> int:
    """Return the resident memory of this process and all its descendants, in bytes."""
    own = psutil.Process()
    total = 0
    for process in [own, *own.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total
