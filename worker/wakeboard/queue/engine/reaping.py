"""Takes runs from workers that are gone: for the reaper, and for a person who releases a lease.

Runs whose attempt is listed as not begun (``unbegun``) are given back first, and lose no attempt. The others
may have begun.
"""

from __future__ import annotations

from wakeboard.core.leases import IS_ALIVE
from wakeboard.queue.engine.attempts import ERROR_GROUPS_CTE, history_cte, statistics_cte, status_after
from wakeboard.queue.engine.fence import CLEAR_LEASE, IS_RUNNING
from wakeboard.queue.engine.unbegun import MAY_HAVE_BEGUN

# Leases that ended, oldest first. The policy is the type's as its workers published it: any reaper can
# decide for any type. $1 how many, $2 runs to skip.
ENDED_LEASES = """
SELECT r.id, r.lease_epoch, r.locked_by, r.job_type, r.failures,
    coalesce(r.max_attempts, t.max_attempts, 10), coalesce(t.backoff, 'exponential 10s cap 30m')
FROM wakeboard.job_runs AS r
LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
WHERE r.status = 'running' AND r.locked_until < now() AND r.id NOT IN (SELECT unnest($2::bigint[]))
ORDER BY r.locked_until
LIMIT $1
"""


def _reap(guard: str) -> str:
    """Return the statement that takes runs that may have begun from their workers, where ``guard`` is true.

    $1 ids, $2 epochs as read, $3 delays in seconds (used when it had failed before), $4 max_attempts, $5 why,
    $6 error groups, $7 their template.
    The epoch grows, so what the old worker still sends fits no row.
    """
    return f"""
WITH answer AS (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::float8[], $4::int[], $6::bigint[])
        AS a (id, epoch, delay, most, error_group)
), held AS MATERIALIZED (
    SELECT ended.*
    FROM answer AS a
    CROSS JOIN LATERAL (
        SELECT r.id, r.run_at AS due_at, r.locked_by AS worker_id, r.started_at AS begun, now() AS ended,
            a.most, a.error_group, CASE WHEN r.failures = 0 THEN 0 ELSE a.delay END AS delay,
            {status_after("false", "a.most")}
        FROM wakeboard.job_runs AS r
        WHERE r.id = a.id AND r.lease_epoch = a.epoch AND {IS_RUNNING} AND {guard} AND {MAY_HAVE_BEGUN}
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ) AS ended
), moved AS (
    UPDATE wakeboard.job_runs AS r
    SET status = h.status, lease_epoch = r.lease_epoch + 1, failures = r.failures + 1,
        run_at = CASE h.status WHEN 'failed' THEN now() + make_interval(secs => h.delay) ELSE r.run_at END,
        finished_at = CASE h.status WHEN 'failed' THEN NULL ELSE h.ended END,
        failed_at = h.ended, error_code = 'lease_lost', last_error = $5::text,
        error_group = h.error_group, {CLEAR_LEASE}
    FROM held AS h
    WHERE r.id = h.id
    RETURNING r.id, r.attempts AS attempt, r.lease_epoch - 1 AS epoch, r.job_type, h.worker_id, r.status,
        h.due_at, h.begun, h.ended, h.most, CASE h.status WHEN 'failed' THEN r.run_at END AS next_run_at,
        h.error_group, 'lease_lost' AS code, $7::text AS template, NULL::text AS frame
), {
        history_cte(
            "outcome, error_code, error, max_attempts, next_run_at, error_group",
            "'lost', code, $5::text, most, next_run_at, error_group",
        )
    }, {ERROR_GROUPS_CTE}, {statistics_cte("'lost'")}
SELECT id, status, next_run_at::text, job_type, attempt, worker_id FROM moved
"""


def _give_back(guard: str) -> str:
    """Return the statement that takes runs that have not begun from their workers, where ``guard`` is true.

    $1 ids, $2 epochs as read. It returns the columns of ``_reap``. The run is locked before its attempt is
    struck off the list, for that cannot be undone.
    """
    return f"""
WITH answer AS (
    SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS a (id, epoch)
), held AS MATERIALIZED (
    SELECT ended.*
    FROM answer AS a
    CROSS JOIN LATERAL (
        SELECT r.id, r.lease_epoch AS epoch, r.locked_by AS worker_id,
            CASE WHEN r.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE 'queued' END AS status
        FROM wakeboard.job_runs AS r
        WHERE r.id = a.id AND r.lease_epoch = a.epoch AND {IS_RUNNING} AND {guard}
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ) AS ended
), unbegun AS (
    DELETE FROM wakeboard.unbegun_attempts AS u USING held AS h
    WHERE u.run_id = h.id AND u.lease_epoch = h.epoch
    RETURNING h.id, h.worker_id, h.status
)
UPDATE wakeboard.job_runs AS r
SET status = u.status, lease_epoch = r.lease_epoch + 1, attempts = r.attempts - 1,
    finished_at = CASE u.status WHEN 'cancelled' THEN now() END, {CLEAR_LEASE}
FROM unbegun AS u
WHERE r.id = u.id
RETURNING r.id, r.status, NULL::text, r.job_type, r.attempts + 1, u.worker_id
"""


_IS_LEASE_ENDED = "r.locked_until < now()"
# For operators also when the worker has been silent for two heartbeats.
_IS_RELEASABLE = f"""(r.locked_until < now() OR NOT EXISTS (
        SELECT 1 FROM wakeboard.workers AS w WHERE w.id = r.locked_by AND {IS_ALIVE}
    ))"""
REAP, GIVE_BACK = _reap(_IS_LEASE_ENDED), _give_back(_IS_LEASE_ENDED)
RELEASE_LEASE, RELEASE_UNBEGUN = _reap(_IS_RELEASABLE), _give_back(_IS_RELEASABLE)
# For a run whose return the database refuses: it ends as dead, which no rule on waiting runs can refuse.
# $1 id, $2 epoch as read, $3 why.
END_REFUSED = f"""
UPDATE wakeboard.job_runs AS r
SET status = 'dead', finished_at = now(), failed_at = now(), error_code = 'lease_lost', last_error = $3::text,
    {CLEAR_LEASE}
WHERE r.id = $1 AND r.lease_epoch = $2 AND {IS_RUNNING} AND r.locked_until < now()
RETURNING r.id, r.status, NULL::text, r.job_type, r.attempts, NULL::text
"""
