"""What stands between a waiting run and a worker, in one statement. Opens no connection.

Cheap on a table of ten million runs: each count goes along an index that was made for it and stops at CAP.
"""

from __future__ import annotations

from wakeboard.core.leases import IS_ALIVE
from wakeboard.core.states import CLAIMABLE, sql_list
from wakeboard.reporting import worker_states

# Counting stops here; people read "10 000+".
CAP = 10_000
# The present rate is that of so many whole minutes and the one that runs.
RATE_MINUTES = 5
DEFAULT_ATTEMPTS = 10

_CLAIMABLE = sql_list(CLAIMABLE)
_KNOWS = "r.job_type = ANY(w.job_types)"
_TAKES = f"{worker_states.is_claiming('w')} AND {_KNOWS}"
_DRAINS = f"{worker_states.is_draining('w')} AND {_KNOWS}"
_SINCE = f"date_trunc('minute', now()) - interval '{RATE_MINUTES} minutes'"

# %(id)s is the run; no row when it does not wait. What is claimed first: a better priority, then what was due
# earlier. Each priority is asked for by itself, so that runs of a better one that are not due cost nothing.
QUESTION = f"""
SELECT r.id, r.job_type, r.status, r.run_at, r.attempts, r.failures, r.error_code, now() AS now,
    r.run_at <= now() AS is_due,
    coalesce(r.max_attempts, t.max_attempts, {DEFAULT_ATTEMPTS}) AS most_attempts,
    t.name IS NOT NULL AS is_known, t.paused_at, t.paused_by, t.paused_reason, t.paused_until,
    coalesce(t.max_running_operator, t.max_running) AS most_running,
    running.runs AS running, ahead.runs AS ahead, ended.runs AS ended,
    extract(epoch FROM now() - ({_SINCE}))::float8 AS ended_seconds,
    living.able AS workers, living.slots, living.busy, living.draining, living.alive AS others
FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
CROSS JOIN LATERAL (
    SELECT count(*) AS runs FROM (
        SELECT FROM wakeboard.job_runs AS b WHERE b.status = 'running' AND b.job_type = r.job_type
        ORDER BY b.locked_until LIMIT {CAP + 1}
    ) AS one
) AS running
CROSS JOIN LATERAL (
    SELECT least(sum(part.runs), {CAP + 1})::bigint AS runs
    FROM generate_series(0, r.priority) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT count(*) AS runs FROM (
            SELECT FROM wakeboard.job_runs AS b
            WHERE b.status IN ({_CLAIMABLE}) AND b.job_type = r.job_type AND b.priority = p.priority
                AND b.run_at <= CASE WHEN p.priority = r.priority THEN least(r.run_at, now()) ELSE now() END
                AND (p.priority < r.priority OR (b.run_at, b.id) < (r.run_at, r.id))
            ORDER BY b.run_at, b.id LIMIT {CAP + 1}
        ) AS one
    ) AS part
) AS ahead
CROSS JOIN LATERAL (
    SELECT coalesce(sum(s.runs), 0)::bigint AS runs FROM (
        SELECT runs FROM wakeboard.statistics_deltas WHERE minute >= {_SINCE} AND job_type = r.job_type
        UNION ALL
        SELECT runs FROM wakeboard.statistics_rollups WHERE minute >= {_SINCE} AND job_type = r.job_type
    ) AS s
) AS ended
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE {_TAKES}) AS able, count(*) AS alive,
        count(*) FILTER (WHERE {_DRAINS}) AS draining,
        coalesce(sum(w.concurrency) FILTER (WHERE {_TAKES}), 0)::bigint AS slots,
        coalesce(sum(w.running) FILTER (WHERE {_TAKES}), 0)::bigint AS busy
    FROM wakeboard.workers AS w WHERE {IS_ALIVE}
) AS living
WHERE r.id = %(id)s AND r.status IN ({_CLAIMABLE})
"""
