"""Who owns a run: the guard of a worker's moves, the renewal of leases, the statements after a refusal.

A renewal returns pending cancel requests.
"""

from __future__ import annotations

from wakeboard.core.states import Status

RUNNING = f"(r.status || '') = '{Status.RUNNING.value}'"
# Not now(): a handler's transaction() began when its work did, and what was counted since has not moved.
FREED = "locked_by = NULL, locked_until = NULL, updated_at = statement_timestamp()"


def held(columns: str) -> str:
    """Return the CTE that locks the rows the answers still own, skipping what somebody holds.

    What is decided from the row as it was before the move is computed here, under the lock. LATERAL asks row
    by row: as a join, a plan made while the table was small walked the whole table (see ``db.PLANNING``).
    ``tid``: see ``claims.TAKEN``.
    """
    return f"""
held AS MATERIALIZED (
    SELECT owned.*
    FROM answer AS a
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid, {columns}
        FROM wakeboard.job_runs AS r
        WHERE r.id = a.id AND r.lease_epoch = a.epoch AND r.locked_by = $1 AND {RUNNING}
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ) AS owned
)"""


# How the rows stand that a batch did not answer for. $1 ids.
STANDING = "SELECT id, lease_epoch, locked_by, status FROM wakeboard.job_runs WHERE id = ANY($1::bigint[])"

# A stale worker's late answer, kept on the attempt that lost the lease. $1 run, $2 epoch, $3 outcome.
NOTE_REFUSAL = """
UPDATE wakeboard.job_attempts SET refused_at = now(), refused_outcome = $3
WHERE run_id = $1 AND lease_epoch = $2 AND outcome = 'lost' AND refused_at IS NULL
"""


# $1 worker id, $2 ids, $3 epochs, $4 lease in seconds per run, $5/$6 progress done/total (NULL: not told).
# Answers by run and epoch: two attempts of one run may be asked for at once, and only one of them owns it.
# Does not look at locked_until: a late renewal of a lease that nobody took is still ours.
RENEW = f"""
WITH answer AS (
    SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::bigint[], $6::bigint[])
        AS a (id, epoch, lease_seconds, done, total)
), {held("a.lease_seconds, a.done, a.total")}
UPDATE wakeboard.job_runs AS r
SET locked_until = clock_timestamp() + make_interval(secs => h.lease_seconds),
    progress_done = coalesce(h.done, r.progress_done), progress_total = coalesce(h.total, r.progress_total)
FROM held AS h
WHERE r.ctid = h.tid
RETURNING r.id, r.lease_epoch, r.cancel_requested_at IS NOT NULL
"""

# Cancels asked for among the runs one holds. $1 ids.
CANCELS = """
SELECT id, lease_epoch FROM wakeboard.job_runs
WHERE id = ANY($1::bigint[]) AND cancel_requested_at IS NOT NULL AND (status || '') = 'running'
"""
