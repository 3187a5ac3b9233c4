"""Which types are paused together, which by themselves, which not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, text

from wakeboard.core.rule_types import JOB_TYPE as ALERTS
from wakeboard.queue.pause_all import TOGETHER

_TYPES = text(f"""
SELECT t.name, t.paused_at, t.paused_by, t.paused_reason, t.paused_until,
    coalesce({TOGETHER}, false) AS is_held
FROM wakeboard.job_types AS t WHERE t.name <> :alerts ORDER BY t.name
""")

_ANY = text(f"SELECT EXISTS (SELECT FROM wakeboard.job_types AS t WHERE t.name <> :alerts AND {TOGETHER})")


@dataclass(frozen=True, slots=True)
class PausedTypes:
    """The types but for alerts: ``held`` were paused together, ``alone`` by themselves."""

    active: Sequence[RowMapping]
    held: Sequence[RowMapping]
    alone: Sequence[RowMapping]


def standing(connection: Connection) -> PausedTypes:
    """Return how all types stand, by name."""
    rows = connection.execute(_TYPES, {"alerts": ALERTS}).mappings().all()
    paused = [row for row in rows if row["paused_at"] is not None]
    return PausedTypes(
        [row for row in rows if row["paused_at"] is None],
        [row for row in paused if row["is_held"]],
        [row for row in paused if not row["is_held"]],
    )


def any_held(connection: Connection) -> bool:
    """Return whether some type was paused together with others."""
    return bool(connection.execute(_ANY, {"alerts": ALERTS}).scalar_one())
