"""Taking back runs whose lease ended: their worker died, hung or was cut off.

Any worker may decide for any type: the policies are in the database. Two statements: read what ended,
then move it, guarded by the epoch as read.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple

import psycopg

from worker import log
from worker.backoff import Backoff
from worker.db import REFUSALS
from worker.fingerprint import LOST_TEMPLATE, lost_group
from worker.transitions.engine.reaping import END_REFUSED, ENDED_LEASES, REAP

BATCH = 500
WHY = LOST_TEMPLATE


class Lost(NamedTuple):
    """A run whose lease has ended, as it was read, and how it is taken back; ``delay`` is in seconds."""

    id: int
    epoch: int
    delay: float
    most_attempts: int
    error_group: int


class Reaper:
    """The reaping duty of one process. Durations are in seconds."""

    def __init__(self, *, lease_seconds: float, heartbeat_seconds: float, waits_first: bool) -> None:
        """``waits_first``: give other workers time to renew before the first look (a tick has no time)."""
        self._lease_seconds = lease_seconds
        self._patience = heartbeat_seconds + 5.0
        self._not_before = monotonic() + (self._patience if waits_first else 0.0)
        self._offset: float | None = None

    def reconnected(self) -> None:
        """Wait a heartbeat and more: after an outage all leases look ended, and most will be renewed."""
        self._not_before = monotonic() + self._patience

    def step(self, connection: psycopg.Connection[Any]) -> dict[str, int]:
        """Take back a batch of ended leases; return how many went where. Needed only when some have ended."""
        if self._clock_has_jumped(connection) or monotonic() < self._not_before:
            return {}
        if self._server_is_new(connection):
            return {}
        rows = psycopg.RawCursor(connection).execute(ENDED_LEASES.encode(), (BATCH,)).fetchall()
        if not rows:
            return {}
        delays = [Backoff.parse_or_default(row[6]).delay_seconds(row[4] + 1) for row in rows]
        lost = [
            Lost(row[0], row[1], delay, row[5], lost_group(row[3]).id)
            for row, delay in zip(rows, delays, strict=True)
        ]
        moved = _reap(connection, lost)
        counts: dict[str, int] = {}
        for run_id, status, next_run_at, job_type, attempt, worker_id in moved:
            counts[status] = counts.get(status, 0) + 1
            log.move(
                "reap", run_id=run_id, job_type=job_type, attempt=attempt, worker_id=worker_id,
                error_code="lease_lost", status=status, next_run_at=next_run_at,
            )  # fmt: skip
        return counts

    def _server_is_new(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the server started a moment ago: the leases that ended while it was down may be renewed."""
        row = connection.execute(
            "SELECT pg_postmaster_start_time() > now() - make_interval(secs => %s)", (self._patience,)
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
        known, self._offset = self._offset, offset
        if known is None or abs(offset - known) <= self._lease_seconds / 4:
            return False
        log.warn("The database's clock jumped; leases are not taken back for a moment.",
                 seconds=round(offset - known, 3))  # fmt: skip
        self.reconnected()
        return True


def _reap(connection: psycopg.Connection[Any], lost: Sequence[Lost]) -> list[tuple[Any, ...]]:
    """Take the runs back and return them; one that breaks a rule of its table is dead where it stands.

    Plain SQL may have written such a row: it keeps nobody else's run from being taken back.
    """
    ids, epochs, delays, most, groups = zip(*lost, strict=True)
    values = (list(ids), list(epochs), list(delays), list(most), WHY, list(groups), LOST_TEMPLATE)
    cursor = psycopg.RawCursor(connection)
    try:
        return cursor.execute(REAP.encode(), values).fetchall()
    except REFUSALS as refused:
        if len(lost) > 1:
            return [moved for one in lost for moved in _reap(connection, [one])]
        why = (refused.diag.message_primary or "it is refused")[:200]
        log.warn("A lost run breaks a rule of its table, and is dead.", run_id=ids[0], error=why)
        return cursor.execute(END_REFUSED.encode(), (ids[0], epochs[0], f"{WHY}; {why}")).fetchall()
