"""The moves of job types and of workers: limit and keep a type; drain, undrain or stop a worker.

Pauses are in ``wakeboard.queue.pauses``. Workers publish their policies here too, never touching what
operators decided.
"""

from __future__ import annotations

from wakeboard.core.answer import Answer
from wakeboard.core.time.clock_skew import is_before
from wakeboard.database.audit import Actor
from wakeboard.queue.operator import WAKE_CHANNEL, Connection, Row, _row, act
from wakeboard.queue.pauses import Same, missing, pause, resume

BY_NAME = """
SELECT name, max_running, max_running_operator, keep_succeeded_days, keep_dead_days
FROM wakeboard.job_types WHERE name = %(name)s FOR NO KEY UPDATE
"""
LIMIT = """
UPDATE wakeboard.job_types SET max_running_operator = %(limit)s
WHERE name = %(name)s AND max_running_operator IS DISTINCT FROM %(limit)s RETURNING name
"""
KEEP = """
UPDATE wakeboard.job_types SET keep_succeeded_days = %(succeeded)s, keep_dead_days = %(dead)s
WHERE name = %(name)s
    AND (keep_succeeded_days, keep_dead_days) IS DISTINCT FROM (%(succeeded)s::int, %(dead)s::int)
RETURNING name
"""
DRAIN = """
UPDATE wakeboard.workers SET drain_requested_at = now()
WHERE id = %(name)s AND stopped_at IS NULL AND drain_requested_at IS NULL RETURNING id
"""
UNDRAIN = """
UPDATE wakeboard.workers SET drain_requested_at = NULL
WHERE id = %(name)s AND stopped_at IS NULL AND stopping_at IS NULL AND stop_requested_at IS NULL
    AND drain_requested_at IS NOT NULL RETURNING id
"""
STOP = """
UPDATE wakeboard.workers SET stop_requested_at = now()
WHERE id = %(name)s AND stopped_at IS NULL AND stop_requested_at IS NULL RETURNING id
"""
WORKER = """
SELECT id, stopped_at, stop_requested_at IS NOT NULL OR stopping_at IS NOT NULL AS is_stopping
FROM wakeboard.workers WHERE id = %(name)s
"""

# $1 names, $2 max_attempts, $3 timeouts, $4 leases, $5 backoffs, $6 limits, $7 memory, $8 schedules,
# $9 zones.
# Written only where something differs or the row was not seen for a minute, so that many workers that
# start or beat at once do not queue for the same rows.
PUBLISH = f"""
INSERT INTO wakeboard.job_types AS t
    (name, max_attempts, timeout_seconds, lease_seconds, backoff, max_running, memory_mb, schedule, timezone,
    seen_at)
SELECT name, most, timeout, lease, backoff, max_running, memory, schedule, timezone, now()
FROM unnest($1::text[], $2::int[], $3::float8[], $4::float8[], $5::text[], $6::int[], $7::int[], $8::text[],
    $9::text[]) AS policy (name, most, timeout, lease, backoff, max_running, memory, schedule, timezone)
ORDER BY name
ON CONFLICT (name) DO UPDATE SET max_attempts = excluded.max_attempts,
    timeout_seconds = excluded.timeout_seconds, lease_seconds = excluded.lease_seconds,
    backoff = excluded.backoff, max_running = excluded.max_running, memory_mb = excluded.memory_mb,
    schedule = excluded.schedule, timezone = excluded.timezone, seen_at = now()
WHERE t.seen_at IS NULL OR {is_before("t.seen_at", 60)}
    OR (t.max_attempts, t.timeout_seconds, t.lease_seconds, t.backoff, t.max_running, t.memory_mb, t.schedule,
        t.timezone)
    IS DISTINCT FROM (excluded.max_attempts, excluded.timeout_seconds, excluded.lease_seconds,
        excluded.backoff, excluded.max_running, excluded.memory_mb, excluded.schedule, excluded.timezone)
"""

# How long ended runs of a type may be kept, in days.
MOST_DAYS = 36_500
# The most that a type's limit may be.
LARGEST_LIMIT = 1_000_000


def limit(
    connection: Connection, name: str, most: int | None, actor: Actor, reason: str | None = None
) -> Answer:
    """Let at most ``most`` runs of a type run at once over all workers; None: the code's own limit."""

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _row(connection, BY_NAME, {"name": name})
        if row is None:
            return missing(name)
        if most is not None and not 0 <= most <= LARGEST_LIMIT:
            message = f"The limit is {most}; allowed: 0 to {LARGEST_LIMIT:,}, or none."
            return Answer(name, None, "invalid", message), None, None
        before = {"max_running": row["max_running_operator"]}
        words = "has no limit of its own" if most is None else f"runs at most {most} at once"
        if _row(connection, LIMIT, {"name": name, "limit": most}) is None:
            return Answer(name, "active", "already", f"Type {name} {words} already."), before, None
        connection.execute("SELECT pg_notify(%s, '')", (WAKE_CHANNEL,))
        return Answer(name, "active", "done", f"Type {name} {words} now."), before, {"max_running": most}

    return act(connection, actor, "type.limit", ("type", name), reason, move)


