"""The poll: one statement, every two seconds, for everything that a worker may have to do.

It writes that the process lives and the state of its loops. It returns what people want of the worker, how
soon a schedule, the end of a pause or an operation is due, whether leases have expired, whether any run could
be claimed, the database's clock, and whether any time lies ahead of it. Each duty does what is due; none of
them queries the database while nothing is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import psycopg

from wakeboard.database.index_predicates import EACH_PRIORITY, IS_CLAIMABLE, TYPES_WITH_WORK
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.duties.clock import IS_ANYTHING_AHEAD
from wakeboard.schedules.scheduler import REFUSED_SECONDS

# $1 worker, $2 running, $3 memory, $4 whether it stops.
_SEEN = """
UPDATE wakeboard.workers SET seen_at = now(), running = $2, memory_bytes = coalesce($3, memory_bytes),
    stopping_at = CASE WHEN $4 THEN coalesce(stopping_at, now()) ELSE stopping_at END
WHERE id = $1
RETURNING drain_requested_at IS NOT NULL AS drain, stop_requested_at IS NOT NULL AS stop
"""
# $5 names, $6 intervals, $7 seconds ago, $8 errors, $9 numbers.
_BEATS = """
INSERT INTO wakeboard.loops
    (process_id, name, interval_seconds, last_success_at, last_error, last_error_at, numbers)
SELECT $1, name, interval, now() - make_interval(secs => ago), error,
    CASE WHEN error IS NULL THEN NULL ELSE now() END, numbers::jsonb
FROM unnest($5::text[], $6::float8[], $7::float8[], $8::text[], $9::text[])
    AS loop (name, interval, ago, error, numbers)
ON CONFLICT (process_id, name) DO UPDATE SET last_success_at = excluded.last_success_at,
    interval_seconds = excluded.interval_seconds, numbers = excluded.numbers,
    last_error = coalesce(excluded.last_error, loops.last_error),
    last_error_at = coalesce(excluded.last_error_at, loops.last_error_at)
"""
_ALIVE = "UPDATE wakeboard.workers SET seen_at = now() WHERE id = $1"
# $10 the worker's types.
_LIMITED = """
SELECT name FROM wakeboard.job_types
WHERE name = ANY ($10::text[]) AND paused_at IS NULL
    AND coalesce(max_running_operator, max_running) IS NOT NULL
"""
# Seconds until a duty is due, NULL when nothing is planned. A schedule that waits for its last run to end
# counts as due: only the duty knows. One that the database refused is due again a while later.
_FIRES = f"""
SELECT extract(epoch FROM min(greatest(
    CASE WHEN unsettled IS NULL THEN coalesce(next_fire_at, now()) ELSE now() END,
    CASE WHEN error IS NOT NULL THEN settled_at + interval '{REFUSED_SECONDS} s' END
)) - now())::float8
FROM wakeboard.job_definitions
WHERE unsettled IS NOT NULL
    OR (enabled AND schedule IS NOT NULL AND (next_fire_at IS NOT NULL OR error IS NULL))
"""
_ENDS = """
SELECT extract(epoch FROM min(CASE WHEN paused_at IS NULL THEN now() ELSE paused_until END) - now())::float8
FROM wakeboard.job_types WHERE paused_until IS NOT NULL
"""
_STEPS = "SELECT extract(epoch FROM min(look_at) - now())::float8 FROM wakeboard.operations WHERE is_open"
_EXPIRED = "SELECT FROM wakeboard.job_runs WHERE status = 'running' AND locked_until < now()"
_CLAIMABLE = f"""
SELECT FROM ({TYPES_WITH_WORK}) AS work CROSS JOIN {EACH_PRIORITY}
CROSS JOIN LATERAL (
    SELECT FROM wakeboard.job_runs AS r
    WHERE r.job_type = work.job_type AND r.priority = each.priority
        AND r.{IS_CLAIMABLE} AND r.run_at <= now()
    ORDER BY r.run_at, r.id
    LIMIT 1
) AS first
WHERE work.job_type = ANY ($10) AND NOT EXISTS (
    SELECT FROM wakeboard.job_types AS t WHERE t.name = work.job_type AND t.paused_at IS NOT NULL
)
"""
# $11 whether to look for runs, $12 the channel of the notify check, $13 its payload.
POLL = f"""
WITH seen AS ({_SEEN}), beats AS ({_BEATS})
SELECT seen.drain, seen.stop, ARRAY({_LIMITED}), ({_FIRES}), ({_ENDS}), ({_STEPS}), EXISTS ({_EXPIRED}),
    $11::boolean AND EXISTS ({_CLAIMABLE}), ({IS_ANYTHING_AHEAD}),
    extract(epoch FROM clock_timestamp())::float8,
    CASE WHEN $13::text IS NOT NULL THEN pg_notify($12, $13)::text END
FROM (VALUES (1)) AS one (one) LEFT JOIN seen ON true
"""


def write_seen(connection: psycopg.Connection, worker_id: str) -> None:
    """Write only that the worker lives, after a poll failed."""
    psycopg.RawCursor(connection).execute(_ALIVE.encode(), (worker_id,))


def limited_types(connection: psycopg.Connection, job_types: Sequence[str]) -> list[str]:
    """Return which of ``job_types`` have a limit on how many of their runs may run at once."""
    statement = _LIMITED.replace("$10", "$1").encode()
    return [name for (name,) in psycopg.RawCursor(connection).execute(statement, (list(job_types),))]


@dataclass(frozen=True, slots=True)
class PollRequest:
    """What a poll writes of the worker, and whether it looks for runs.

    ``channel`` and ``payload``: the notification that the worker sends to itself, None for none.
    """

    worker_id: str
    job_types: Sequence[str]
    running: int
    memory_bytes: int | None
    is_stopping: bool
    beats: Sequence[Beat]
    wants_work: bool
    channel: str
    payload: str | None


class PollResult(NamedTuple):
    """What one poll found. ``drain`` and ``stop`` are None when the worker's row is gone.

    ``fires_in``, ``ends_in`` and ``steps_in``: seconds until a schedule, the end of a pause and an operation
    are due, None when none is planned. ``clock``: the database's, in seconds. ``sent_at`` and
    ``received_at``: when the poll was sent and answered (monotonic seconds).
    """

    drain: bool | None
    stop: bool | None
    limited_types: list[str]
    fires_in: float | None
    ends_in: float | None
    steps_in: float | None
    has_expired_leases: bool
    has_work: bool
    is_anything_ahead: bool
    clock: float
    sent_at: float
    received_at: float


def poll(connection: psycopg.Connection, request: PollRequest) -> PollResult:
    """Poll once."""
    beats = request.beats
    values = (
        request.worker_id, request.running, request.memory_bytes, request.is_stopping,
        [beat.name for beat in beats], [beat.interval_seconds for beat in beats],
        [beat.ago_seconds for beat in beats], [beat.error for beat in beats],
        [None if beat.numbers is None else json.dumps(beat.numbers) for beat in beats],
        list(request.job_types), request.wants_work, request.channel, request.payload,
    )  # fmt: skip
    sent_at = monotonic()
    # Planned each time: a plan made for a small table would be kept while the table grows.
    row = psycopg.RawCursor(connection).execute(POLL.encode(), values, prepare=False).fetchone()
    assert row is not None
    return PollResult._make((*row[:-1], sent_at, monotonic()))
