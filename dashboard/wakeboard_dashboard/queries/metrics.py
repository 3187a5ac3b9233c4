"""Numbers of /metrics: attempts, queued runs, the longest running run. Late processes are in
``wakeboard.reporting.heartbeats``."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select, text, union_all

from wakeboard.core.states import FAILURES, Status, sql_list
from wakeboard.database.tables import job_types, statistics_deltas, statistics_rollups
from wakeboard.reporting.hourly_rollups import hour_of
from wakeboard_dashboard.queries import types
from wakeboard_dashboard.queries.statements import Column

# Types that programs name in their rows, but no worker ever registered, are few of them or none: see
# ``types.MOST_UNKNOWN``. So a producer with a name for each run makes no series for each.
MOST_TYPES = 1000

# Of hours that no worker has summed the minutes are read, hour by hour. What is remembered in a process would
# let one process count less than another: to Prometheus a counter that begins anew.
_TODAY = text(f"""
WITH today AS MATERIALIZED (
    SELECT each.hour, EXISTS (
        SELECT FROM wakeboard.statistics_hours AS known
        WHERE known.hour = each.hour AND known.summed_at IS NOT NULL
    ) AS is_summed
    FROM generate_series(
        date_trunc('day', now(), 'UTC'), {hour_of("now()")}, '1 hour'
    ) AS each (hour)
)
SELECT job_type, sum(succeeded)::bigint AS succeeded, sum(failed)::bigint AS failed
FROM (
    SELECT told.job_type, told.succeeded, told.failed
    FROM today CROSS JOIN LATERAL (
        SELECT job_type, succeeded, failed FROM wakeboard.statistics_hours_of_types AS summed
        WHERE summed.hour = today.hour
    ) AS told
    WHERE today.is_summed
    UNION ALL
    SELECT told.job_type,
        CASE WHEN told.outcome = 'succeeded' THEN told.runs ELSE 0 END,
        CASE WHEN told.outcome IN ({sql_list(FAILURES)}) THEN told.runs ELSE 0 END
    FROM today CROSS JOIN LATERAL (
        SELECT job_type, outcome, runs FROM wakeboard.statistics_rollups
        WHERE minute >= today.hour AND minute < today.hour + interval '1 hour'
        UNION ALL
        SELECT job_type, outcome, runs FROM wakeboard.statistics_deltas
        WHERE minute >= today.hour AND minute < today.hour + interval '1 hour'
    ) AS told
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
    found = connection.execute(
        select(both.c.job_type, both.c.outcome, func.sum(both.c.runs), func.sum(both.c.duration_ms)).group_by(
            both.c.job_type, both.c.outcome
        )
    )
    return [(row[0], row[1], int(row[2]), float(row[3]) / 1000) for row in found]


def list_types(connection: Connection) -> list[str]:
    """Return the registered types by name, at most MOST_TYPES."""
    names = select(job_types.c.name).order_by(job_types.c.name).limit(MOST_TYPES)
    return list(connection.execute(names).scalars())


def count_attempts_today(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return by type how many attempts succeeded, and failed, timed out or were lost, since midnight UTC.

    Until the next midnight these numbers only grow, whichever process is asked.
    """
    return {row[0]: (row[1], row[2]) for row in connection.execute(_TODAY)}


def count_queued(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Return by type how many runs are queued, each counted up to ``types.CAP + 1``.

    Of ``names``, and of up to ``types.MOST_UNKNOWN`` types of which runs wait without that any worker ever
    registered them.
    """
    return types.count_queued(connection, [*names, *types.list_unregistered(connection)])


def find_longest_running_seconds(connection: Connection) -> float:
    """Return for how many seconds the run runs that was started first, 0 where none runs."""
    return float(connection.exec_driver_sql(_LONGEST).scalar_one())
