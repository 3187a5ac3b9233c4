"""Claims: the claim of due runs, and the claim under a type's limit.

Also the runs of a claim whose answer was lost, and the claims of single runs where the database refuses one
of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from wakeboard.core.states import CLAIM_REFUSED, CLAIMABLE, sql_list
from wakeboard.database.index_predicates import IS_CLAIMABLE, IS_UNDER_WAY, PRIORITIES
from wakeboard.reporting.worker_states import runs_any_of

# Sent on the connection of the claims, so that it is ordered among them.
IDLE = "UPDATE wakeboard.workers SET idle_since = now() WHERE id = $1"
BUSY = "UPDATE wakeboard.workers SET idle_since = NULL WHERE id = $1"
# Notifies one other worker that is idle and can run one of these types. $1 worker, $2 types.
WAKE_ANOTHER = f"""
SELECT pg_notify('wakeboard_wake', '') FROM wakeboard.workers AS w
WHERE id <> $1 AND idle_since IS NOT NULL AND stopped_at IS NULL AND {runs_any_of("w", "$2::text[]")}
    AND seen_at > now() - make_interval(secs => 3 * heartbeat_seconds)
LIMIT 1
"""


class ClaimedRow(NamedTuple):
    """The columns that a worker needs of a run, as a claim returns them.

    Times and the payload stay text; the child decodes them. ``scheduled_for`` has the time zone of its
    schedule in the brackets of RFC 9557: the handler needs the local day.
    """

    id: int
    lease_epoch: int
    attempts: int
    failures: int
    job_type: str
    payload: str
    idempotency_key: str | None
    definition_id: int | None
    scheduled_for: str | None
    created_at: str
    max_attempts: int | None
    timeout_seconds: float | None
    traceparent: str | None
    priority: int
    run_at: str


_CLAIMED = {name: f"r.{name}" for name in ClaimedRow._fields}
_CLAIMED |= {name: f"r.{name}::text" for name in ("payload", "created_at", "run_at")}
_CLAIMED["scheduled_for"] = """
    CASE WHEN r.scheduled_for IS NOT NULL THEN r.scheduled_for::text || coalesce((
        SELECT '[' || left(d.timezone, 64) || ']' FROM wakeboard.job_definitions AS d
        WHERE d.id = r.definition_id
    ), '') END"""
RETURNING_CLAIMED = f"RETURNING {', '.join(_CLAIMED.values())}"
# Whether another run of the same schedule is under way as this one starts: one that has begun, or one that
# the same claim takes before it. Two claims at the same instant do not see each other.
_IS_OVERLAPPED = f"""EXISTS (
        SELECT FROM wakeboard.job_runs AS other
        WHERE other.definition_id = r.definition_id AND other.{IS_UNDER_WAY} AND other.id <> r.id AND (
            other.started_at IS NOT NULL
            OR other.id < r.id AND other.ctid = ANY (ARRAY(SELECT head.tid FROM head))
        )
    )"""
# ``tid`` is the position of a row when it was locked: nothing can move it until the commit, so the update
# finds it without an index. A row that was changed after the snapshot has a position that the snapshot does
# not see, and is skipped like a locked one.
UPDATE_CLAIMED = f"""
UPDATE wakeboard.job_runs AS r
SET status = 'running', lease_epoch = r.lease_epoch + 1, attempts = r.attempts + 1,
    locked_by = $2, locked_until = clock_timestamp() + make_interval(secs => head.lease_seconds),
    started_at = clock_timestamp(), cancel_requested_at = NULL, updated_at = now(),
    progress_done = NULL, progress_total = NULL,
    late_by = CASE WHEN r.attempts > 0 THEN r.late_by
        ELSE date_part('epoch', clock_timestamp() - r.scheduled_for) END,
    overlapped = CASE WHEN r.attempts > 0 OR r.definition_id IS NULL THEN r.overlapped
        ELSE {_IS_OVERLAPPED} END
