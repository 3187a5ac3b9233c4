"""What the probes ask: are all duties of all live processes on time, and is anybody there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, func, literal, or_, select, union_all

from worker.tables import job_definitions, loops, statistics_deltas, statistics_rollups, workers

# A loop is late after missing three rounds and this much more, so that one slow statement is no alarm.
MARGIN_SECONDS = 5
# A process that was never seen for this long is gone: its runs were reaped, nobody waits for its loops.
GONE_SECONDS = 600
SILENCE_SECONDS = 180


@dataclass(frozen=True, slots=True)
class Loop:
    """One background duty of one process."""

    process_id: str
    name: str
    interval_seconds: float
    last_success_at: datetime
    last_error: str | None
    late: bool


def duties(connection: Connection) -> list[Loop]:
    """Return the loops of every live process; one without a worker's row is a process of its own."""
    late_after = func.make_interval(0, 0, 0, 0, 0, 0, 3 * loops.c.interval_seconds + MARGIN_SECONDS)
    alive = and_(workers.c.stopped_at.is_(None), workers.c.seen_at > _ago(GONE_SECONDS))
    alone = and_(workers.c.id.is_(None), loops.c.last_success_at > _ago(GONE_SECONDS))
    found = connection.execute(
        select(
            loops.c.process_id,
            loops.c.name,
            loops.c.interval_seconds,
            loops.c.last_success_at,
            loops.c.last_error,
            (loops.c.last_success_at < func.now() - late_after).label("late"),
        )
        .select_from(loops.outerjoin(workers, workers.c.id == loops.c.process_id))
        .where(or_(alive, alone))
        .order_by(loops.c.process_id, loops.c.name)
    )
    return [Loop(*row) for row in found]


def _ago(seconds: float) -> Any:
    return func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def abandoned(connection: Connection) -> bool:
    """Return whether schedules are enabled and no worker or tick came for three minutes."""
    scheduled = (
        select(literal(1))
        .where(job_definitions.c.enabled, job_definitions.c.schedule.is_not(None))
        .where(job_definitions.c.updated_at < _ago(SILENCE_SECONDS))
        .exists()
    )
    seen = select(literal(1)).where(workers.c.seen_at > _ago(SILENCE_SECONDS)).exists()
    return bool(connection.execute(select(scheduled & ~seen)).scalar_one())


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
