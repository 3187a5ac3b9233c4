"""Which fires of schedules need a look: what their index and the questions about a night share. Text alone.

Two fires of a schedule are a minute apart at least. One that needed one attempt and was through within a
minute of its time was not late, and no later one can have begun beside it: it is plain, and nearly all are.
"""

from __future__ import annotations

from worker.states import UNDER_WAY, sql_list

# What has not ended, by the columns of ``job_runs``. Whether it is late, the clock says.
IS_UNDER_WAY = f"status IN ({sql_list(UNDER_WAY)})"
# What ended and is not plain. An index takes this: it depends on no clock and no time zone.
IS_ODD = (
    "scheduled_for IS NOT NULL AND started_at IS NOT NULL AND finished_at IS NOT NULL"
    " AND (attempts > 1 OR finished_at - scheduled_for > interval '1 minute')"
)
