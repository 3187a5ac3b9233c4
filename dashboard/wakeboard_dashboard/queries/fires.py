"""The latest runs of schedules, and what was odd about them: late, beside the run before, done twice.

The same rules as on the page of a night, for the newest runs of each schedule whatever their age.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, RowMapping, TextClause, text

from wakeboard.core.states import ENDED, sql_list
from wakeboard.core.text.tolerant_types import read_time
from wakeboard.database.index_predicates import IS_PLAIN_FIRE
from wakeboard.reporting.activity_report.fires import LATE, THROUGH_AT
from wakeboard_dashboard.queries.schedules import LATEST

# What somebody ran again was done twice; what its own handler enqueued (lineage.maker) is other work.
_RAN_AGAIN = """EXISTS (
            SELECT FROM wakeboard.job_runs AS g WHERE g.origin_run_id = {which} AND g.status = 'succeeded'
                AND g.enqueued_by IS DISTINCT FROM 'run:' || {origin}
        )"""
# What succeeded although a worker that had lost it came back with success too was done twice as well. Without
# OFFSET the planner may collect all refused attempts there are instead of looking at those of each run.
CAME_BACK = """(r.status = 'succeeded' AND r.attempts > 1 AND EXISTS (
            SELECT FROM wakeboard.job_attempts AS a
            WHERE a.run_id = r.id AND a.refused_outcome = 'succeeded' OFFSET 0
        ))"""
# Another one as soon as a row was changed.
VERSION = "r.xmin::text::bigint"
# A run's started_at is that of its latest attempt; the first one's is in its history.
_JUDGED = f"""
WITH run AS MATERIALIZED (
    SELECT d.id AS definition_id, r.id, r.version, r.status, r.scheduled_for, r.run_at, r.started_at,
        r.failed_at, r.finished_at, {THROUGH_AT} AS through_at, r.error_code, r.attempts,
        CASE WHEN r.attempts > 1 THEN coalesce((
            SELECT a.started_at FROM wakeboard.job_attempts AS a
            WHERE a.run_id = r.id ORDER BY a.lease_epoch LIMIT 1
        ), r.started_at) ELSE r.started_at END AS first_started_at
    FROM unnest(CAST(:ids AS bigint[])) AS d (id)
    CROSS JOIN LATERAL (
        SELECT r.*, {VERSION} AS version FROM wakeboard.job_runs AS r
        WHERE r.definition_id BETWEEN d.id AND d.id
        ORDER BY r.definition_id DESC, r.id DESC LIMIT :latest
    ) AS r
), judged AS (
    SELECT r.*, seconds, coalesce(seconds > :late, false) AS is_late,
        coalesce(first_started_at < max(coalesce(through_at, now()))
            FILTER (WHERE first_started_at IS NOT NULL) OVER before, false) AS is_beside,
        {CAME_BACK} AS came_back,
        status = 'succeeded' AND {_RAN_AGAIN.format(which="r.id", origin="r.id")} AS ran_again,
        scheduled_for - max(scheduled_for) OVER before < interval '1 day' AS is_near,
        lead(id) OVER before IS NULL AS is_last,
        status <> 'succeeded' OR attempts > 1 AS is_watched
    FROM run AS r CROSS JOIN LATERAL (SELECT extract(epoch FROM coalesce(
        first_started_at, CASE WHEN status IN ('queued', 'failed') THEN now() END
    ) - scheduled_for)::float8) AS delay (seconds)
    WINDOW before AS (PARTITION BY definition_id ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)"""
_LONG_OVER = "max(finished_at) < now() - interval '1 minute'"
_LATEST = text(f"""{_JUDGED}
SELECT id, scheduled_for, seconds, is_late, is_beside, came_back, ran_again FROM judged ORDER BY id""")
# One text a schedule: Python reads one value instead of two hundred, and knows what it made of it before. Of
# a code a mark says the beginning.
_STRIPS = text(f"""{_JUDGED}
SELECT definition_id,
    json_build_array(array_agg(id), array_agg(status), array_agg(scheduled_for),
        array_agg(CASE WHEN scheduled_for IS NULL THEN run_at END), array_agg(left(error_code, 100)),
        array_agg(is_late), array_agg(is_beside), array_agg(came_back), array_agg(ran_again))::text AS runs,
    max(id) AS newest, max(status) FILTER (WHERE is_last) AS status,
    max(coalesce(finished_at, failed_at, started_at, run_at)) FILTER (WHERE is_last) AS changed_at,
    bool_or(is_late) AS late, bool_or(is_beside) AS overlapping, bool_or(came_back OR ran_again) AS twice,
    bool_or(is_near) AS is_near, min(scheduled_for) AS first_at, max(scheduled_for) AS last_at,
    bool_and(status IN ({sql_list(ENDED)}) AND NOT ran_again) AND {_LONG_OVER} AS is_over,
    min(id) AS oldest, count(*) AS how_many,
    coalesce(array_agg(id) FILTER (WHERE is_watched), '{{}}') AS watched,
    coalesce(array_agg(version) FILTER (WHERE is_watched), '{{}}') AS versions,
    coalesce(array_agg(came_back) FILTER (WHERE is_watched), '{{}}') AS back
FROM (SELECT * FROM judged ORDER BY definition_id, id) AS judged GROUP BY definition_id""")
# Whether one of the latest runs may be odd, by indexes but for what was run again: none is if all are plain
# fires (database.index_predicates), and none was run again. So many in less than as many days are near,
# some of them.
_SURVEYED = f"""
SELECT d.id AS definition_id, fires < runs OR of_fires.is_odd OR {{ran_again}} AS is_odd,
    last_at - first_at < (kept - 1) * interval '1 day' AS is_near, first_at, last_at, newest,
    oldest, runs AS how_many, coalesce(is_over, false) AS is_over
FROM unnest(CAST(:ids AS bigint[])) AS d (id)
CROSS JOIN LATERAL (
    SELECT count(*) AS runs, min(id) AS oldest, max(id) AS newest FROM (
        SELECT id FROM wakeboard.job_runs WHERE definition_id BETWEEN d.id AND d.id
        ORDER BY definition_id DESC, id DESC LIMIT :latest
    ) AS run
) AS of_runs
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE id >= oldest) AS fires, count(*) AS kept, array_agg(id) AS ids,
        min(scheduled_for) AS first_at, max(scheduled_for) AS last_at,
        bool_or(NOT coalesce({IS_PLAIN_FIRE}, false)) AS is_odd,
        bool_and(status = 'succeeded') AND {_LONG_OVER} AS is_over
    FROM (
        SELECT definition_id, id, status, attempts, finished_at, scheduled_for FROM wakeboard.job_runs
        WHERE definition_id BETWEEN d.id AND d.id AND scheduled_for IS NOT NULL
        ORDER BY definition_id DESC, scheduled_for DESC LIMIT :latest
    ) AS run
) AS of_fires
WHERE runs > 0"""
_RAN_ANY_AGAIN = _RAN_AGAIN.format(which="ANY (ids)", origin="g.origin_run_id")
_NEAR = text("""
SELECT d.id FROM unnest(CAST(:ids AS bigint[])) AS d (id)
WHERE (
    SELECT bool_or(gap < interval '1 day') FROM (
        SELECT scheduled_for - lead(scheduled_for)
            OVER (ORDER BY definition_id DESC, scheduled_for DESC) AS gap
        FROM (
            SELECT definition_id, scheduled_for FROM wakeboard.job_runs
            WHERE definition_id BETWEEN d.id AND d.id AND scheduled_for IS NOT NULL
            ORDER BY definition_id DESC, scheduled_for DESC LIMIT :latest
        ) AS newest
    ) AS gaps
)""")
_OF_A_RUN = (
    "id", "status", "scheduled_for", "run_at", "error_code", "is_late", "is_beside", "came_back", "ran_again",
)  # fmt: skip


def latest(connection: Connection, definition_id: int) -> Sequence[RowMapping]:
    """Return the LATEST runs of a definition, oldest first, as far as something may be odd about them.

    id, scheduled_for, seconds (from its time to its first start, or to now), is_late (by more than LATE),
    is_beside (began while one before it was under way), came_back and ran_again (done twice).
    """
    return connection.execute(_LATEST, _values([definition_id])).mappings().all()


def strips(connection: Connection, ids: Sequence[int]) -> dict[int, RowMapping]:
    """Return by definition id a row about its LATEST runs; none for those that have no runs.

    newest, status and changed_at of the newest (it ended, failed, began or waits); runs: a text for ``read``,
    the same as long as nothing that is told of the runs changed; late, overlapping, twice: whether one is, as
    far as PostgreSQL can tell; is_near: one was scheduled for less than a day after one before it; first_at
    and last_at: the times that they were scheduled for. For who remembers it: is_over, that all have ended,
    not just now, and none was run again; oldest; how_many they are; watched, versions and back: the runs that
    may change, each with its VERSION and whether it CAME_BACK.
    """
    return _by_definition(connection, _STRIPS, ids)


def read(runs: str) -> list[dict[str, Any]]:
    """Return the runs that a row of ``strips`` tells of, oldest first.

    id, status, scheduled_for, run_at (of those that were scheduled for no time), error_code (its first
    hundred letters), and what ``latest`` tells of what is odd, without its seconds.
    """
    found = [dict(zip(_OF_A_RUN, run, strict=True)) for run in zip(*json.loads(runs), strict=True)]
    for run in found:
        for name in ("scheduled_for", "run_at"):
            run[name] = run[name] and read_time(run[name])
    return found


def surveyed(connection: Connection, ids: Sequence[int], words: Collection[str]) -> dict[int, RowMapping]:
    """Return by definition id a row about its LATEST runs; none for those that have no runs.

    is_odd: one of them may be one of ``words`` (late, overlapping, twice); is_near, first_at and last_at as
    of ``strips``, the first where number and span of the runs show it, see ``near``; newest, oldest and
    how_many; is_over: all have succeeded, and not just now. Most schedules have nothing odd, and this takes a
    quarter.
    """
    return _by_definition(connection, _survey(twice="twice" in words), ids)


def near(connection: Connection, ids: Sequence[int]) -> set[int]:
    """Return which of the definitions have two of their latest fires less than a day apart."""
    return set(connection.execute(_NEAR, {"ids": list(ids), "latest": LATEST}).scalars()) if ids else set()


@cache
def _survey(*, twice: bool) -> TextClause:
    """Return the statement of which definitions may have odd runs; ``twice``: by what was done twice too."""
    return text(_SURVEYED.format(ran_again=_RAN_ANY_AGAIN if twice else "false"))


def _by_definition(
    connection: Connection, statement: TextClause, ids: Sequence[int]
) -> dict[int, RowMapping]:
    rows = connection.execute(statement, _values(ids)).mappings().all() if ids else []
    return {row["definition_id"]: row for row in rows}


def _values(ids: Sequence[int]) -> dict[str, object]:
    return {"ids": list(ids), "latest": LATEST, "late": LATE.total_seconds()}
