"""The latest runs of schedules, and what was odd about them: late, beside the run before, done twice.

The same rules as on the page of a night, for the newest runs of each schedule whatever their age.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, RowMapping, text

from dashboard.queries.schedules import LATEST
from worker.nights.fires import LATE

# A run's started_at is that of its latest attempt; the first one's is in its history. Twice done is what
# succeeded although a worker that had lost it came back with success too, or what somebody ran again; what
# its own handler enqueued (worker.lineage.maker) is other work. Without OFFSET the planner may collect all
# refused attempts there are instead of looking at those of each run.
_JUDGED = """
WITH run AS MATERIALIZED (
    SELECT d.id AS definition_id, r.id, r.status, r.scheduled_for, r.run_at, r.started_at, r.failed_at,
        r.finished_at, r.error_code, r.attempts,
        CASE WHEN r.attempts > 1 THEN coalesce((
            SELECT a.started_at FROM wakeboard.job_attempts AS a
            WHERE a.run_id = r.id ORDER BY a.lease_epoch LIMIT 1
        ), r.started_at) ELSE r.started_at END AS first_started_at
    FROM unnest(CAST(:ids AS bigint[])) AS d (id)
    CROSS JOIN LATERAL (
        SELECT * FROM wakeboard.job_runs AS r WHERE r.definition_id BETWEEN d.id AND d.id
        ORDER BY r.definition_id DESC, r.id DESC LIMIT :latest
    ) AS r
), judged AS (
    SELECT run.*, seconds, coalesce(seconds > :late, false) AS is_late,
        coalesce(first_started_at < max(coalesce(finished_at, now()))
            FILTER (WHERE first_started_at IS NOT NULL) OVER before, false) AS is_beside,
        status = 'succeeded' AND attempts > 1 AND EXISTS (
            SELECT FROM wakeboard.job_attempts AS a
            WHERE a.run_id = run.id AND a.refused_outcome = 'succeeded' OFFSET 0
        ) AS came_back,
        status = 'succeeded' AND EXISTS (
            SELECT FROM wakeboard.job_runs AS g WHERE g.origin_run_id = run.id AND g.status = 'succeeded'
                AND g.enqueued_by IS DISTINCT FROM 'run:' || run.id
        ) AS ran_again,
        scheduled_for - max(scheduled_for) OVER before < interval '1 day' AS is_near,
        lead(id) OVER before IS NULL AS is_last
    FROM run CROSS JOIN LATERAL (SELECT extract(epoch FROM coalesce(
        first_started_at, CASE WHEN status IN ('queued', 'failed') THEN now() END
    ) - scheduled_for)::float8) AS delay (seconds)
    WINDOW before AS (PARTITION BY definition_id ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)"""
_LATEST = text(f"""{_JUDGED}
SELECT id, definition_id, status, scheduled_for, error_code,
    CASE WHEN scheduled_for IS NULL THEN run_at END AS run_at,
    CASE WHEN is_last THEN coalesce(finished_at, failed_at, started_at, run_at) END AS changed_at,
    seconds, is_late, is_beside, came_back, ran_again
FROM judged ORDER BY id""")
_ODD = f"""{_JUDGED}
SELECT definition_id AS id, bool_or({{asked}}) AS is_odd, bool_or(is_near) AS is_near,
    min(scheduled_for) AS first_at, max(scheduled_for) AS last_at
FROM judged GROUP BY definition_id"""
_ASKED = {"late": "is_late", "overlapping": "is_beside", "twice": "came_back OR ran_again"}


def latest(connection: Connection, ids: Sequence[int]) -> Mapping[int, list[RowMapping]]:
    """Return by definition id its LATEST runs, oldest first, as far as something may be odd about them.

    id, definition_id, status, scheduled_for, run_at (of those that were scheduled for no time), error_code,
    changed_at (of the last one: it ended, failed, began or waits), seconds (from its time to its first start,
    or to now), is_late (by more than LATE), is_beside (began while one before it was under way), came_back
    and ran_again (done twice). Times are few because Python takes long to read them.
    """
    found: dict[int, list[RowMapping]] = {each: [] for each in ids}
    for row in connection.execute(_LATEST, _values(ids)).mappings().all():
        found[row["definition_id"]].append(row)
    return found


def odd(connection: Connection, ids: Sequence[int], words: Collection[str]) -> Sequence[RowMapping]:
    """Return a row for each definition of ``ids`` that has runs, by its LATEST.

    id; is_odd: one of them is one of ``words`` (late, overlapping, twice), as far as PostgreSQL can tell;
    is_near: one was scheduled for less than a day after one before it; first_at and last_at: the times that
    they were scheduled for.
    """
    asked = " OR ".join(_ASKED[word] for word in words)
    return connection.execute(text(_ODD.format(asked=asked)), _values(ids)).mappings().all()


def _values(ids: Sequence[int]) -> dict[str, object]:
    return {"ids": list(ids), "latest": LATEST, "late": LATE.total_seconds()}
