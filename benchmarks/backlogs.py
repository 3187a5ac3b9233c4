"""Backlogs of many types: the names of the types, the command of a worker, and when runs finished."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from time import monotonic, sleep
from typing import NamedTuple

import psycopg

from tests.support.processes import wait_until

# As many runs at once as a worker of ours has by itself.
SLOTS = max(2, os.cpu_count() or 2)
READY_SECONDS = 30


class Moments(NamedTuple):
    """When the first run began and when each finished, in seconds of the database's clock, in their order."""

    began: float
    finished: list[float]


def type_names(count: int) -> list[str]:
    """Return the names of the types of ``types_app`` and ``mixed_app``."""
    return [f"t{number:04}" for number in range(count)]


def worker_command(
    verb: str,
    count: int,
    policy: Mapping[str, object] | None = None,
    *,
    app: str = "types_app",
    slots: int = 0,
) -> list[str]:
    """Return the command of a worker of ours, ``tick`` or ``worker``, with ``count`` types of one policy.

    ``slots``: how many runs it has at once, 0 for its default.
    """
    environment = [f"BENCHMARK_TYPES={count}", f"BENCHMARK_POLICY={json.dumps(policy or {})}"]
    concurrency = ["--concurrency", str(slots)] if slots else []
    return ["env", *environment, sys.executable, "-m", "wakeboard", verb, "--app", app, *concurrency]


def mark_stopped(connection: psycopg.Connection) -> None:
    """Mark all workers as stopped, so that the next ones are distinct from them."""
    connection.execute("UPDATE wakeboard.workers SET stopped_at = now() WHERE stopped_at IS NULL")


def wait_for_worker(connection: psycopg.Connection) -> None:
    """Wait until a worker is idle."""
    idle = "SELECT 1 FROM wakeboard.workers WHERE stopped_at IS NULL AND idle_since IS NOT NULL"
    wait_until(lambda: connection.execute(idle).fetchone(), READY_SECONDS, "a worker is idle")


def wait_until_drained(connection: psycopg.Connection, seconds: float) -> None:
    """Wait until nothing is left to do. Raises SystemExit when that takes longer than ``seconds``."""
    until = monotonic() + seconds
    while not is_drained(connection):
        if monotonic() > until:
            raise SystemExit(f"not a result: no end in sight after {seconds:g} s")
        sleep(0.25)


def is_drained(connection: psycopg.Connection) -> bool:
    """Return whether nothing is left to do."""
    left = "SELECT 1 FROM wakeboard.job_runs WHERE status IN ('queued', 'running', 'failed') LIMIT 1"
    return connection.execute(left).fetchone() is None


def seconds_until_due(connection: psycopg.Connection) -> float:
    """Return how long it is until all runs are due."""
    (left,) = connection.execute(
        "SELECT extract(epoch FROM min(run_at) - clock_timestamp())::float8 FROM wakeboard.job_runs"
    ).fetchone() or (0,)
    return float(left)


def least_share(connection: psycopg.Connection, how_many: int) -> float:
    """Return which part of all attempts that of ``how_many`` workers had that had least."""
    rows = connection.execute("SELECT count(*) FROM wakeboard.job_attempts GROUP BY worker_id").fetchall()
    counts = [row[0] for row in rows]
    return min(counts) / sum(counts) if len(counts) == how_many else 0.0


def read_moments(connection: psycopg.Connection) -> Moments:
    """Return when our runs, or those of raw SQL, began and finished."""
    began, finished = connection.execute(
        """SELECT extract(epoch FROM min(started_at))::float8,
            array_agg(extract(epoch FROM finished_at)::float8 ORDER BY finished_at)
        FROM wakeboard.job_attempts"""
    ).fetchone() or (0.0, [])
    return Moments(began or 0.0, finished or [])


def read_pgqueuer_moments(connection: psycopg.Connection) -> Moments:
    """Return when PgQueuer's jobs were first picked, and when each was written as done, by its log."""
    began, finished = connection.execute(
        """SELECT extract(epoch FROM min(created) FILTER (WHERE status = 'picked'))::float8,
            array_agg(extract(epoch FROM created)::float8 ORDER BY created)
                FILTER (WHERE status = 'successful')
        FROM wakeboard.pgqueuer_log"""
    ).fetchone() or (0.0, [])
    return Moments(began or 0.0, finished or [])
