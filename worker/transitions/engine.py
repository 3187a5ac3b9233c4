"""The worker's moves: claim, renew, succeed, fail, release, reap. One guarded statement each.

Every statement names ``id``, ``lease_epoch``, ``locked_by`` and ``status = 'running'``, the last one
written so that no index but the primary key fits (a plain comparison made the planner walk a status
index: five times the cost at batch 500). A row that somebody else holds for a moment is skipped, never
waited for, so one locked row cannot stop a batch; whoever is missing from the answer asks ``STANDING``.

Placeholders are PostgreSQL's own (``$1``): the supervisor sends these texts through libpq, tests and
the command line through ``psycopg.RawCursor``. Arrays run parallel, one entry per run; one that would hold
nothing but NULL may be empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from worker.fingerprint import QUIET_DAYS
from worker.leases import IS_HEARD
from worker.states import CLAIMABLE, Status, sql_list

# Session settings that these statements are written for. Plans are made once, perhaps on the empty table of a
# new installation, and kept until the table is analyzed: a finish planned then cost 750 µs a run when 25,000
# rows had come, 45 with these.
PLANNING = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # On an analyzed table with little to do a claim took the status index and a sort, per priority: 94 ms
    # instead of 13 with 30,000 dead rows under an old snapshot.
    "enable_sort": "off",
}

_RUNNING = f"(r.status || '') = '{Status.RUNNING.value}'"
_CLAIMABLE = sql_list(CLAIMABLE)
_FREED = "locked_by = NULL, locked_until = NULL, updated_at = now()"

# What the worker that claims a run needs to know of it; the payload stays text, decoded in the child. A fire
# carries its schedule's zone, in the brackets of RFC 9557: its handler wants to know the local day.
_CLAIMED = """
RETURNING r.id, r.lease_epoch, r.attempts, r.failures, r.job_type, r.payload::text, r.idempotency_key,
    r.definition_id,
    CASE WHEN r.scheduled_for IS NOT NULL THEN r.scheduled_for::text || coalesce((
        SELECT '[' || left(d.timezone, 64) || ']' FROM wakeboard.job_definitions AS d
        WHERE d.id = r.definition_id
    ), '') END,
    r.created_at::text, r.max_attempts, r.timeout_seconds, r.traceparent, r.priority, r.run_at::text
"""
# ``tid`` is where a row stood when it was locked: nothing can move it until we commit, so the update finds it
# without going down an index again. A row that somebody changed after our snapshot stands where the snapshot
# does not see it, and is left out like one that somebody holds.
_TAKEN = """
UPDATE wakeboard.job_runs AS r
SET status = 'running', lease_epoch = r.lease_epoch + 1, attempts = r.attempts + 1,
    locked_by = $2, locked_until = clock_timestamp() + make_interval(secs => head.lease_seconds),
    started_at = clock_timestamp(), cancel_requested_at = NULL, updated_at = now(),
    progress_done = NULL, progress_total = NULL
FROM head
WHERE r.ctid = head.tid
"""

# Priorities are 0 (first) to PRIORITIES - 1.
PRIORITIES = 5
_LEVELS = f"(VALUES {', '.join(f'({n}::smallint)' for n in range(PRIORITIES))}) AS level (n)"


# What a claim from the first row on takes for its last two values.
WHOLE: tuple[Sequence[str], Sequence[int]] = ([], [])


def _order(oldest_first: bool) -> str:
    return "picked.run_at, picked.id" if oldest_first else "picked.priority, picked.run_at, picked.id"


@cache
def claim(limit: int, *, oldest_first: bool = False) -> str:
    """Return the statement that claims up to ``limit`` due runs of unlimited, unpaused types.

    $1 text[] types, $2 worker id, $3 lease in seconds. Each type and priority is probed apart, so delayed
    rows of a better priority are never walked; rows are locked inside the probe, because candidates cut
    before the lock let a second worker starve. The limit is a literal: the planner guesses a bound one
    as a tenth of the table. ``oldest_first`` ignores priority, so that nothing starves.

    $4 timestamptz[], $5 bigint[]: behind which ``run_at`` and id each probe begins, PRIORITIES of them for
    each of the types in turn; empty (``WHOLE``) begins at the first. What was claimed stays in the index
    until vacuum comes, and under an old snapshot it cannot come: see ``worker.loop.front``.
    """
    return f"""
