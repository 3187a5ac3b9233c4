"""Taking back runs whose lease ended: their worker died, hung or was cut off.

Any worker may decide for any type: the policies are in the database. Read what ended, then move it, guarded
by the epoch as read: what is known not to have begun goes back at no cost, the rest is lost.

A batch that the database refuses for one of its rows (a rule of its owner, or one that plain SQL has broken)
is taken back in halves, down to that one. A run that may not be tried again is dead, with the database's
sentence; where that is refused too it stays as it is, and this process passes it by for a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple

import psycopg

from wakeboard.config import log
from wakeboard.core.errors.error_groups import LOST_TEMPLATE, lost_group
from wakeboard.core.retry import Backoff
from wakeboard.core.time.clock_skew import is_since
from wakeboard.database.outage_log import WarningThrottle
from wakeboard.database.poison_rows import RowBatches, SkippedRows, is_refusal, refusal_reason
from wakeboard.queue.engine.reaping import END_REFUSED, ENDED_LEASES, GIVE_BACK, REAP
from wakeboard.queue.engine.unbegun import STRIKE_OFF

BATCH = 500
WHY = LOST_TEMPLATE
Moved = list[tuple[Any, ...]]


class ExpiredLease(NamedTuple):
    """A run whose lease has ended, as it was read, and how it is taken back; ``delay`` is in seconds."""

    id: int
    epoch: int
    job_type: str
    delay: float
    most_attempts: int


class Reaper:
    """The reaping duty of one process. Durations are in seconds."""

    def __init__(self, *, lease_seconds: float, heartbeat_seconds: float, waits_first: bool) -> None:
        """``waits_first``: give other workers time to renew before the first look (a tick has no time)."""
        self._lease_seconds = lease_seconds
        self._patience = heartbeat_seconds + 5.0
        self._not_before = monotonic() + (self._patience if waits_first else 0.0)
        # Both the heartbeat and the reaping compare the clocks.
        self._clock_lock = Lock()
        self._offset: float | None = None
        # Whether the last step was full: there may be more.
        self.has_more = False
        # How often the database's clock was seen to jump.
        self.jumps = 0
        self._passed_by = SkippedRows()
        self._warnings = WarningThrottle()

    def reconnected(self) -> None:
        """Wait a heartbeat and more: after an outage all leases look ended, and most will be renewed."""
        self._not_before = monotonic() + self._patience

    def step(self, connection: psycopg.Connection[Any]) -> dict[str, int]:
        """Take back a batch of ended leases; return how many went where. Needed only when some have ended."""
        self.has_more = False
        if self._clock_has_jumped(connection) or monotonic() < self._not_before:
            return {}
        if self._server_is_new(connection):
            return {}
        values = (BATCH, self._passed_by.ids)
        rows = psycopg.RawCursor(connection).execute(ENDED_LEASES.encode(), values).fetchall()
        if not rows:
            return {}
        delays = [Backoff.parse_or_default(row[6]).delay_seconds(row[4] + 1) for row in rows]
        lost = [
            ExpiredLease(row[0], row[1], row[3], delay, row[5])
            for row, delay in zip(rows, delays, strict=True)
        ]
        given_back = _give_back(connection, lost)
        is_given_back = {run_id for run_id, *_ in given_back}
        moved = given_back + self._reap(connection, [one for one in lost if one.id not in is_given_back])
        self.has_more = len(rows) == BATCH and bool(moved)
        counts: dict[str, int] = {}
        for run_id, status, next_run_at, job_type, attempt, worker_id in moved:
            counts[status] = counts.get(status, 0) + 1
            log.move(
                "release" if run_id in is_given_back else "reap", run_id=run_id, job_type=job_type,
                attempt=attempt, worker_id=worker_id,
                error_code=None if run_id in is_given_back else "lease_lost", status=status,
                next_run_at=next_run_at,
            )  # fmt: skip
        return counts

    def _reap(self, connection: psycopg.Connection[Any], lost: Sequence[ExpiredLease]) -> Moved:
        """Take the runs back and return them; one that the database refuses alone is dead if it may be."""
        moved: Moved = []
        parts = RowBatches(lost)
        for part in parts:
            try:
                moved += _take_back(connection, part, WHY)
            except psycopg.Error as refused:
                if not parts.halve(part, refused):
                    moved += self._bury(connection, part[0], refusal_reason(refused))
        return moved

    def _bury(self, connection: psycopg.Connection[Any], lost: ExpiredLease, why: str) -> Moved:
        """Let a run be dead that may not be tried again: with its attempt if that may be written."""
        self._warnings.warn(
            lost.id, "The database refuses that a lost run is tried again; it is dead if that may be.",
            run_id=lost.id, job_type=lost.job_type, error=why,
        )  # fmt: skip
        told = f"{WHY}; {why}"
        for bury in (_bury_with_attempt, _bury_where_it_stands):
            try:
                return bury(connection, lost, told)
            except psycopg.Error as refused:
                if not is_refusal(refused):
                    raise
        self._passed_by.add(lost.id)
        return []

    def _server_is_new(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the server started a moment ago: the leases that ended while it was down may be renewed."""
        row = connection.execute(
            f"SELECT {is_since('pg_postmaster_start_time()', '%s')}".encode(), (self._patience,)
        ).fetchone()
        return bool(row and row[0])

    def _clock_has_jumped(self, connection: psycopg.Connection[Any]) -> bool:
        """Compare the database's clock with ours: a jump by a quarter of a lease makes leases look ended."""
        before = monotonic()
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        return self.clock_jumped(row[0] if row else 0.0, before, monotonic())

    def clock_jumped(self, clock: float, before: float, after: float) -> bool:
        """Whether the database's ``clock`` jumped since it was last seen; if so, wait a while from now on.

        ``before`` and ``after`` are this process's clock around the question; an answer that took long says
        nothing, because it is not known when in that time the clock was read. To be called every few seconds.
        """
        if after - before > self._lease_seconds / 4:
            return False
        offset = clock - (before + after) / 2
        with self._clock_lock:
            known, self._offset = self._offset, offset
        if known is None or abs(offset - known) <= self._lease_seconds / 4:
            return False
        log.warn("The database's clock jumped; leases are not taken back for a moment.",
                 seconds=round(offset - known, 3))  # fmt: skip
        self.jumps += 1
        self.reconnected()
        return True


