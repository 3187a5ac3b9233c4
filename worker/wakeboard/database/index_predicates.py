"""Conditions of indexes that hold few runs: a question finds its index by saying them word for word.

And the questions of the claim's index that several modules ask: which types have work, and each priority.

SQL alone, of the columns of ``job_runs`` where nothing else is said. It depends on no clock and no time zone.
"""

from __future__ import annotations

from wakeboard.core.states import CLAIM_REFUSED, CLAIMABLE, UNDER_WAY, Outcome, Status, sql_list

# What may be claimed, now or later: job_runs_claimable.
IS_CLAIMABLE = f"status IN ({sql_list(CLAIMABLE)})"
# What has not ended.
IS_UNDER_WAY = f"status IN ({sql_list(UNDER_WAY)})"
# What a list by status has of its own. Runs that run are in job_runs_leased, and most runs have succeeded.
IS_LISTED_BY_STATUS = f"status NOT IN ('{Status.RUNNING}', '{Status.SUCCEEDED}')"
# What failed or was refused, and waits for another try or for a person.
HAS_ERROR = f"error_code IS NOT NULL AND status IN ({sql_list((*CLAIMABLE, Status.DEAD))})"
# What the database has refused to let start, and what will be tried again.
IS_SET_ASIDE = f"error_code = '{CLAIM_REFUSED}' AND {IS_CLAIMABLE}"
# Of an attempt: that its run succeeded, and not at the first try.
IS_LATER_SUCCESS = f"outcome = '{Outcome.SUCCEEDED}' AND attempt > 1"

# The types that have runs to claim, now or later: one hop in job_runs_claimable for each, however long the
# queue is. A query of ``job_type``.
TYPES_WITH_WORK = f"""
WITH RECURSIVE found AS (
    (SELECT r.job_type FROM wakeboard.job_runs AS r WHERE r.{IS_CLAIMABLE}
     ORDER BY r.job_type LIMIT 1)
    UNION ALL
    SELECT (SELECT r.job_type FROM wakeboard.job_runs AS r
            WHERE r.{IS_CLAIMABLE} AND r.job_type > found.job_type
            ORDER BY r.job_type LIMIT 1)
    FROM found WHERE found.job_type IS NOT NULL
)
SELECT job_type FROM found WHERE job_type IS NOT NULL
"""
# Priorities are 0 (first) to PRIORITIES - 1. Each is asked for by itself, so that runs of a better one that
# are not due cost nothing.
PRIORITIES = 5
EACH_PRIORITY = f"generate_series(0, {PRIORITIES - 1}) AS each (priority)"
