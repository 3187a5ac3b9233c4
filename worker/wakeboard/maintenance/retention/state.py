"""How far the pass is: one row of ``loops`` that all workers share, locked while one of them works.

When the worker of a pass is gone, another one continues it, so ticks that live for a second get through too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from psycopg import Connection

from wakeboard.core.time.clock_skew import MARGIN_SECONDS

_TIMES = ("started_at", "finished_at", "oldest_ended_at")

PROCESS_ID, NAME = "all workers", "retention pass"
PASS_SECONDS = 3600.0
# The worker of the last pass has the zone map, so the others wait longer.
OTHERS_WAIT_SECONDS = 600.0
# After so long without a sign of its worker anybody may continue a pass.
ABANDONED_SECONDS = 30.0

READ = """
SELECT numbers, extract(epoch FROM now() - last_success_at)::float8, extract(epoch FROM now())::float8
FROM wakeboard.loops WHERE process_id = %s AND name = %s
"""
LOCK = f"{READ} FOR UPDATE SKIP LOCKED"
# Twelve hours old, so that it is due and yet not forgotten as a dead process's row.
CREATE = """
INSERT INTO wakeboard.loops (process_id, name, interval_seconds, last_success_at, numbers)
VALUES (%s, %s, %s, now() - interval '12 hours', '{}') ON CONFLICT DO NOTHING
"""
STORE = """
UPDATE wakeboard.loops SET numbers = %s::jsonb, last_success_at = now() WHERE process_id = %s AND name = %s
"""


@dataclass(slots=True)
class RetentionPass:
    """A pass under way, or the last one.

    ``phase`` is what is being removed: runs, or the name of a RetentionRule; None when the pass has
    finished. ``cursor`` is the id to go on behind. Times are seconds of the database's clock; ``removed``
    counts rows by name.
    """

    owner: str = ""
    phase: str | None = None
    cursor: int = 0
    started_at: float | None = None
    finished_at: float | None = None
    oldest_ended_at: float | None = None
    work_seconds: float = 0.0
    backlog: bool = False
    removed: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, numbers: dict[str, Any]) -> RetentionPass:
        """Return what ``numbers`` of the row tell; missing ones have their defaults."""
        removed = {
            name.removeprefix("removed_"): count
            for name, count in numbers.items()
            if name.startswith("removed_")
        }
        values = {name: value for name, value in numbers.items() if name in cls.__slots__}
        for name in _TIMES:
            text = values.get(name)
            values[name] = None if text is None else datetime.fromisoformat(text).timestamp()
        return cls(**values, removed=removed)

    def numbers(self) -> dict[str, Any]:
        """Return what the shared row holds; ``read`` takes it back."""
        return {"owner": self.owner, "phase": self.phase, "cursor": self.cursor} | self.summary()

    def summary(self) -> dict[str, Any]:
        """Return what people see; kinds of which nothing went are left out, but for runs."""
        counts = {"runs": 0, "attempts": 0} | {name: count for name, count in self.removed.items() if count}
        return {
            **{name: _iso(getattr(self, name)) for name in _TIMES},
            "backlog": self.backlog,
            "work_seconds": round(self.work_seconds, 3),
            **{f"removed_{name}": count for name, count in counts.items()},
        }

    def count(self, name: str, rows: int) -> None:
        """Add ``rows`` to what was removed of ``name``."""
        self.removed[name] = self.removed.get(name, 0) + rows


class RetentionRow(NamedTuple):
    """The shared row: the pass, seconds since the row was written, and the database's clock in seconds."""

    last: RetentionPass
    silent_seconds: float
    now: float


def is_due(state: RetentionPass, silent_seconds: float, owner: str) -> bool:
    """Return whether ``owner`` should begin a pass, or continue one, whose row was written so long ago.

    A row that was written ahead of the clock counts as written long ago.
    """
    if silent_seconds < -MARGIN_SECONDS:
        return True
    is_own = state.owner == owner
    if state.phase is not None:
        return is_own or silent_seconds >= ABANDONED_SECONDS
    if state.finished_at is None:
        return True
    return silent_seconds >= PASS_SECONDS + (0.0 if is_own else OTHERS_WAIT_SECONDS)


def read(connection: Connection, *, lock: bool = False) -> RetentionRow | None:
    """Return the shared row; None when there is none or, with ``lock``, somebody has locked it."""
    row = connection.execute((LOCK if lock else READ).encode(), (PROCESS_ID, NAME)).fetchone()
    if row is None:
        return None
    numbers, silent_seconds, now = row
    return RetentionRow(RetentionPass.read(numbers or {}), silent_seconds, now)


def create(connection: Connection) -> None:
    """Insert the shared row, unless there is one."""
    connection.execute(CREATE, (PROCESS_ID, NAME, PASS_SECONDS))


def store(connection: Connection, state: RetentionPass) -> None:
    """Write ``state`` into the shared row."""
    connection.execute(STORE, (json.dumps(state.numbers()), PROCESS_ID, NAME))


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
