"""Claims one by one: what a batch would claim, a claim of named runs, and how a run is set aside whose claim
the database refuses.

Sent only after a rule of the tables has refused a whole batch; see ``wakeboard.runtime.loop.apart``.
"""

from __future__ import annotations

from functools import cache

from wakeboard.core.states import CLAIM_REFUSED, CLAIMABLE, sql_list
from wakeboard.queue.engine.claims import CLAIMED, LEVELS, TAKEN, order, room

_IS_CLAIMABLE = f"(r.status || '') IN ({sql_list(CLAIMABLE)}) AND r.run_at <= now()"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60, 3600


@cache
def candidates(limit: int, *, oldest_first: bool = False) -> str:
    """Return the query for id and type of the first ``limit`` runs that a claim would take, in its order.

    $1 text[] types, $2 bigint[] runs to pass by, $3 whether types with a limit are meant, or those without.
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
        AND r.status IN ({sql_list(CLAIMABLE)}) AND r.run_at <= now()
        AND r.id NOT IN (SELECT unnest($2::bigint[]))
    ORDER BY r.run_at, r.id
    LIMIT {limit:d}
) AS picked
ORDER BY {order(oldest_first)}
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
        WHERE r.id = asked.id AND {_IS_CLAIMABLE} AND t.paused_at IS NULL
            AND (coalesce(t.max_running_operator, t.max_running) IS NULL) = ($4::text IS NULL)
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ) AS picked
    LIMIT CASE WHEN $4::text IS NOT NULL THEN greatest(0, coalesce({room("$4::text")}, 0)) END
)
{TAKEN}{CLAIMED}"""

# Waits longer each time, and says why. No attempt has begun: nothing that counts attempts is touched.
# $1 id, $2 the database's sentence.
SET_ASIDE = f"""
UPDATE wakeboard.job_runs AS r
SET run_at = now() + make_interval(secs => least({LONGEST_PAUSE_SECONDS}, greatest({FIRST_PAUSE_SECONDS},
        CASE r.error_code WHEN '{CLAIM_REFUSED}' THEN 2 * date_part('epoch', r.run_at - r.updated_at) END))),
    error_code = '{CLAIM_REFUSED}', last_error = $2::text, error_group = NULL, updated_at = now()
WHERE r.id = $1 AND {_IS_CLAIMABLE}
RETURNING r.id
"""
