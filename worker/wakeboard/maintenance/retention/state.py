"""Where the pass over everything stands: one row of ``loops`` that all workers share, locked while one works.

A pass is continued by whoever comes when its worker is gone, so ticks that live for a second get through too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg

from wakeboard.core.time.clock_skew import MARGIN_SECONDS

Connection = psycopg.Connection[Any]

PROCESS_ID, NAME = "all workers", "retention pass"
PASS_SECONDS = 3600.0
# The last worker at it knows where nothing can have expired yet, so the others let it go first.
OTHERS_WAIT_SECONDS = 600.0
# A pass whose worker has been silent for so long is anybody's.
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
    """A pass under way, or the last one: ``room`` is what it is at, None when it has finished.

    Times are seconds of the database's clock; ``removed`` counts by name.
    """

    owner: str = ""
    room: str | None = None
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
        known = {name: value for name, value in numbers.items() if name in cls.__slots__}
        for name in ("started_at", "finished_at", "oldest_ended_at"):
            known[name] = _seconds(known.get(name))
        return cls(**known, removed=removed)

    def numbers(self) -> dict[str, Any]:
        """Return what the shared row holds; ``read`` takes it back."""
        return {"owner": self.owner, "room": self.room, "cursor": self.cursor} | self.shown()

    def shown(self) -> dict[str, Any]:
        """Return what people are told; kinds of which nothing went are left out, but for runs."""
        times = ("started_at", "finished_at", "oldest_ended_at")
        counts = {"runs": 0, "attempts": 0} | {name: count for name, count in self.removed.items() if count}
        return {
            **{name: _text(getattr(self, name)) for name in times},
            "backlog": self.backlog,
            "work_seconds": round(self.work_seconds, 3),
            **{f"removed_{name}": count for name, count in counts.items()},
        }

    def count(self, name: str, rows: int) -> None:
        """Add to what was removed."""
        self.removed[name] = self.removed.get(name, 0) + rows


class RetentionRow(NamedTuple):
    """The shared row: the pass, seconds since the row was written, and the database's clock in seconds."""

    last: RetentionPass
    silent_seconds: float
    now: float


def is_due(state: RetentionPass, silent_seconds: float, owner: str) -> bool:
    """Tell whether ``owner`` should begin or go on with a pass whose row was last written so long ago.

    A row that was written ahead of the clock is as good as one that was written long ago.
    """
    if silent_seconds < -MARGIN_SECONDS:
        return True
    mine = state.owner == owner
    if state.room is not None:
        return mine or silent_seconds >= ABANDONED_SECONDS
    if state.finished_at is None:
        return True
    return silent_seconds >= PASS_SECONDS + (0.0 if mine else OTHERS_WAIT_SECONDS)


def read(connection: Connection, *, lock: bool = False) -> RetentionRow | None:
    """Return how the pass stands; None when somebody holds its row, or there is none."""
    row = connection.execute((LOCK if lock else READ).encode(), (PROCESS_ID, NAME)).fetchone()
    return None if row is None else RetentionRow(RetentionPass.read(row[0] or {}), row[1], row[2])


def create(connection: Connection) -> None:
    """Make the row, unless there is one."""
    connection.execute(CREATE, (PROCESS_ID, NAME, PASS_SECONDS))


def store(connection: Connection, state: RetentionPass) -> None:
    """Write where the pass stands."""
    connection.execute(STORE, (json.dumps(state.numbers()), PROCESS_ID, NAME))


def _text(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
