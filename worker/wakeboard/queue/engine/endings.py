"""The end of an attempt, recorded by its worker: succeed, fail, release.

Each statement answers by run and epoch: a batch may hold two attempts of one run, one of which has lost it.
"""

from __future__ import annotations

from wakeboard.queue.engine.attempts import ERROR_GROUPS_CTE, history_cte, statistics_cte, status_after
from wakeboard.queue.engine.fence import CLEAR_LEASE, IS_RUNNING, held_cte

# The setting that marks a handler's own transaction. It is gone when the transaction has ended in any way.
MARK = "wakeboard.transaction"
# When an attempt began and ended: the database's clock minus durations that the worker measured.
_BEGUN_ENDED = """clock_timestamp() - make_interval(secs => a.ago + a.took) AS begun,
        clock_timestamp() - make_interval(secs => a.ago) AS ended"""
_OF_ATTEMPT = "r.id, r.attempts AS attempt, r.lease_epoch AS epoch, r.job_type, $1::text AS worker_id"


def _succeeded(place: str) -> str:
    """Return the CTEs that make the runs of ``held`` succeed; ``place`` is how a row is found."""
    values = "'succeeded', result::jsonb, output_tail, note, most, timeout"
    return f"""
moved AS (
    UPDATE wakeboard.job_runs AS r
    SET status = 'succeeded', started_at = h.begun, finished_at = h.ended, {CLEAR_LEASE}
    FROM held AS h
    WHERE {place}
    RETURNING {_OF_ATTEMPT}, h.due_at, h.begun, h.ended, h.result, h.output_tail, h.note, h.most, h.timeout
), {history_cte("outcome, result, output_tail, note, max_attempts, timeout_seconds", values)}, {
        statistics_cte("'succeeded'")
    }"""


# $1 worker id, $2 ids, $3 epochs, $4 seconds since each ended, $5 seconds each took, $6 results (JSON text),
# $7 output tails, $8 notes, $9/$10 max_attempts and timeout used.
SUCCEED = f"""
WITH answer AS (
    SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::float8[], $6::text[], $7::text[],
        $8::text[], $9::int[], $10::float8[])
        AS a (id, epoch, ago, took, result, output_tail, note, most, timeout)
), {held_cte("r.run_at AS due_at, a.result, a.output_tail, a.note, a.most, a.timeout, " + _BEGUN_ENDED)}, {
    _succeeded("r.ctid = h.tid")
}
SELECT id, epoch FROM moved
"""

# The one run of a handler's own transaction, which has its mark. It waits for the lock of the row, whose
# holder may have moved it, so the update finds it by its id. It takes values and no arrays: a generic plan is
# as good as a custom one, so PostgreSQL keeps it. $1 worker id, $2 run, $3 epoch, $4 seconds it took, $5
# output, $6 timeout used, $7 mark.
SUCCEED_ALONE = f"""
WITH held AS MATERIALIZED (
    SELECT r.id, r.run_at AS due_at, NULL::text AS result, $5::text AS output_tail, NULL::text AS note,
        coalesce(r.max_attempts, (
            SELECT t.max_attempts FROM wakeboard.job_types AS t WHERE t.name = r.job_type
        )) AS most, $6::float8 AS timeout, clock_timestamp() - make_interval(secs => $4::float8) AS begun,
        clock_timestamp() AS ended
    FROM wakeboard.job_runs AS r
    WHERE r.id = $2::bigint AND r.lease_epoch = $3::bigint AND r.locked_by = $1::text AND {IS_RUNNING}
        AND current_setting('{MARK}', true) = $7::text
    FOR NO KEY UPDATE OF r
), {_succeeded("r.id = h.id")}
SELECT EXISTS (SELECT FROM moved), coalesce(current_setting('{MARK}', true) = $7::text, false)
"""

