"""Conditions of indexes that hold few runs: a question finds its index by saying them word for word.

SQL alone, of the columns of ``job_runs`` where nothing else is said. It depends on no clock and no time zone.
"""

from __future__ import annotations

from wakeboard.core.states import CLAIM_REFUSED, CLAIMABLE, UNDER_WAY, Outcome, Status, sql_list

# What has not ended.
IS_UNDER_WAY = f"status IN ({sql_list(UNDER_WAY)})"
# What a list by status has of its own. Runs that run are in job_runs_leased, and most runs have succeeded.
IS_LISTED_BY_STATUS = f"status NOT IN ('{Status.RUNNING}', '{Status.SUCCEEDED}')"
# What failed or was refused, and waits for another try or for a person.
HAS_ERROR = f"error_code IS NOT NULL AND status IN ({sql_list((*CLAIMABLE, Status.DEAD))})"
# What the database has refused to let start, and what will be tried again.
IS_SET_ASIDE = f"error_code = '{CLAIM_REFUSED}' AND status IN ({sql_list(CLAIMABLE)})"
# Of an attempt: that its run succeeded, and not at the first try.
IS_LATER_SUCCESS = f"outcome = '{Outcome.SUCCEEDED}' AND attempt > 1"