def _give_back(connection: psycopg.Connection[Any], lost: Sequence[ExpiredLease]) -> Moved:
    """Give back what has not begun, and return it; a run that the database refuses alone is lost."""
    cursor = psycopg.RawCursor(connection)
    moved: Moved = []
    parts = RowBatches(lost)
    for part in parts:
        try:
            values = [one.id for one in part], [one.epoch for one in part]
            moved += cursor.execute(GIVE_BACK.encode(), values).fetchall()
        except psycopg.Error as refused:
            if not parts.halve(part, refused):
                cursor.execute(STRIKE_OFF.encode(), (part[0].id, part[0].epoch))
    return moved


def _take_back(connection: psycopg.Connection[Any], lost: Sequence[ExpiredLease], why: str) -> Moved:
    ids, epochs, types, delays, most = map(list, zip(*lost, strict=True))
    groups = [lost_group(name).id for name in types]
    values = (ids, epochs, delays, most, why, groups, LOST_TEMPLATE)
    return psycopg.RawCursor(connection).execute(REAP.encode(), values).fetchall()


def _bury_with_attempt(connection: psycopg.Connection[Any], lost: ExpiredLease, why: str) -> Moved:
    return _take_back(connection, [lost._replace(most_attempts=1)], why)


def _bury_where_it_stands(connection: psycopg.Connection[Any], lost: ExpiredLease, why: str) -> Moved:
    return psycopg.RawCursor(connection).execute(END_REFUSED.encode(), (lost.id, lost.epoch, why)).fetchall()
