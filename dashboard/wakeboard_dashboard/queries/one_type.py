"""What the page of one job type asks: who runs it, what makes it, how its latest runs and failures went."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, RowMapping, Select, Text, any_, bindparam, literal, select, text, union_all

from wakeboard.core.states import FAILURES, sql_list
from wakeboard.database.tables import audit_log, job_definitions, job_runs, workers
from wakeboard.reporting.filters.search import IS_RUNNING, running
from wakeboard_dashboard.queries.overview import ALIVE, IS_CLAIMING
from wakeboard_dashboard.queries.types import NEWEST

LATEST = 10
MOST_SHOWN = 50

runs = job_runs.c

# The codes are counted in the index; of the attempts themselves only the last one of each is looked at.
_FAILURES = text(f"""
SELECT counted.error_code, counted.attempts, counted.finished_at, last.run_id
FROM (
    SELECT newest.error_code, count(*) AS attempts, max(newest.finished_at) AS finished_at FROM (
        SELECT a.job_type, a.error_code, a.finished_at FROM wakeboard.job_attempts AS a
        WHERE a.outcome IN ({sql_list(FAILURES)}) ORDER BY a.finished_at DESC LIMIT :newest
    ) AS newest
    WHERE newest.job_type = :name
    GROUP BY newest.error_code ORDER BY attempts DESC, finished_at DESC LIMIT :most
) AS counted
CROSS JOIN LATERAL (
    SELECT a.run_id FROM wakeboard.job_attempts AS a
    WHERE a.outcome IN ({sql_list(FAILURES)}) AND a.job_type = :name
        AND a.error_code IS NOT DISTINCT FROM counted.error_code
        AND a.finished_at BETWEEN counted.finished_at AND counted.finished_at
    ORDER BY a.finished_at DESC LIMIT 1
) AS last
ORDER BY counted.attempts DESC, counted.finished_at DESC
""")


def workers_of(connection: Connection, name: str) -> list[RowMapping]:
    """Return the live workers that can run a type, the busiest first, at most MOST_SHOWN.

    ``is_claiming``: it takes new work.
    """
    here = workers.c
    statement = (
        select(here.id, here.name, here.hostname, here.pid, here.concurrency, here.running, here.seen_at,
               here.drain_requested_at, here.stop_requested_at, here.stopping_at,
               IS_CLAIMING.label("is_claiming"))
        .where(ALIVE, literal(name) == any_(here.job_types))
        .order_by(here.running.desc(), here.id)
        .limit(MOST_SHOWN)
    )  # fmt: skip
    return list(connection.execute(statement).mappings().all())


def schedules_of(connection: Connection, name: str) -> list[RowMapping]:
    """Return the schedules that make runs of a type, by name, at most MOST_SHOWN."""
    here = job_definitions.c
    statement = (
        select(here.name, here.schedule, here.timezone, here.enabled, here.error, here.next_fire_at)
        .where(here.job_type == name)
        .order_by(here.name)
        .limit(MOST_SHOWN)
    )
    return list(connection.execute(statement).mappings().all())


def latest_runs(connection: Connection, name: str) -> list[RowMapping]:
    """Return the LATEST runs of a type, the newest first: what a table of runs shows."""
    return list(connection.execute(_LATEST, {"name": name}).mappings().all())


def _latest() -> Select[Any]:
    shown = (runs.id, runs.status, runs.attempts, runs.started_at, runs.finished_at, runs.failed_at,
             runs.run_at, runs.error_code, runs.last_error)  # fmt: skip
    name = bindparam("name", type_=Text)
    # The range of one value and the order leave the planner one way: job_runs_listed_by_type.
    listed = (
        select(*shown)
        .where(runs.job_type.between(name, name), ~IS_RUNNING)
        .order_by(runs.job_type.desc(), runs.id.desc())
        .limit(LATEST)
    )
    each = union_all(listed, running(*shown, where=[runs.job_type == name])).subquery()
    return select(each).order_by(each.c.id.desc()).limit(LATEST)


# Built once: to put it together takes longer than to ask it.
_LATEST = _latest()


def failures_of(connection: Connection, name: str) -> list[RowMapping]:
    """Return the latest failed attempts of a type among the NEWEST of all types, by code: how many, the last.

    error_code, attempts, finished_at and run_id of the last one; the most frequent first.
    """
    given = {"name": name, "newest": NEWEST, "most": LATEST}
    return list(connection.execute(_FAILURES, given).mappings().all())


def audit_of(connection: Connection, kind: str, name: str) -> list[RowMapping]:
    """Return what was done to the thing ``name`` of a kind ('type', 'worker'), newest first, at most 20."""
    rows = audit_log.c
    statement = (
        select(audit_log)
        .where(rows.target_type == kind, rows.target_id == name)
        .order_by(rows.id.desc())
        .limit(2 * LATEST)
    )
    return list(connection.execute(statement).mappings().all())
