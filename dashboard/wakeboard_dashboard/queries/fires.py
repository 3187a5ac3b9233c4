"""The latest runs of schedules, and what is odd about them: late, overlapping, done twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Boolean, ColumnElement, Connection, literal_column, text

from wakeboard.database.tables import job_definitions
from wakeboard.reporting.activity_report.fires import LATE, LATE_BY
from wakeboard_dashboard.text.oddities import LatestRun, shown_twice

LATEST = 20

# What somebody ran again was done twice; what its own handler enqueued (core.parent_run.maker) is other work.
_RAN_AGAIN = """(r.status = 'succeeded' AND EXISTS (
        SELECT FROM wakeboard.job_runs AS g WHERE g.origin_run_id = r.id AND g.status = 'succeeded'
            AND g.enqueued_by IS DISTINCT FROM 'run:' || r.id
    ))"""
# What succeeded although a worker that had lost it came back with success too was done twice as well. Without
# OFFSET the planner may collect all refused attempts there are instead of looking at those of each run.
_CAME_BACK = """(r.status = 'succeeded' AND r.attempts > 1 AND EXISTS (
        SELECT FROM wakeboard.job_attempts AS a
        WHERE a.run_id = r.id AND a.refused_outcome = 'succeeded' OFFSET 0
    ))"""


def _runs_of(definition: str) -> str:
    """Return the SQL of the LATEST runs of a definition, newest first.

    With "=" and the order by id alone the planner walks the primary key back from the newest run.
    """
    return f"""(
    SELECT r.* FROM wakeboard.job_runs AS r WHERE r.definition_id BETWEEN {definition} AND {definition}
    ORDER BY r.definition_id DESC, r.id DESC LIMIT {LATEST}
) AS r"""


_LATEST = text(f"""
SELECT r.definition_id, r.id, r.status, r.scheduled_for, r.run_at,
    coalesce(r.finished_at, r.failed_at, r.started_at, r.run_at) AS changed_at,
    left(r.error_code, 100) AS error_code, {LATE_BY} AS late_by, r.overlapped, {_CAME_BACK} AS came_back,
    {_RAN_AGAIN} AS ran_again
FROM unnest(CAST(:ids AS bigint[])) AS d (id) CROSS JOIN LATERAL {_runs_of("d.id")}
ORDER BY r.id""")
# The fires of schedules in zones that have clock changes.
_TIMES = text(f"""
SELECT d.id, d.timezone, array_agg(r.scheduled_for)
FROM wakeboard.job_definitions AS d CROSS JOIN LATERAL {_runs_of("d.id")}
WHERE d.timezone <> 'UTC' AND r.scheduled_for IS NOT NULL
GROUP BY d.id""")
_ODD = {
    "late": f"{LATE_BY} > {LATE.total_seconds()}",
    "overlapping": "r.overlapped",
    "twice": f"({_CAME_BACK} OR {_RAN_AGAIN})",
}


def latest(connection: Connection, ids: Sequence[int]) -> Mapping[int, Sequence[LatestRun]]:
    """Return by definition the LATEST runs of those that have any, oldest first."""
    found: dict[int, list[LatestRun]] = {}
    for definition_id, *run in connection.execute(_LATEST, {"ids": list(ids)}) if ids else ():
        found.setdefault(definition_id, []).append(LatestRun(*run))
    return found


def is_odd(word: str) -> ColumnElement[bool]:
    """Return the condition that one of the LATEST runs of a definition is ``word``: a key of _ODD.

    What the clocks of a zone show twice only ``repeated`` knows.
    """
    runs = _runs_of(str(job_definitions.c.id))
    return literal_column(f"EXISTS (SELECT FROM {runs} WHERE {_ODD[word]})", Boolean())


def repeated(connection: Connection) -> list[int]:
    """Return the definitions of which two of the LATEST fires have one time on the clocks of their zone."""
    return [each for each, zone, moments in connection.execute(_TIMES) if shown_twice(moments, zone)]
