"""When the last pass over the indexes was, and its result: one row of ``loops`` that all workers share."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from psycopg import Connection

from wakeboard.core.time.clock_skew import is_before

PROCESS_ID, NAME = "all workers", "index pass"
PASS_SECONDS = 1800.0
# Building an index reads its whole table, so a try is not repeated sooner, whatever its result.
REST_SECONDS = 6 * 3600.0
# An index that could not be built in time would hardly be the next time, and costs its minutes again.
POSTPONED_SECONDS = 7 * 86_400.0

READ = f"""
SELECT numbers, {is_before("last_success_at", PASS_SECONDS)}
FROM wakeboard.loops WHERE process_id = %s AND name = %s
"""
# The worker that changes the row makes the pass.
BEGIN = f"""
INSERT INTO wakeboard.loops AS l (process_id, name, interval_seconds, last_success_at, numbers)
VALUES (%s, %s, {PASS_SECONDS}, now(), '{{}}') ON CONFLICT (process_id, name)
DO UPDATE SET last_success_at = now() WHERE {is_before("l.last_success_at", PASS_SECONDS)}
RETURNING numbers, extract(epoch FROM now())::float8
"""
STORE = "UPDATE wakeboard.loops SET numbers = %s::jsonb WHERE process_id = %s AND name = %s"


@dataclass(slots=True)
class RebuildPass:
    """The last pass, as it stands in the shared row.

    ``rebuilt`` describes the last rebuild of all (``rebuilt_at``), ``waits`` what blocked the last pass,
    ``failed`` its last error, ``missing_privilege`` what the worker's role may not do. ``tried`` has the
    time of the last try of each index, in seconds of the database's clock, ``entry_bytes`` the size of one
    of its entries right after the last rebuild.
    """

    rebuilt: str | None = None
    rebuilt_at: str | None = None
    waits: str | None = None
    failed: str | None = None
    missing_privilege: str | None = None
    tried: dict[str, float] = field(default_factory=dict)
    entry_bytes: dict[str, float] = field(default_factory=dict)
    now: float = 0.0

    @classmethod
    def read(cls, numbers: dict[str, Any], now: float = 0.0) -> RebuildPass:
        """Return the pass that ``numbers`` of the row describe."""
        names = {each.name for each in fields(cls)} - {"now"}
        return cls(**{name: value for name, value in numbers.items() if name in names}, now=now)

    def summary(self) -> dict[str, str]:
        """Return what people see."""
        texts = {
            "rebuilt": self.rebuilt, "rebuilt_at": self.rebuilt_at, "waits": self.waits, "failed":
            self.failed,
        }  # fmt: skip
        return {name: text for name, text in texts.items() if text}

    def is_resting(self, index: str) -> bool:
        """Return whether ``index`` was tried less than REST_SECONDS ago."""
        return index in self.tried and self.now - self.tried[index] < REST_SECONDS

    def record_try(self, index: str) -> None:
        """Note that ``index`` is tried now; forget older tries that no longer count."""
        self.tried = {name: at for name, at in self.tried.items() if self.is_resting(name)}
        self.tried[index] = self.now

    def postpone(self, index: str) -> None:
        """Note that ``index`` takes too long to build: the next try is in POSTPONED_SECONDS."""
        self.tried[index] = self.now + POSTPONED_SECONDS - REST_SECONDS

    def forget_try(self, index: str) -> None:
        """Let the next pass try ``index`` again: the try failed for a reason that may be gone soon."""
        self.tried.pop(index, None)

    def record_rebuild(self, text: str) -> None:
        """Note a rebuild, described by ``text``."""
        self.rebuilt = text
        self.rebuilt_at = datetime.fromtimestamp(self.now, UTC).isoformat(timespec="seconds")


def read(connection: Connection) -> tuple[RebuildPass, bool]:
    """Return the last pass, and whether the next one is due."""
    row = connection.execute(READ.encode(), (PROCESS_ID, NAME)).fetchone()
    if row is None:
        return RebuildPass(), True
    numbers, is_due = row
    return RebuildPass.read(numbers or {}), is_due


def begin(connection: Connection) -> RebuildPass | None:
    """Begin the pass that is due, for all workers; None when none is due or another worker has begun it."""
    row = connection.execute(BEGIN.encode(), (PROCESS_ID, NAME)).fetchone()
    if row is None:
        return None
    numbers, now = row
    return RebuildPass.read(numbers or {}, now)


def store(connection: Connection, current: RebuildPass) -> None:
    """Write ``current`` into the shared row."""
    numbers = current.summary() | {
        "missing_privilege": current.missing_privilege, "tried": current.tried,
        "entry_bytes": current.entry_bytes,
    }  # fmt: skip
    connection.execute(STORE, (json.dumps(numbers), PROCESS_ID, NAME))