FROM head
WHERE r.ctid = head.tid
"""

LEVELS = f"(VALUES {', '.join(f'({n}::smallint)' for n in range(PRIORITIES))}) AS level (n)"

# The last three values of a claim that begins at the first row.
FROM_FIRST: tuple[Sequence[str], Sequence[int], Sequence[int]] = ([], [], [])
# A claim reads twice as many rows of each type and priority as it may take, and so many more: some may be
# locked.
SPARE_ROWS = 32
# How long a run waits whose claim the database refuses: twice as long each time.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60, 3600


def _claim_order(oldest_first: bool) -> str:
    """Return the order of the rows called ``picked``: by priority and age, or by age alone."""
    return "picked.run_at, picked.id" if oldest_first else "picked.priority, picked.run_at, picked.id"


_IS_CLAIMABLE = f"r.{IS_CLAIMABLE}"
_LOCK = "FOR NO KEY UPDATE OF r SKIP LOCKED"
_LOCK_EACH = f"""
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid FROM wakeboard.job_runs AS r
        WHERE r.ctid = picked.tid AND {_IS_CLAIMABLE} {_LOCK}
    ) AS locked"""


@cache
def claim(limit: int, *, oldest_first: bool = False, past_locks: bool = False) -> str:
    """Return the statement that claims up to ``limit`` due runs of unlimited, unpaused types.

    $1 text[] types, $2 worker id, $3 lease in seconds. The first rows of each type and priority are read
    separately, so delayed rows of a better priority are never walked; they are merged, and locked in their
    order until there are enough: to lock the first rows of each type would keep from others what is not
    taken. ``oldest_first`` ignores priority, so that nothing starves.

    $4 timestamptz[] and $5 bigint[]: the ``run_at`` and the id behind which a claim begins, one of each for
    every priority of every type in turn; $6 int[]: how many rows of each it reads. All empty
    (``FROM_FIRST``): from the first row on, twice the limit. See ``wakeboard.runtime.loop.claim_cursor``.

    An answer without rows proves nothing: all rows that were read may be locked. With ``past_locks`` rows are
    locked as they are read, and any number of locked rows is skipped: then it proves that nothing can be
    claimed. That locks all rows that are read of each type and priority ($6, else ``limit``).
    """
    lock_while_reading = _LOCK if past_locks else ""
    return f"""
WITH head AS MATERIALIZED (
    SELECT {"picked" if past_locks else "locked"}.tid, picked.lease_seconds
    FROM (
        SELECT picked.* FROM (
            SELECT t.name, greatest(coalesce(t.lease_seconds, $3::float8), $3::float8) AS lease_seconds,
                (asked.place::int - 1) * {PRIORITIES} + 1 AS place
            FROM unnest($1::text[]) WITH ORDINALITY AS asked (name, place)
            JOIN wakeboard.job_types AS t ON t.name = asked.name
            WHERE t.paused_at IS NULL AND coalesce(t.max_running_operator, t.max_running) IS NULL
        ) AS wanted
        CROSS JOIN {LEVELS}
        CROSS JOIN LATERAL (
            SELECT r.ctid AS tid, r.id, r.priority, r.run_at, wanted.lease_seconds
            FROM wakeboard.job_runs AS r
            WHERE r.job_type = wanted.name AND r.priority = level.n AND {_IS_CLAIMABLE} AND r.run_at <= now()
                AND (r.run_at, r.id) > (
                    coalesce(($4::timestamptz[])[wanted.place + level.n], '-infinity'),
                    coalesce(($5::bigint[])[wanted.place + level.n], 0)
                )
            ORDER BY r.run_at, r.id
            LIMIT coalesce(
                ($6::int[])[wanted.place + level.n], {limit if past_locks else 2 * limit + SPARE_ROWS:d}
            ) {lock_while_reading}
        ) AS picked
        ORDER BY {_claim_order(oldest_first)}
    ) AS picked{"" if past_locks else _LOCK_EACH}
    LIMIT {limit:d}
)
{UPDATE_CLAIMED}{RETURNING_CLAIMED}"""


# The first of the two statements of a limited claim: in one statement, a stale snapshot let four workers
# start sixteen under a limit of four. $1 type; the row lock makes the count of the second statement true. It
# leaves the limit in a setting, or nothing where the type is paused, locked by another claim or has no limit
# (any more). Where the second statement is lost on the way, the server releases the lock after ten seconds
# (PostgreSQL 16: when the connection ends, see ``wakeboard.runtime.loop.channel``).
LOCK_LIMIT = """
SELECT set_config('wakeboard.most_running', (
    SELECT coalesce(max_running_operator, max_running)
    FROM wakeboard.job_types
    WHERE name = $1 AND paused_at IS NULL AND coalesce(max_running_operator, max_running) IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED
)::text, true),
    CASE WHEN current_setting('server_version_num')::int >= 170000
        THEN set_config('transaction_timeout', '10s', true) END
"""


def _free_places(job_type: str) -> str:
    """Return the SQL of how many more runs of a type may start, NULL where ``LOCK_LIMIT`` left no limit."""
    return f"""nullif(current_setting('wakeboard.most_running', true), '')::int - (
            SELECT count(*) FROM wakeboard.job_runs AS busy
            WHERE busy.job_type = {job_type} AND busy.status = 'running'
        )"""


@cache
def claim_limited(limit: int, *, oldest_first: bool = False) -> str:
    """Return the statement that claims up to ``limit`` due runs of one limited type.

    $1 type, $2 worker id, $3 lease in seconds. Only to be sent behind ``LOCK_LIMIT``, in its transaction.
    Priorities are read separately, as in ``claim``.
    """
    return f"""
