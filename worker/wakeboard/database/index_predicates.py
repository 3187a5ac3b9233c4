"""Conditions of indexes that hold few runs: a question finds its index by saying them word for word.

SQL alone, of the columns of ``job_runs``. It depends on no clock and no time zone.
"""

from __future__ import annotations

from wakeboard.core.states import CLAIM_REFUSED, CLAIMABLE, ENDED, UNDER_WAY, sql_list

# What has not ended.
IS_UNDER_WAY = f"status IN ({sql_list(UNDER_WAY)})"
# The fires of schedules that ended and need a look. Two fires of a schedule are a minute apart at least: one
# that needed one attempt and was through within a minute of its time was not late, and no later one can have
# begun beside it. It is plain, as nearly all are.
IS_ODD_FIRE = (
    "scheduled_for IS NOT NULL AND started_at IS NOT NULL AND finished_at IS NOT NULL"
    " AND (attempts > 1 OR finished_at - scheduled_for > interval '1 minute')"
)
# Of no index, but the other side of that one: who asks finds these times in the index of all fires.
IS_PLAIN_FIRE = (
    f"attempts = 1 AND status IN ({sql_list(ENDED)}) AND finished_at - scheduled_for <= interval '1 minute'"
)
# What succeeded only after a failure.
IS_RECOVERED = "status = 'succeeded' AND failed_at IS NOT NULL"
# What the database has refused to let start, and what will be tried again.
IS_SET_ASIDE = f"error_code = '{CLAIM_REFUSED}' AND status IN ({sql_list(CLAIMABLE)})"
