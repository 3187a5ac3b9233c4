"""What a name in a filter means: the statements that find the ids of the workers and schedules of that name.

Imports SQLAlchemy, so nothing that works on runs imports it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Select, cast, or_, select

from wakeboard.database.tables import audit_log, job_definitions, workers


def workers_named(name: str) -> Select[Any]:
    """Return the select of the ids of workers with this name or on this host."""
    return select(workers.c.id).where(or_(workers.c.name == name, workers.c.hostname == name))


def schedules_named(name: str) -> Select[Any]:
    """Return the select of the id of the schedule ``name``."""
    return select(job_definitions.c.id).where(job_definitions.c.name == name)


def removed_schedules_named(name: str) -> Select[Any]:
    """Return the select of the id of the schedule ``name`` that was removed last, as the audit log knows."""
    rows = audit_log.c
    removed = (rows.action == "schedule.remove", rows.result == "done", rows.before.has_key("id"))
    return (
        select(cast(rows.before["id"].astext, BigInteger).label("id"))
        .where(rows.target_type == "schedule", rows.target_id == name, *removed)
        .order_by(rows.id.desc())
        .limit(1)
    )
