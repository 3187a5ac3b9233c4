"""The enabled schedules that cannot fire, and why.

The scheduler (``schedules.scheduler``) writes the reason to the schedule: its zone is unknown, its text
cannot be read or has no time; or the database refuses its run, which is tried again each minute. A run and an
edit clear it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wakeboard.database.read import read_all

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

IS_BROKEN = "enabled AND schedule IS NOT NULL AND error IS NOT NULL"
# So many are read, and one more, which shows that there are others.
MOST = 1000
BROKEN = f"""
SELECT name, error, next_fire_at IS NOT NULL AS is_refused
FROM wakeboard.job_definitions WHERE {IS_BROKEN} ORDER BY name LIMIT {MOST + 1}
"""


class BrokenSchedule(NamedTuple):
    """A schedule that cannot fire. ``is_refused``: it has a time, and only the database refuses its run."""

    name: str
    error: str
    is_refused: bool


def broken_schedules(connection: Connection) -> list[BrokenSchedule]:
    """Return the enabled schedules that cannot fire, by name, at most MOST + 1."""
    return read_all(connection, BROKEN, BrokenSchedule)
