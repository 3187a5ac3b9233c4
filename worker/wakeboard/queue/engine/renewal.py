"""A lease goes on: renewed by who holds it, who hears at the same time that a cancel was asked for."""

from __future__ import annotations

from wakeboard.queue.engine.fence import held

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