# $1 worker id, $2 ids, $3 epochs, $4 seconds since each ended, $5 seconds each took, $6 outcomes,
# $7 error codes, $8 messages, $9 permanent, $10 delays in seconds before the next try, $11 tracebacks,
# $12 output tails, $13 notes, $14/$15 max_attempts and timeout used, $16 error groups (NULL: not a failure),
# $17/$18 their templates and frames (NULL: sent within the last minute).
FAIL = f"""
WITH answer AS (
    SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::float8[], $6::text[], $7::text[],
        $8::text[], $9::bool[], $10::float8[], $11::text[], $12::text[], $13::text[], $14::int[],
        $15::float8[], $16::bigint[], $17::text[], $18::text[])
        AS a (id, epoch, ago, took, outcome, code, message, permanent, delay, traceback, output_tail, note,
              most, timeout, error_group, template, frame)
), {
    held_cte(
        "r.run_at AS due_at, a.outcome, a.code, a.message, a.delay, a.traceback, a.output_tail, a.note, "
        "a.most, a.timeout, a.error_group, a.template, a.frame, "
        f"{status_after('a.permanent', 'a.most')}, {_BEGUN_ENDED}"
    )
}, moved AS (
    UPDATE wakeboard.job_runs AS r
    SET status = h.status,
        failures = r.failures + CASE WHEN h.outcome = 'cancelled' THEN 0 ELSE 1 END,
        run_at = CASE h.status WHEN 'failed' THEN now() + make_interval(secs => h.delay) ELSE r.run_at END,
        finished_at = CASE h.status WHEN 'failed' THEN NULL ELSE h.ended END, started_at = h.begun,
        failed_at = CASE WHEN h.outcome = 'cancelled' THEN r.failed_at ELSE h.ended END,
        error_code = coalesce(h.code, r.error_code), last_error = coalesce(h.message, r.last_error),
        error_group = coalesce(h.error_group, r.error_group), {CLEAR_LEASE}
    FROM held AS h
    WHERE r.ctid = h.tid
    RETURNING {_OF_ATTEMPT}, r.status, h.due_at, h.begun, h.ended, h.outcome, h.code, h.message, h.traceback,
        h.output_tail, h.note, h.most, h.timeout, h.error_group, h.template, h.frame,
        CASE h.status WHEN 'failed' THEN r.run_at END AS next_run_at
), {
    history_cte(
        "outcome, error_code, error, traceback, output_tail, note, max_attempts, timeout_seconds, "
        "next_run_at, error_group",
        "outcome, code, message, traceback, output_tail, note, most, timeout, next_run_at, error_group",
    )
}, {ERROR_GROUPS_CTE}, {statistics_cte("outcome")}
SELECT id, epoch, status, next_run_at::text FROM moved
"""

# $1 worker id, $2 ids, $3 epochs, $4 seconds since each ended, $5 seconds each took, $6 output tails,
# $7 notes, $8 whether it had started. One that had not started counts as no attempt and has no row.
RELEASE = f"""
WITH answer AS (
    SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::float8[], $6::text[], $7::text[],
        $8::bool[])
        AS a (id, epoch, ago, took, output_tail, note, started)
), {
    held_cte(
        "r.run_at AS due_at, r.attempts AS attempt, a.output_tail, a.note, a.started, CASE WHEN "
        f"r.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE 'queued' END AS status, {_BEGUN_ENDED}"
    )
}, moved AS (
    UPDATE wakeboard.job_runs AS r
    SET status = h.status, attempts = r.attempts - CASE WHEN h.started THEN 0 ELSE 1 END,
        finished_at = CASE h.status WHEN 'cancelled' THEN h.ended END, {CLEAR_LEASE}
    FROM held AS h
    WHERE r.ctid = h.tid
    RETURNING r.id, h.attempt, r.lease_epoch AS epoch, r.job_type, $1::text AS worker_id, r.status, h.due_at,
        h.begun, h.ended, h.output_tail, h.note, h.started
), unlisted AS (
    DELETE FROM wakeboard.unbegun_attempts AS u USING moved AS m
    WHERE NOT m.started AND u.run_id = m.id AND u.lease_epoch = m.epoch
), {history_cte("outcome, output_tail, note", "'released', output_tail, note", where=" WHERE started")}
SELECT id, epoch, status FROM moved
"""
