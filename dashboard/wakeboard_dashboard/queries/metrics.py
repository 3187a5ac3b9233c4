"""Numbers of /metrics: attempts, queued runs, the longest running run. Late processes are in
``wakeboard.reporting.heartbeats``."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select, text, union_all

from wakeboard.core.states import FAILURES, Status, sql_list
from wakeboard.database.tables import job_types, statistics_deltas, statistics_rollups
from wakeboard.reporting.hourly_rollups import hour_start
from wakeboard_dashboard.queries import types
from wakeboard_dashboard.queries.statements import Column

# Of types that no worker has registered at most ``types.MOST_UNKNOWN`` are listed, so a producer with a new
# type for each run does not make a series for each.
MOST_TYPES = 1000

# The minutes of hours that no worker has summed are read hour by hour. Nothing is cached in a process:
# another one would count less, and Prometheus takes that for a counter that begins anew.
_TODAY = text(f"""
WITH today AS MATERIALIZED (
    SELECT each.hour, EXISTS (
        SELECT FROM wakeboard.statistics_hours AS h
        WHERE h.hour = each.hour AND h.summed_at IS NOT NULL
    ) AS is_summed
    FROM generate_series(
        date_trunc('day', now(), 'UTC'), {hour_start("now()")}, '1 hour'
    ) AS each (hour)
)
SELECT job_type, sum(succeeded)::bigint AS succeeded, sum(failed)::bigint AS failed
FROM (
    SELECT summed.job_type, summed.succeeded, summed.failed
    FROM today CROSS JOIN LATERAL (
        SELECT job_type, succeeded, failed FROM wakeboard.statistics_hours_of_types AS h
        WHERE h.hour = today.hour
    ) AS summed
    WHERE today.is_summed
    UNION ALL
    SELECT minutes.job_type,
        CASE WHEN minutes.outcome = 'succeeded' THEN minutes.runs ELSE 0 END,
        CASE WHEN minutes.outcome IN ({sql_list(FAILURES)}) THEN minutes.runs ELSE 0 END
    FROM today CROSS JOIN LATERAL (
        SELECT job_type, outcome, runs FROM wakeboard.statistics_rollups
        WHERE minute >= today.hour AND minute < today.hour + interval '1 hour'
        UNION ALL
        SELECT job_type, outcome, runs FROM wakeboard.statistics_deltas
        WHERE minute >= today.hour AND minute < today.hour + interval '1 hour'
    ) AS minutes
    WHERE NOT today.is_summed
) AS ended
GROUP BY job_type
""")
_LONGEST = f"""
SELECT coalesce(extract(epoch FROM now() - min(r.started_at)), 0)::float8
FROM wakeboard.job_runs AS r WHERE r.status = '{Status.RUNNING.value}'
"""


def _ago(seconds: float) -> Column:
    return func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def count_attempts_last_hour(connection: Connection) -> list[tuple[str, str, int, float]]:
    """Return (job type, outcome, attempts, seconds of work) of the attempts that ended in the last hour."""
    parts = [
        select(table.c.job_type, table.c.outcome, table.c.runs, table.c.duration_ms).where(
            table.c.minute > _ago(3600)
        )
        for table in (statistics_deltas, statistics_rollups)
    ]
    both = union_all(*parts).subquery()
    rows = connection.execute(
        select(both.c.job_type, both.c.outcome, func.sum(both.c.runs), func.sum(both.c.duration_ms)).group_by(
            both.c.job_type, both.c.outcome
        )
    )
    return [(job_type, outcome, int(runs), float(ms) / 1000) for job_type, outcome, runs, ms in rows]


def list_types(connection: Connection) -> list[str]:
    """Return the registered types by name, at most MOST_TYPES."""
    names = select(job_types.c.name).order_by(job_types.c.name).limit(MOST_TYPES)
    return list(connection.execute(names).scalars())


def count_attempts_today(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return by type how many attempts succeeded, and failed, timed out or were lost, since midnight UTC.

    Until the next midnight these numbers only grow, in every process.
    """
    return {job_type: (good, bad) for job_type, good, bad in connection.execute(_TODAY)}


def count_queued(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Return by type how many runs are queued, each counted up to ``types.CAP + 1``.

    Counts ``names``, and up to ``types.MOST_UNKNOWN`` types of waiting runs that no worker has registered.
    """
    return types.count_queued(connection, [*names, *types.list_unregistered(connection)])


def find_longest_running_seconds(connection: Connection) -> float:
    """Return for how many seconds the longest running run has run, 0 where none runs."""
    return float(connection.exec_driver_sql(_LONGEST).scalar_one())