WITH head AS MATERIALIZED (
    SELECT picked.tid, picked.lease_seconds
    FROM (
        SELECT t.name, greatest(coalesce(t.lease_seconds, $3::float8), $3::float8) AS lease_seconds,
            (asked.place::int - 1) * {PRIORITIES} + 1 AS place
        FROM unnest($1::text[]) WITH ORDINALITY AS asked (name, place)
        JOIN wakeboard.job_types AS t ON t.name = asked.name
        WHERE t.paused_at IS NULL AND coalesce(t.max_running_operator, t.max_running) IS NULL
    ) AS wanted
    CROSS JOIN {_LEVELS}
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid, r.id, r.priority, r.run_at, wanted.lease_seconds
        FROM wakeboard.job_runs AS r
        WHERE r.job_type = wanted.name AND r.priority = level.n
            AND r.status IN ({_CLAIMABLE}) AND r.run_at <= now()
            AND (r.run_at, r.id) > (
                coalesce(($4::timestamptz[])[wanted.place + level.n], '-infinity'),
                coalesce(($5::bigint[])[wanted.place + level.n], 0)
            )
        ORDER BY r.run_at, r.id
        LIMIT {limit:d}
        FOR UPDATE OF r SKIP LOCKED
    ) AS picked
    ORDER BY {_order(oldest_first)}
    LIMIT {limit:d}
)
{_TAKEN}{_CLAIMED}"""


# Which types have something to claim, now or later: jumps from type to type in the claim's own index.
TYPES_WITH_WORK = f"""
WITH RECURSIVE found AS (
    (SELECT r.job_type FROM wakeboard.job_runs AS r WHERE r.status IN ({_CLAIMABLE})
     ORDER BY r.job_type LIMIT 1)
    UNION ALL
    SELECT (SELECT r.job_type FROM wakeboard.job_runs AS r
            WHERE r.status IN ({_CLAIMABLE}) AND r.job_type > found.job_type
            ORDER BY r.job_type LIMIT 1)
    FROM found WHERE found.job_type IS NOT NULL
)
SELECT job_type FROM found WHERE job_type IS NOT NULL
"""

# The first of the two statements of a limited claim: in one alone, a stale snapshot let four workers
# start sixteen under a limit of four. $1 type; the row lock is what makes the count that follows true.
LOCK_LIMIT = """
SELECT coalesce(max_running_operator, max_running)
FROM wakeboard.job_types
WHERE name = $1 AND paused_at IS NULL AND coalesce(max_running_operator, max_running) IS NOT NULL
FOR UPDATE SKIP LOCKED
"""


@cache
def claim_limited(limit: int, *, oldest_first: bool = False) -> str:
    """Return the statement that claims up to ``limit`` due runs of one limited type.

    $1 type, $2 worker id, $3 lease in seconds, $4 how many of the type may run at once. Only to be sent
    in the transaction that holds ``LOCK_LIMIT``. Priorities are probed apart, as in ``claim``.
    """
    return f"""
WITH room AS MATERIALIZED (
    SELECT greatest(coalesce(t.lease_seconds, $3::float8), $3::float8) AS lease_seconds,
        greatest(0, least({limit:d}, $4::int - (
            SELECT count(*) FROM wakeboard.job_runs AS busy
            WHERE busy.job_type = $1::text AND busy.status = 'running'
        ))) AS runs
    FROM wakeboard.job_types AS t
    WHERE t.name = $1::text
), head AS MATERIALIZED (
    SELECT picked.tid, (SELECT room.lease_seconds FROM room) AS lease_seconds
    FROM {_LEVELS}
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid, r.id, r.priority, r.run_at
        FROM wakeboard.job_runs AS r
        WHERE r.job_type = $1::text AND r.priority = level.n
            AND r.status IN ({_CLAIMABLE}) AND r.run_at <= now()
        ORDER BY r.run_at, r.id
        LIMIT (SELECT room.runs FROM room)
        FOR UPDATE OF r SKIP LOCKED
    ) AS picked
    ORDER BY {_order(oldest_first)}
    LIMIT (SELECT room.runs FROM room)
)
{_TAKEN}{_CLAIMED}"""


def _held(columns: str) -> str:
    """Return the CTE that locks the rows the answers still own, skipping what somebody holds.

    What is decided from the row as it was before the move is computed here, under the lock. LATERAL asks row
    by row: as a join, a plan made while the table was small walked the whole table (see ``PLANNING``).
    ``tid``: see ``_TAKEN``.
    """
    return f"""
