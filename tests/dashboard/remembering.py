"""What tests of memories share: the moments at which things end, and how many are remembered."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from typing import Any

from sqlalchemy import Connection as Session
from sqlalchemy import text

from tests.conftest import Connection
from wakeboard.maintenance.retention.state import NAME, PROCESS_ID
from wakeboard.reporting.activity_report import Ask
from wakeboard_dashboard.queries.errors import Window

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def now_of(session: Session) -> datetime:
    """Return the database's time."""
    moment: datetime = session.execute(text("SELECT now()")).scalar_one()
    return moment


def last_day(now: datetime) -> Window:
    """Return the window of a day that goes on."""
    return Window(now - DAY, now + MINUTE)


def asking(session: Session) -> Ask:
    """Return how the shared questions of a night are asked in a test."""

    def ask(sql: str, values: Any) -> Any:
        return session.execute(text(sql), dict(values)).mappings().all()

    return ask


class Moments:
    """Moments at random, of each share of a span at most one."""

    def __init__(self, chance: Random) -> None:
        self._shares = iter(chance.sample(range(1, 10**6), 4000))

    def ago(self, now: datetime, most: timedelta) -> datetime:
        """Return a moment in the ``most`` before ``now``."""
        return now - most * (next(self._shares) / 10**6)


def note_removal(connection: Connection) -> None:
    """Write what retention does when it has removed a run and its attempt."""
    connection.execute(
        """INSERT INTO wakeboard.loops (process_id, name, interval_seconds, numbers)
        VALUES (%s, %s, 60, '{"started_at": "now", "removed_runs": 1, "removed_attempts": 1}')""",
        (PROCESS_ID, NAME),
    )
