"""What was odd about the latest runs of schedules: late, beside the run before, done twice.

The same rules as on the page of a night, for the newest runs of each schedule whatever their age.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, text

from dashboard.queries.schedules import LATEST
from worker.nights.fires import LATE

# A run's started_at is that of its latest attempt; the first one's is in its history. Twice done is what
# succeeded although a worker that had lost it came back with success too, or what somebody ran again; what
# its own handler enqueued (worker.lineage.maker) is other work.
_ODD = text("""
WITH run AS MATERIALIZED (
    SELECT d.id AS definition_id, r.id, r.scheduled_for, r.status, r.finished_at, r.attempts,
        CASE WHEN r.attempts > 1 THEN coalesce((
            SELECT a.started_at FROM wakeboard.job_attempts AS a
            WHERE a.run_id = r.id ORDER BY a.lease_epoch LIMIT 1
        ), r.started_at) ELSE r.started_at END AS first_started_at
    FROM unnest(CAST(:ids AS bigint[])) AS d (id)
    CROSS JOIN LATERAL (
        SELECT * FROM wakeboard.job_runs AS r WHERE r.definition_id BETWEEN d.id AND d.id
        ORDER BY r.definition_id DESC, r.id DESC LIMIT :latest
    ) AS r
)
SELECT id, definition_id, scheduled_for,
    extract(epoch FROM coalesce(
        first_started_at, CASE WHEN status IN ('queued', 'failed') THEN now() END
    ) - scheduled_for)::float8 AS seconds,
    coalesce(first_started_at < max(coalesce(finished_at, now())) FILTER (WHERE first_started_at IS NOT NULL)
        OVER (PARTITION BY definition_id ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), false)
        AS is_beside,
    status = 'succeeded' AND attempts > 1 AND EXISTS (
        SELECT FROM wakeboard.job_attempts AS a WHERE a.run_id = run.id AND a.refused_outcome = 'succeeded'
    ) AS came_back,
    status = 'succeeded' AND EXISTS (
        SELECT FROM wakeboard.job_runs AS g WHERE g.origin_run_id = run.id AND g.status = 'succeeded'
            AND g.enqueued_by IS DISTINCT FROM 'run:' || run.id
    ) AS ran_again
FROM run ORDER BY id
""")


def judged(connection: Connection, ids: Sequence[int]) -> Mapping[int, list[RowMapping]]:
    """Return by definition id its LATEST runs, oldest first, as far as something may be odd about them.

    id, scheduled_for, seconds (from its time to its first start, or to now), is_beside (began while
    one before it was under way), came_back and ran_again (done twice).
    """
    found: dict[int, list[RowMapping]] = {each: [] for each in ids}
    for row in connection.execute(_ODD, {"ids": list(ids), "latest": LATEST}).mappings():
        found[row["definition_id"]].append(row)
    return found


def is_late(row: Mapping[Any, Any]) -> bool:
    """Return whether a run of ``judged`` began so late that it is worth a look."""
    return row["seconds"] is not None and row["seconds"] > LATE.total_seconds()