held AS MATERIALIZED (
    SELECT owned.*
    FROM answer AS a
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid, {columns}
        FROM wakeboard.job_runs AS r
        WHERE r.id = a.id AND r.lease_epoch = a.epoch AND r.locked_by = $1 AND {_RUNNING}
        FOR UPDATE OF r SKIP LOCKED
    ) AS owned
)"""


# $1 worker id, $2 ids, $3 epochs, $4 lease in seconds per run, $5/$6 progress done/total (NULL: not told).
# Does not look at locked_until: a late renewal of a lease that nobody took is still ours.
RENEW = f"""
WITH answer AS (
    SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::bigint[], $6::bigint[])
        AS a (id, epoch, lease_seconds, done, total)
), {_held("a.lease_seconds, a.done, a.total")}
UPDATE wakeboard.job_runs AS r
SET locked_until = clock_timestamp() + make_interval(secs => h.lease_seconds),
    progress_done = coalesce(h.done, r.progress_done), progress_total = coalesce(h.total, r.progress_total)
FROM held AS h
WHERE r.ctid = h.tid
RETURNING r.id, r.cancel_requested_at IS NOT NULL
"""

# Half powers of two of milliseconds, 0 to 63: what worker.statistics turns back into percentiles.
# (``extract`` would give a numeric, which becomes a float by way of its digits.)
_BUCKET = "least(63, greatest(0, ceil(2 * ln(greatest(0.001, {ms})) / 0.6931471805599453 + 20)))::smallint"


def _counted(outcome: str) -> str:
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


def _history(columns: str, values: str, *, where: str = "") -> str:
    """Return the CTE that writes the attempts of ``moved``."""
    return f"""
history AS (
    INSERT INTO wakeboard.job_attempts
        (run_id, attempt, lease_epoch, job_type, worker_id, due_at, started_at, finished_at, {columns})
    SELECT id, attempt, epoch, job_type, worker_id, due_at, begun, ended, {values}
    FROM moved{where}
)"""


# The error groups of ``moved`` whose rows carry a template: made when new, else seen again. A template
# is sent once a minute per group (worker.loop.told), so many failures of one kind do not queue at one row;
# a row that somebody holds, be it to mute it, is skipped. In the order of their ids, or two batches deadlock.
_GROUPED = f"""
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

# When an attempt began and ended: the database's clock less durations that the worker measured.
_BEGUN_ENDED = """clock_timestamp() - make_interval(secs => a.ago + a.took) AS begun,
        clock_timestamp() - make_interval(secs => a.ago) AS ended"""
_OF_ATTEMPT = "r.id, r.attempts AS attempt, r.lease_epoch AS epoch, r.job_type, $1::text AS worker_id"

# $1 worker id, $2 ids, $3 epochs, $4 seconds since each ended, $5 seconds each took, $6 results (JSON text),
# $7 output tails, $8 notes, $9/$10 max_attempts and timeout used.
SUCCEED = f"""
WITH answer AS (
    SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::float8[], $6::text[], $7::text[],
        $8::text[], $9::int[], $10::float8[])
        AS a (id, epoch, ago, took, result, output_tail, note, most, timeout)
), {
    _held("r.run_at AS due_at, a.result, a.output_tail, a.note, a.most, a.timeout, " + _BEGUN_ENDED)
}, moved AS (
    UPDATE wakeboard.job_runs AS r
    SET status = 'succeeded', started_at = h.begun, finished_at = h.ended, {_FREED}
    FROM held AS h
    WHERE r.ctid = h.tid
    RETURNING {_OF_ATTEMPT}, h.due_at, h.begun, h.ended, h.result, h.output_tail, h.note, h.most, h.timeout
), {
    _history(
        "outcome, result, output_tail, note, max_attempts, timeout_seconds",
        "'succeeded', result::jsonb, output_tail, note, most, timeout",
    )
}, {_counted("'succeeded'")}
SELECT id FROM moved
"""


