"""Schedules that need no survey: when they were last looked at, their latest runs were plain, all of them.

What succeeded at its first attempt, soon after its time, stays so. It is odd only once somebody has it run
again, and another run is the newest then or has it as its origin: both are asked of all schedules at once, by
an index each. So of a schedule that has not fired since, one entry of an index is read instead of forty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, RowMapping, text

# Where more runs than this were run again, all schedules are surveyed each time.
MOST_AGAIN = 200
MOST_KEPT = 2000

_SAME = text("""
SELECT d.id FROM unnest(CAST(:ids AS bigint[]), CAST(:newest AS bigint[])) AS d (id, newest)
WHERE d.newest = (
    SELECT r.id FROM wakeboard.job_runs AS r WHERE r.definition_id BETWEEN d.id AND d.id
    ORDER BY r.definition_id DESC, r.id DESC LIMIT 1
)""")
_RAN_AGAIN = text("""
SELECT origin.definition_id
FROM (
    SELECT origin_run_id FROM wakeboard.job_runs WHERE origin_run_id IS NOT NULL
    ORDER BY origin_run_id DESC LIMIT :most
) AS again LEFT JOIN wakeboard.job_runs AS origin ON origin.id = again.origin_run_id""")


class Plain:
    """What was surveyed of schedules that have nothing odd, by definition id; for one process."""

    def __init__(self) -> None:
        self._kept: dict[int, RowMapping] = {}

    def of(self, connection: Connection, ids: Sequence[int], *, twice: bool) -> dict[int, RowMapping]:
        """Return the rows of those of ``ids`` that are as they were; ``twice``: nothing was run again."""
        known = {each: row for each in ids if (row := self._kept.get(each)) is not None}
        if not known:
            return {}
        values = {"ids": list(known), "newest": [row["newest"] for row in known.values()]}
        same = set(connection.execute(_SAME, values).scalars())
        if twice and same:
            again = connection.execute(_RAN_AGAIN, {"most": MOST_AGAIN + 1}).scalars().all()
            same = set() if len(again) > MOST_AGAIN else same - set(again)
        return {each: row for each, row in known.items() if each in same}

    def note(self, surveyed: Mapping[int, RowMapping]) -> None:
        """Keep what ``fires.surveyed`` told of schedules in which nothing can become odd any more."""
        self._kept.update(
            {each: row for each, row in surveyed.items() if row["is_over"] and not row["is_odd"]}
        )
        for oldest in list(self._kept)[:-MOST_KEPT]:
            self._kept.pop(oldest, None)
