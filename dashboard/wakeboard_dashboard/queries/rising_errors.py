"""Whether failures rise: the question of the alert rule of that name, asked with the rule's own numbers.

The rule lives in ``wakeboard.alerts``; nothing here judges.
"""

from __future__ import annotations

import psycopg
from sqlalchemy import Connection, select

from wakeboard.alerts import checks
from wakeboard.alerts.finding import Finding
from wakeboard.core.rule_types import KINDS
from wakeboard.database.tables import alert_rules

KIND = "failures_rise"


def failures_rise(connection: Connection) -> Finding:
    """Return what the rule finds now."""
    rules = alert_rules.c
    given = connection.execute(
        select(rules.settings).where(rules.kind == KIND).order_by(rules.enabled.desc(), rules.id).limit(1)
    ).scalar_one_or_none()
    # The same connection, so the same transaction: one moment for the whole page.
    own = connection.connection.driver_connection
    assert isinstance(own, psycopg.Connection)
    return checks.ask(own, KIND, KINDS[KIND].values(given or {}))
