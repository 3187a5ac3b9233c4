"""The CTEs that record ended attempts: their history, their statistics, their error groups.

They read the rows of a CTE called ``moved``.
"""

from __future__ import annotations

from wakeboard.core.errors.error_groups import QUIET_DAYS

# Quarter powers of two of milliseconds, 100 to 260; reporting.statistics makes percentiles of them.
# (``extract`` would return a numeric, which is converted to a float digit by digit.)
_BUCKET = "least(260, ceil(4 * ln(greatest(0.001, {ms})) / 0.6931471805599453 + 140))::smallint"


def statistics_cte(outcome: str) -> str:
    """Return the CTE that counts the attempts of ``moved``; OFFSET 0 has each duration computed once."""
    return f"""
counted AS (
    INSERT INTO wakeboard.statistics_deltas (minute, job_type, outcome, duration_bucket, wait_bucket,
        runs, duration_ms, duration_max_ms, wait_ms, wait_max_ms)
    SELECT date_trunc('minute', now()), job_type, outcome, duration_bucket, wait_bucket,
        count(*), sum(duration_ms), max(duration_ms), sum(wait_ms), max(wait_ms)
    FROM (
        SELECT job_type, outcome, duration_ms, wait_ms,
            {_BUCKET.format(ms="duration_ms")} AS duration_bucket,
            {_BUCKET.format(ms="wait_ms")} AS wait_bucket
        FROM (
            SELECT job_type, {outcome} AS outcome,
                date_part('epoch', ended - begun) * 1000 AS duration_ms,
                greatest(0, date_part('epoch', begun - due_at) * 1000) AS wait_ms
            FROM moved
            OFFSET 0
        ) AS timed
    ) AS bucketed
    GROUP BY job_type, outcome, duration_bucket, wait_bucket
)"""


def history_cte(columns: str, values: str, *, where: str = "") -> str:
    """Return the CTE that inserts the attempts of ``moved``, with the ``columns`` of a move."""
    return f"""
history AS (
    INSERT INTO wakeboard.job_attempts
        (run_id, attempt, lease_epoch, job_type, worker_id, due_at, started_at, finished_at, {columns})
    SELECT id, attempt, epoch, job_type, worker_id, due_at, begun, ended, {values}
    FROM moved{where}
)"""


# The error groups of those rows of ``moved`` that carry a template: inserted when new, else updated. A
# template is sent once a minute per group (runtime.loop.result_queue), so many failures of one kind do not
# wait at one row; a locked row is skipped. In the order of their ids, or two batches deadlock.
ERROR_GROUPS_CTE = f"""
met AS (
    INSERT INTO wakeboard.error_groups (id, fingerprint, error_code, job_type, template, frame, first_run_id)
    SELECT DISTINCT ON (error_group) error_group, lpad(to_hex(error_group), 13, '0'), code, job_type,
        template, frame, id
    FROM moved WHERE template IS NOT NULL
    ORDER BY error_group, id
    ON CONFLICT DO NOTHING
), seen AS (
    UPDATE wakeboard.error_groups AS g
    SET last_seen_at = now(),
        returned_at = CASE WHEN known.was_quiet THEN now() ELSE g.returned_at END,
        quiet_from_at = CASE WHEN known.was_quiet THEN known.last_seen_at ELSE g.quiet_from_at END
    FROM (
        SELECT k.id, k.last_seen_at, k.last_seen_at < now() - interval '{QUIET_DAYS} days' AS was_quiet
        FROM wakeboard.error_groups AS k
        WHERE k.id = ANY (ARRAY(SELECT m.error_group FROM moved AS m WHERE m.template IS NOT NULL))
        ORDER BY k.id
        FOR UPDATE SKIP LOCKED
    ) AS known
    WHERE g.id = known.id
)"""


def status_after(permanent: str, most: str) -> str:
    """Return the SQL of a run's status after a failed attempt: a requested cancel wins, then the last try.

    ``permanent`` and ``most`` are SQL: whether no retry helps, and the largest number of attempts.
    """
    return f"""CASE
        WHEN r.cancel_requested_at IS NOT NULL THEN 'cancelled'
        WHEN {permanent} OR r.failures + 1 >= {most} THEN 'dead'
        ELSE 'failed' END AS status"""