WITH room AS MATERIALIZED (
    SELECT greatest(coalesce(t.lease_seconds, $3::float8), $3::float8) AS lease_seconds,
        greatest(0, least({limit:d}, coalesce({_free_places("$1::text")}, 0))) AS runs
    FROM wakeboard.job_types AS t
    WHERE t.name = $1::text
), head AS MATERIALIZED (
    SELECT picked.tid, (SELECT room.lease_seconds FROM room) AS lease_seconds
    FROM {LEVELS}
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid, r.id, r.priority, r.run_at
        FROM wakeboard.job_runs AS r
        WHERE r.job_type = $1::text AND r.priority = level.n
            AND {_IS_CLAIMABLE} AND r.run_at <= now()
        ORDER BY r.run_at, r.id
        LIMIT (SELECT room.runs FROM room)
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ) AS picked
    ORDER BY {_claim_order(oldest_first)}
    LIMIT (SELECT room.runs FROM room)
)
{UPDATE_CLAIMED}{RETURNING_CLAIMED}"""


# The runs of this worker, among them those of a claim whose answer was lost. $1 worker id.
RUNS_OF_WORKER = "SELECT id, lease_epoch FROM wakeboard.job_runs WHERE status = 'running' AND locked_by = $1"
# Which of a worker's attempts the database does not have, because it is back at an earlier state. $1 ids,
# $2 epochs.
MISSING_ATTEMPTS = """
SELECT a.id, a.epoch FROM unnest($1::bigint[], $2::bigint[]) AS a (id, epoch)
LEFT JOIN wakeboard.job_runs AS r ON r.id = a.id
WHERE r.id IS NULL OR r.lease_epoch < a.epoch
"""


# Written so that no index fits: the run is found by its id.
_IS_STILL_CLAIMABLE = f"(r.status || '') IN ({sql_list(CLAIMABLE)}) AND r.run_at <= now()"


@cache
def candidates(limit: int, *, oldest_first: bool = False) -> str:
    """Return the query for id and type of the first ``limit`` runs that a claim would take, in its order.

    $1 text[] types, $2 bigint[] runs to skip, $3 whether types with a limit are meant, or those without.
    """
    return f"""
SELECT picked.id, picked.job_type
FROM (
    SELECT t.name FROM unnest($1::text[]) AS asked (name)
    JOIN wakeboard.job_types AS t ON t.name = asked.name
    WHERE t.paused_at IS NULL AND (coalesce(t.max_running_operator, t.max_running) IS NOT NULL) = $3::bool
) AS wanted
CROSS JOIN {LEVELS}
CROSS JOIN LATERAL (
    SELECT r.id, r.job_type, r.priority, r.run_at
    FROM wakeboard.job_runs AS r
    WHERE r.job_type = wanted.name AND r.priority = level.n
        AND {_IS_CLAIMABLE} AND r.run_at <= now()
        AND r.id NOT IN (SELECT unnest($2::bigint[]))
    ORDER BY r.run_at, r.id
    LIMIT {limit:d}
) AS picked
ORDER BY {_claim_order(oldest_first)}
LIMIT {limit:d}
"""


# $1 ids, $2 worker id, $3 lease in seconds, $4 the type where it has a limit (only to be sent behind
# ``LOCK_LIMIT``, in its transaction), else NULL.
CLAIM_THESE = f"""
WITH head AS MATERIALIZED (
    SELECT picked.tid, picked.lease_seconds
    FROM unnest($1::bigint[]) AS asked (id)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS tid, greatest(coalesce(t.lease_seconds, $3::float8), $3::float8) AS lease_seconds
        FROM wakeboard.job_runs AS r JOIN wakeboard.job_types AS t ON t.name = r.job_type
        WHERE r.id = asked.id AND {_IS_STILL_CLAIMABLE} AND t.paused_at IS NULL
            AND (coalesce(t.max_running_operator, t.max_running) IS NULL) = ($4::text IS NULL)
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ) AS picked
    LIMIT CASE WHEN $4::text IS NOT NULL THEN greatest(0, coalesce({_free_places("$4::text")}, 0)) END
)
{UPDATE_CLAIMED}{RETURNING_CLAIMED}"""

# Delays a run whose claim is refused, longer each time, and stores why. No attempt has begun, so no counter
# of attempts changes. $1 id, $2 the database's sentence.
DELAY_REFUSED = f"""
UPDATE wakeboard.job_runs AS r
SET run_at = now() + make_interval(secs => least({LONGEST_PAUSE_SECONDS}, greatest({FIRST_PAUSE_SECONDS},
        CASE r.error_code WHEN '{CLAIM_REFUSED}' THEN 2 * date_part('epoch', r.run_at - r.updated_at) END))),
    error_code = '{CLAIM_REFUSED}', last_error = $2::text, error_group = NULL, updated_at = now()
WHERE r.id = $1 AND {_IS_STILL_CLAIMABLE}
RETURNING r.id
"""
