"""When the indexes were last looked at, and what came of it: one row of ``loops`` that all workers share."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

import psycopg

from wakeboard.core.time.clock_skew import is_before

Connection = psycopg.Connection[Any]

PROCESS_ID, NAME = "all workers", "index pass"
PASS_SECONDS = 1800.0
# Building an index reads its whole table, so one is tried at most so often, whatever came of it.
REST_SECONDS = 6 * 3600.0
# What could not be built in time would hardly be the next time, and costs its minutes again.
GIVEN_UP_SECONDS = 7 * 86_400.0

READ = f"""
SELECT numbers, {is_before("last_success_at", PASS_SECONDS)}
FROM wakeboard.loops WHERE process_id = %s AND name = %s
"""
# Whoever changes the row makes the pass.
TAKE = f"""
INSERT INTO wakeboard.loops AS l (process_id, name, interval_seconds, last_success_at, numbers)
VALUES (%s, %s, {PASS_SECONDS}, now(), '{{}}') ON CONFLICT (process_id, name)
DO UPDATE SET last_success_at = now() WHERE {is_before("l.last_success_at", PASS_SECONDS)}
RETURNING numbers, extract(epoch FROM now())::float8
"""
STORE = "UPDATE wakeboard.loops SET numbers = %s::jsonb WHERE process_id = %s AND name = %s"


@dataclass(slots=True)
class RebuildPass:
    """The last pass, as it stands in the shared row.

    ``rebuilt`` tells of the last rebuild of all (``rebuilt_at``), ``waits`` what was in the way of the last
    pass, ``failed`` what went wrong in it, ``lacks`` what the worker's role may not do. ``tried`` has when
    each index was last tried, in seconds of the database's clock, ``entry_bytes`` what an entry of it took
    right after its last rebuild.
    """

    rebuilt: str | None = None
    rebuilt_at: str | None = None
    waits: str | None = None
    failed: str | None = None
    lacks: str | None = None
    tried: dict[str, float] = field(default_factory=dict)
    entry_bytes: dict[str, float] = field(default_factory=dict)
    now: float = 0.0

    @classmethod
    def read(cls, numbers: dict[str, Any], now: float = 0.0) -> RebuildPass:
        """Return what ``numbers`` of the row tell."""
        known = {each.name for each in fields(cls)} - {"now"}
        return cls(**{name: value for name, value in numbers.items() if name in known}, now=now)

    def shown(self) -> dict[str, Any]:
        """Return what the loop tells of it."""
        told = {name: getattr(self, name) for name in ("rebuilt", "rebuilt_at", "waits", "failed")}
        return {name: value for name, value in told.items() if value}

    def rests(self, index: str) -> bool:
        """Tell whether ``index`` was tried a short while ago."""
        return index in self.tried and self.now - self.tried[index] < REST_SECONDS

    def tries(self, index: str) -> None:
        """Note that ``index`` is tried now; forget what has rested."""
        self.tried = {name: at for name, at in self.tried.items() if self.rests(name)} | {index: self.now}

    def gives_up(self, index: str) -> None:
        """Note that ``index`` takes too long to build, and is left for a week."""
        self.tried[index] = self.now + GIVEN_UP_SECONDS - REST_SECONDS

    def may_be_tried_again(self, index: str) -> None:
        """Note that nothing came of the try, for a reason that may be gone soon."""
        self.tried.pop(index, None)

    def did(self, what: str) -> None:
        """Note a rebuild."""
        self.rebuilt = what
        self.rebuilt_at = datetime.fromtimestamp(self.now, UTC).isoformat(timespec="seconds")


def read(connection: Connection) -> tuple[RebuildPass, bool]:
    """Return the last pass, and whether the next one is due."""
    row = connection.execute(READ.encode(), (PROCESS_ID, NAME)).fetchone()
    return (RebuildPass(), True) if row is None else (RebuildPass.read(row[0] or {}), bool(row[1]))


def take(connection: Connection) -> RebuildPass | None:
    """Begin the pass that is due, for all workers; None when there is none, or another has begun it."""
    row = connection.execute(TAKE.encode(), (PROCESS_ID, NAME)).fetchone()
    return None if row is None else RebuildPass.read(row[0] or {}, row[1])


def store(connection: Connection, current: RebuildPass) -> None:
    """Write what came of the pass."""
    numbers = current.shown() | {
        "lacks": current.lacks, "tried": current.tried, "entry_bytes": current.entry_bytes,
    }  # fmt: skip
    connection.execute(STORE, (json.dumps(numbers), PROCESS_ID, NAME))