def _status_after(permanent: str, most: str) -> str:
    """Return the SQL of where a failed attempt leaves its run: a cancel asked for wins, then giving up."""
    return f"""CASE
        WHEN r.cancel_requested_at IS NOT NULL THEN 'cancelled'
        WHEN {permanent} OR r.failures + 1 >= {most} THEN 'dead'
        ELSE 'failed' END AS status"""


# $1 worker id, $2 ids, $3 epochs, $4 seconds since each ended, $5 seconds each took, $6 outcomes,
# $7 error codes, $8 messages, $9 permanent, $10 delays in seconds before the next try, $11 tracebacks,
# $12 output tails, $13 notes, $14/$15 max_attempts and timeout used, $16 error groups (NULL: not a failure),
# $17/$18 their templates and frames (NULL: told lately).
FAIL = f"""
WITH answer AS (
    SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::float8[], $6::text[], $7::text[],
        $8::text[], $9::bool[], $10::float8[], $11::text[], $12::text[], $13::text[], $14::int[],
        $15::float8[], $16::bigint[], $17::text[], $18::text[])
        AS a (id, epoch, ago, took, outcome, code, message, permanent, delay, traceback, output_tail, note,
              most, timeout, error_group, template, frame)
), {
    _held(
        "r.run_at AS due_at, a.outcome, a.code, a.message, a.delay, a.traceback, a.output_tail, a.note, "
        "a.most, a.timeout, a.error_group, a.template, a.frame, "
        f"{_status_after('a.permanent', 'a.most')}, {_BEGUN_ENDED}"
    )
}, moved AS (
    UPDATE wakeboard.job_runs AS r
    SET status = h.status,
        failures = r.failures + CASE WHEN h.outcome = 'cancelled' THEN 0 ELSE 1 END,
        run_at = CASE h.status WHEN 'failed' THEN now() + make_interval(secs => h.delay) ELSE r.run_at END,
        finished_at = CASE h.status WHEN 'failed' THEN NULL ELSE h.ended END, started_at = h.begun,
        failed_at = CASE WHEN h.outcome = 'cancelled' THEN r.failed_at ELSE h.ended END,
        error_code = coalesce(h.code, r.error_code), last_error = coalesce(h.message, r.last_error),
        error_group = coalesce(h.error_group, r.error_group), {_FREED}
    FROM held AS h
    WHERE r.ctid = h.tid
    RETURNING {_OF_ATTEMPT}, r.status, h.due_at, h.begun, h.ended, h.outcome, h.code, h.message, h.traceback,
        h.output_tail, h.note, h.most, h.timeout, h.error_group, h.template, h.frame,
        CASE h.status WHEN 'failed' THEN r.run_at END AS next_run_at
), {
    _history(
        "outcome, error_code, error, traceback, output_tail, note, max_attempts, timeout_seconds, "
        "next_run_at, error_group",
        "outcome, code, message, traceback, output_tail, note, most, timeout, next_run_at, error_group",
    )
}, {_GROUPED}, {_counted("outcome")}
SELECT id, status, next_run_at::text FROM moved
"""

# $1 worker id, $2 ids, $3 epochs, $4 seconds since each ended, $5 seconds each took, $6 output tails,
# $7 notes, $8 whether it had started. What never started costs nothing: no attempt, no row.
RELEASE = f"""
WITH answer AS (
    SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::float8[], $6::text[], $7::text[],
        $8::bool[])
        AS a (id, epoch, ago, took, output_tail, note, started)
), {
    _held(
        "r.run_at AS due_at, r.attempts AS attempt, a.output_tail, a.note, a.started, CASE WHEN "
        f"r.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE 'queued' END AS status, {_BEGUN_ENDED}"
    )
}, moved AS (
    UPDATE wakeboard.job_runs AS r
    SET status = h.status, attempts = r.attempts - CASE WHEN h.started THEN 0 ELSE 1 END,
        finished_at = CASE h.status WHEN 'cancelled' THEN h.ended END, {_FREED}
    FROM held AS h
    WHERE r.ctid = h.tid
    RETURNING r.id, h.attempt, r.lease_epoch AS epoch, r.job_type, $1::text AS worker_id, r.status, h.due_at,
        h.begun, h.ended, h.output_tail, h.note, h.started
), {_history("outcome, output_tail, note", "'released', output_tail, note", where=" WHERE started")}
SELECT id, status FROM moved
"""

