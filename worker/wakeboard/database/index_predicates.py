"""Conditions of indexes that hold few runs: a question finds its index by saying them word for word.

SQL alone, of the columns of ``job_runs``. It depends on no clock and no time zone.
"""

from __future__ import annotations

from wakeboard.core.states import CLAIM_REFUSED, CLAIMABLE, UNDER_WAY, sql_list

# What has not ended.
IS_UNDER_WAY = f"status IN ({sql_list(UNDER_WAY)})"
# What succeeded only after a failure.
IS_RECOVERED = "status = 'succeeded' AND failed_at IS NOT NULL"
# What the database has refused to let start, and what will be tried again.
IS_SET_ASIDE = f"error_code = '{CLAIM_REFUSED}' AND status IN ({sql_list(CLAIMABLE)})"
