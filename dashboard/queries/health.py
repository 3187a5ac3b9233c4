"""What the probes ask: are all duties of all live processes on time, and is anybody there."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select, union_all

from worker import liveness
from worker.liveness import Loop
from worker.tables import statistics_deltas, statistics_rollups


def duties(connection: Connection) -> list[Loop]:
    """Return the loops of every process that is not known to be gone; see ``worker.liveness``."""
    return [Loop(*row) for row in connection.exec_driver_sql(liveness.LOOPS)]


def abandoned(connection: Connection) -> bool:
    """Return whether schedules are enabled and no worker or tick came for three minutes."""
    return bool(connection.exec_driver_sql(liveness.ABANDONED).scalar_one())


def _ago(seconds: float) -> Any:
    return func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def attempts_last_hour(connection: Connection) -> list[tuple[str, str, int, float]]:
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