# How the rows stand that a batch did not answer for. $1 ids.
STANDING = "SELECT id, lease_epoch, locked_by, status FROM wakeboard.job_runs WHERE id = ANY($1::bigint[])"

# Runs that this process holds but does not know (a claim whose answer was lost). $1 worker id.
HELD_BY_ME = "SELECT id, lease_epoch FROM wakeboard.job_runs WHERE status = 'running' AND locked_by = $1"

# Cancels asked for among the runs one holds. $1 ids.
CANCELS = """
SELECT id, lease_epoch FROM wakeboard.job_runs
WHERE id = ANY($1::bigint[]) AND cancel_requested_at IS NOT NULL AND (status || '') = 'running'
"""

# Leases that ended, oldest first. The policy is the type's as its workers published it: any reaper can
# decide for any type. $1 how many.
ENDED_LEASES = """
SELECT r.id, r.lease_epoch, r.locked_by, r.job_type, r.failures,
    coalesce(r.max_attempts, t.max_attempts, 10), coalesce(t.backoff, 'exponential 10s cap 30m')
FROM wakeboard.job_runs AS r
LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
WHERE r.status = 'running' AND r.locked_until < now()
ORDER BY r.locked_until
LIMIT $1
"""


def _reap(guard: str) -> str:
    """Return the statement that takes runs from owners that have gone, while ``guard`` holds.

    $1 ids, $2 epochs as read, $3 delays in seconds (used when it had failed before), $4 max_attempts, $5 why,
    $6 error groups, $7 their template.
    The epoch grows, so whatever the old owner still sends finds no row.
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
            {_status_after("false", "a.most")}
        FROM wakeboard.job_runs AS r
        WHERE r.id = a.id AND r.lease_epoch = a.epoch AND {_RUNNING} AND {guard}
        FOR UPDATE OF r SKIP LOCKED
    ) AS ended
), moved AS (
    UPDATE wakeboard.job_runs AS r
    SET status = h.status, lease_epoch = r.lease_epoch + 1, failures = r.failures + 1,
        run_at = CASE h.status WHEN 'failed' THEN now() + make_interval(secs => h.delay) ELSE r.run_at END,
        finished_at = CASE h.status WHEN 'failed' THEN NULL ELSE h.ended END,
        failed_at = h.ended, error_code = 'lease_lost', last_error = $5::text,
        error_group = h.error_group, {_FREED}
    FROM held AS h
    WHERE r.id = h.id
    RETURNING r.id, r.attempts AS attempt, r.lease_epoch - 1 AS epoch, r.job_type, h.worker_id, r.status,
        h.due_at, h.begun, h.ended, h.most, CASE h.status WHEN 'failed' THEN r.run_at END AS next_run_at,
        h.error_group, 'lease_lost' AS code, $7::text AS template, NULL::text AS frame
), {
        _history(
            "outcome, error_code, error, max_attempts, next_run_at, error_group",
            "'lost', code, $5::text, most, next_run_at, error_group",
        )
    }, {_GROUPED}, {_counted("'lost'")}
SELECT id, status, next_run_at::text, job_type, attempt, worker_id FROM moved
"""


REAP = _reap("r.locked_until < now()")
# The operator's way: also when the worker has been silent for two heartbeats.
RELEASE_LEASE = _reap(
    f"""(r.locked_until < now() OR NOT EXISTS (
        SELECT 1 FROM wakeboard.workers AS w WHERE w.id = r.locked_by AND {IS_HEARD}
    ))"""
)

# A stale worker's late answer, kept on the attempt that lost the lease. $1 run, $2 epoch, $3 outcome.
NOTE_REFUSAL = """
UPDATE wakeboard.job_attempts SET refused_at = now(), refused_outcome = $3
WHERE run_id = $1 AND lease_epoch = $2 AND outcome = 'lost' AND refused_at IS NULL
"""
