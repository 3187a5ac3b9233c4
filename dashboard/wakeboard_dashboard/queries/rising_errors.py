"""Whether failures rise: the question of the alert rule of that name, asked with the rule's own numbers.

The rule lives in ``wakeboard.alerts``; nothing here judges. The answer is kept for a moment, because it looks
at the same hour of seven days and the overview asks every two seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
from sqlalchemy import Connection, select

from wakeboard.alerts import checks
from wakeboard.alerts.finding import Finding
from wakeboard.core.rule_types import KINDS
from wakeboard.database.tables import alert_rules

KIND = "failures_rise"
KEPT = timedelta(seconds=15)


@dataclass(slots=True)
class Memory:
    """The last answer and the moment of the database's clock it is of."""

    at: datetime | None = None
    found: Finding | None = None


def failures_rise(connection: Connection, now: datetime, memory: Memory) -> Finding:
    """Return what the rule finds now, or found at most KEPT ago, as ``memory`` has it."""
    if memory.found is None or memory.at is None or not timedelta() <= now - memory.at < KEPT:
        memory.found, memory.at = _ask(connection), now
    return memory.found


def _ask(connection: Connection) -> Finding:
    rules = alert_rules.c
    given = connection.execute(
        select(rules.settings).where(rules.kind == KIND).order_by(rules.enabled.desc(), rules.id).limit(1)
    ).scalar_one_or_none()
    # The same connection, so the same transaction: one moment for the whole page.
    own = connection.connection.driver_connection
    assert isinstance(own, psycopg.Connection)
    return checks.ask(own, KIND, KINDS[KIND].values(given or {}))
