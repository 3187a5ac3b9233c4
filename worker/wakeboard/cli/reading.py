"""The questions that the nouns which list runs, leases, types and effects ask. Never writes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from wakeboard.cli.reach import Connection, Row, one, rows
from wakeboard.core import leases as lease_words
from wakeboard.queue.effect_store import is_unconfirmed
from wakeboard.reporting import worker_states
from wakeboard.reporting.diagnosis.reasons import waiting

RUN_COLUMNS = """
    r.id, r.definition_id, r.scheduled_for, r.job_type, r.payload, r.priority, r.run_at, r.status, r.attempts,
    r.failures, r.max_attempts, r.timeout_seconds, r.lease_epoch, r.locked_by, r.locked_until,
    r.started_at, r.finished_at, r.failed_at, r.error_code, r.last_error, r.error_group,
    r.cancel_requested_at, r.idempotency_key, r.enqueued_by, r.origin_run_id, r.traceparent, r.progress_done,
    r.progress_total, r.created_at, r.updated_at"""

_IS_ALIVE = lease_words.IS_HEARD

RUN = f"""
SELECT {RUN_COLUMNS}, d.name AS schedule, now() AS as_of
FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.job_definitions AS d ON d.id = r.definition_id
WHERE r.id = %(id)s
"""
ATTEMPTS = """
SELECT attempt, lease_epoch, worker_id, due_at, started_at, finished_at, outcome, error_code, error,
    traceback, output_tail, result, note, max_attempts, timeout_seconds, next_run_at, refused_at,
    refused_outcome, extract(epoch FROM finished_at - started_at)::float8 AS took_seconds
FROM wakeboard.job_attempts WHERE run_id = %(id)s ORDER BY attempt, lease_epoch
"""
AUDIT = """
SELECT at, actor, role, source, action, result, reason, before, after FROM wakeboard.audit_log
WHERE target_type = 'run' AND target_id = %(id)s::text ORDER BY id
"""
LEASES = f"""
SELECT r.id, r.job_type, r.attempts AS attempt, r.locked_by AS worker, w.name AS worker_name, w.hostname,
    w.pid, r.started_at, r.locked_until, extract(epoch FROM r.locked_until - now())::float8 AS seconds_left,
    extract(epoch FROM now() - w.seen_at)::float8 AS seen_seconds_ago,
    extract(epoch FROM now() - ({lease_words.RENEWED_AT}))::float8 AS renewed_seconds_ago,
    {lease_words.STATE} AS state, {lease_words.SECONDS} AS lease_seconds,
    {lease_words.RENEWED_AT} AS renewed_at, {lease_words.TAKEOVER_AT} AS takeover_at,
    {lease_words.TAKERS} AS takers, r.cancel_requested_at
FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.workers AS w ON w.id = r.locked_by
LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
WHERE r.status = 'running' ORDER BY {lease_words.RANK}, r.locked_until, r.id LIMIT 1000
"""
REFUSED = """
SELECT run_id AS id, job_type, attempt, worker_id AS worker, refused_at, refused_outcome
FROM wakeboard.job_attempts WHERE refused_at > now() - interval '24 hours'
ORDER BY refused_at DESC, run_id DESC LIMIT 1000
"""
TYPES = f"""
SELECT t.name, CASE WHEN t.paused_at IS NULL THEN 'active' ELSE 'paused' END AS state,
    (SELECT count(*) FROM wakeboard.job_runs AS b
        WHERE b.job_type = t.name AND b.status = 'running') AS running,
    coalesce(t.max_running_operator, t.max_running) AS max_running, t.max_running AS max_running_code,
    t.max_running_operator, t.max_attempts, t.timeout_seconds, t.lease_seconds, t.backoff, t.schedule,
    here.workers, here.claiming_workers, here.draining_workers,
    t.paused_at, t.paused_by, t.paused_reason, t.paused_until,
    t.keep_succeeded_days, t.keep_dead_days, t.seen_at
