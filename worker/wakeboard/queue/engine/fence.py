"""The fence of a worker's moves, the renewal of leases, and the statements after a refused answer.

A renewal returns pending cancel requests.
"""

from __future__ import annotations

from wakeboard.core.states import Status

IS_RUNNING = f"(r.status || '') = '{Status.RUNNING.value}'"
# Not now(): a handler's transaction() began when its work did, and a bulk operation that counted the run
# since then must see that it has changed.
CLEAR_LEASE = "locked_by = NULL, locked_until = NULL, updated_at = statement_timestamp()"


def held_cte(columns: str) -> str:
    """Return the CTE that locks the rows that the attempts of ``answer`` still own; locked ones are skipped.

    ``columns`` are computed under the lock, from the row before the move. LATERAL probes row by row: as a
    join, a plan made while the table was small walked the whole table (see ``db.PLANNING``). ``tid``: see
    ``claims.UPDATE_CLAIMED``.
    """
    return f"""
held AS MATERIALIZED (
    SELECT owned.*
    FROM answer AS a
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid, {columns}
        FROM wakeboard.job_runs AS r
        WHERE r.id = a.id AND r.lease_epoch = a.epoch AND r.locked_by = $1 AND {IS_RUNNING}
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ) AS owned
)"""


# The state of the rows that are missing from the answer of a batch. $1 ids.
RUN_STATES = "SELECT id, lease_epoch, locked_by, status FROM wakeboard.job_runs WHERE id = ANY($1::bigint[])"

# Stores the late answer of a worker with the attempt that lost the lease. $1 run, $2 epoch, $3 outcome.
NOTE_REFUSAL = """
UPDATE wakeboard.job_attempts SET refused_at = now(), refused_outcome = $3
WHERE run_id = $1 AND lease_epoch = $2 AND outcome = 'lost' AND refused_at IS NULL
"""


# $1 worker id, $2 ids, $3 epochs, $4 lease in seconds per run, $5/$6 progress done/total (NULL: none).
# Answers by run and epoch: two attempts of one run may be renewed at once, and only one of them owns it.
# Ignores locked_until: a lease that ended and that nobody has taken may still be renewed.
RENEW = f"""
WITH answer AS (
    SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::bigint[], $6::bigint[])
        AS a (id, epoch, lease_seconds, done, total)
), {held_cte("a.lease_seconds, a.done, a.total")}
UPDATE wakeboard.job_runs AS r
SET locked_until = clock_timestamp() + make_interval(secs => h.lease_seconds),
    progress_done = coalesce(h.done, r.progress_done), progress_total = coalesce(h.total, r.progress_total)
FROM held AS h
WHERE r.ctid = h.tid
RETURNING r.id, r.lease_epoch, r.cancel_requested_at IS NOT NULL
"""

# The runs of a worker for which a cancel was requested. $1 ids.
CANCELS = """
SELECT id, lease_epoch FROM wakeboard.job_runs
WHERE id = ANY($1::bigint[]) AND cancel_requested_at IS NOT NULL AND (status || '') = 'running'
"""