def keep(
    connection: Connection,
    name: str,
    actor: Actor,
    reason: str | None = None,
    *,
    succeeded_days: int | Same | None = "same",
    dead_days: int | Same | None = "same",
) -> Answer:
    """Keep ended runs of a type for days of its own: succeeded ones, and dead and cancelled ones.

    1 to MOST_DAYS; None: the workers' settings decide; 'same': as it is.
    """

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _row(connection, BY_NAME, {"name": name})
        if row is None:
            return missing(name)
        before = {"succeeded_days": row["keep_succeeded_days"], "dead_days": row["keep_dead_days"]}
        given = {"succeeded_days": succeeded_days, "dead_days": dead_days}
        after = before | {key: days for key, days in given.items() if days != "same"}
        for days in after.values():
            if days is not None and not 1 <= days <= MOST_DAYS:
                message = f"The days are {days}; allowed: 1 to {MOST_DAYS}, or none for the settings' own."
                return Answer(name, None, "invalid", message), None, None
        words = f"Type {name} keeps {_kept(after)}"
        values = {"name": name, "succeeded": after["succeeded_days"], "dead": after["dead_days"]}
        if _row(connection, KEEP, values) is None:
            return Answer(name, "active", "already", f"{words} already."), before, None
        return Answer(name, "active", "done", f"{words} now."), before, after

    return act(connection, actor, "type.keep", ("type", name), reason, move)


def _kept(days: Row) -> str:
    """Return in words for how long, such as ``succeeded runs for 30 days, dead ones as the settings say``."""
    told = {
        key: "as the settings say" if value is None else f"for {value} day{'' if value == 1 else 's'}"
        for key, value in days.items()
    }
    return f"succeeded runs {told['succeeded_days']}, dead and cancelled ones {told['dead_days']}"


def _ask_worker(
    connection: Connection, statement: str, action: str, worker_id: str, actor: Actor, reason: str | None
) -> Answer:
    what = action.removeprefix("worker.")

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _row(connection, WORKER, {"name": worker_id})
        if row is None:
            return Answer(worker_id, None, "missing", f"There is no worker '{worker_id}'."), None, None
        if row["stopped_at"] is not None:
            return Answer(worker_id, "stopped", "already", f"Worker {worker_id} has stopped."), None, None
        if _row(connection, statement, {"name": worker_id}) is None:
            told = f"Worker {worker_id} was already asked to {what}."
            return Answer(worker_id, "asked", "already", told), None, None
        told = f"Worker {worker_id} was asked to {what}."
        return Answer(worker_id, "asked", "asked", told), None, {"asked": True}

    return act(connection, actor, action, ("worker", worker_id), reason, move)


def drain(connection: Connection, worker_id: str, actor: Actor, reason: str | None = None) -> Answer:
    """Ask a worker to claim nothing new; what runs goes on. It sees this at its next heartbeat."""
    return _ask_worker(connection, DRAIN, "worker.drain", worker_id, actor, reason)


def undrain(connection: Connection, worker_id: str, actor: Actor, reason: str | None = None) -> Answer:
    """Take a drain back: the worker claims again from its next heartbeat on, unless it was asked to stop."""

    def move() -> tuple[Answer, Row | None, Row | None]:
        row = _row(connection, WORKER, {"name": worker_id})
        if row is None:
            return Answer(worker_id, None, "missing", f"There is no worker '{worker_id}'."), None, None
        if row["stopped_at"] is not None or row["is_stopping"]:
            word = "stopping" if row["stopped_at"] is None else "stopped"
            told = f"Worker {worker_id} {'is' if word == 'stopping' else 'has'} {word}: start another one."
            return Answer(worker_id, word, "forbidden", told), None, None
        if _row(connection, UNDRAIN, {"name": worker_id}) is None:
            told = f"Worker {worker_id} was not asked to drain."
            return Answer(worker_id, None, "already", told), None, None
        told = f"Worker {worker_id} was asked to claim again."
        return Answer(worker_id, "asked", "asked", told), None, {"asked": True}

    return act(connection, actor, "worker.undrain", ("worker", worker_id), reason, move)


def stop(connection: Connection, worker_id: str, actor: Actor, reason: str | None = None) -> Answer:
    """Ask a worker to stop as SIGTERM would. It sees this at its next heartbeat."""
    return _ask_worker(connection, STOP, "worker.stop", worker_id, actor, reason)


__all__ = [
    "LARGEST_LIMIT", "MOST_DAYS", "PUBLISH", "Same", "drain", "keep", "limit", "pause", "resume", "stop",
    "undrain",
]  # fmt: skip