FROM wakeboard.job_types AS t
CROSS JOIN LATERAL (
    SELECT count(*) AS workers, count(*) FILTER (WHERE {worker_states.is_claiming("w")}) AS claiming_workers,
        count(*) FILTER (WHERE {worker_states.is_draining("w")}) AS draining_workers
    FROM wakeboard.workers AS w WHERE {_IS_ALIVE} AND t.name = ANY(w.job_types)
) AS here ORDER BY t.name
"""
WORKERS = f"""
SELECT {worker_states.rank("w")} AS rank, w.id, w.name, w.hostname, w.pid, w.version, w.running,
    w.concurrency, w.job_types, w.is_tick, w.started_at, w.seen_at,
    extract(epoch FROM now() - w.seen_at)::float8 AS seen_seconds_ago,
    w.drain_requested_at, w.stop_requested_at, w.stopping_at, w.stopped_at
FROM wakeboard.workers AS w WHERE %(with_stopped)s OR {worker_states.is_recent("w")}
ORDER BY 1, w.id LIMIT 1000
"""
UNCONFIRMED = f"""
SELECT e.id, e.key, e.scope, e.run_id, r.job_type, e.attempt, e.lease_epoch, e.status, e.created_at,
    CASE e.scope WHEN 'global' THEN 'every run' ELSE 'this run alone' END AS counts_for,
    r.status AS run_status
FROM wakeboard.effects AS e LEFT JOIN wakeboard.job_runs AS r ON r.id = e.run_id
WHERE {is_unconfirmed("e")} AND (%(run_id)s::bigint IS NULL OR e.run_id = %(run_id)s)
ORDER BY e.created_at DESC, e.id DESC LIMIT 1000
"""


def database_now(connection: Connection) -> datetime:
    """Return the database's clock."""
    row = one(connection, "SELECT now() AS now")
    assert row is not None
    found: datetime = row["now"]
    return found


def runs_with(connection: Connection, ids: Sequence[int]) -> list[Row]:
    """Return the runs with ``ids`` that are still there, newest first."""
    wanted = "WHERE r.id = ANY(%(ids)s::bigint[]) ORDER BY r.id DESC"
    return rows(connection, f"SELECT {RUN_COLUMNS} FROM wakeboard.job_runs AS r {wanted}", {"ids": list(ids)})


def run(connection: Connection, run_id: int) -> Row | None:
    """Return one run with its attempts, audit rows and the reasons why it waits (none when it does not)."""
    values: dict[str, Any] = {"id": run_id}
    found = one(connection, RUN, values)
    if found is None:
        return None
    found["reasons"] = waiting(connection, run_id)[1]
    found["history"] = rows(connection, ATTEMPTS, values)
    found["audit"] = rows(connection, AUDIT, values)
    return found


def leases(connection: Connection) -> list[Row]:
    """Return what runs, what is in danger at the top; ``state`` is one of ``wakeboard.core.leases.NAMES``."""
    return rows(connection, LEASES)


def refused(connection: Connection) -> list[Row]:
    """Return the late answers of stale workers that were refused in 24 hours, newest first."""
    return rows(connection, REFUSED)


def types(connection: Connection) -> list[Row]:
    """Return every job type with its policy, what operators decided and how many run."""
    return rows(connection, TYPES)


def workers(connection: Connection, *, with_stopped: bool) -> list[Row]:
    """Return the workers, silent ones first; those that stopped a while ago only ``with_stopped``."""
    found = rows(connection, WORKERS, {"with_stopped": with_stopped})
    return [row | {"state": worker_states.NAMES[row.pop("rank")]} for row in found]


def unconfirmed_effects(connection: Connection, run_id: int | None = None) -> list[Row]:
    """Return effects begun by attempts that no longer run, newest first; of ``run_id`` alone when given."""
    return rows(connection, UNCONFIRMED, {"run_id": run_id})
