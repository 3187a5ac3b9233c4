"""The reaper: takes back runs whose lease has expired, because their worker died, hung or was cut off.

Any worker may decide for any type: the policies are in the database. It reads the expired leases, then moves
their runs, guarded by the epochs as read. A run that is known not to have begun is given back at no cost; the
attempt of any other is lost.

A batch that the database refuses for one of its rows (by a rule of its owner, or one that plain SQL has
broken) is taken back in halves, down to that row. A run that may not be tried again is dead, with the
database's sentence. Where that is refused too, it stays as it is, and this process skips it for a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from time import monotonic
from typing import NamedTuple

import psycopg
from psycopg.rows import args_row

from wakeboard.config import log
from wakeboard.core.errors.error_groups import LOST_TEMPLATE, lost_group
from wakeboard.core.retry import Backoff
from wakeboard.core.time.clock_skew import is_since
from wakeboard.database.outage_log import WarningThrottle
from wakeboard.database.poison_rows import RowBatches, SkippedRows, is_refusal, refusal_reason
from wakeboard.queue.engine.reaping import END_REFUSED, ENDED_LEASES, GIVE_BACK, REAP
from wakeboard.queue.engine.unbegun import STRIKE_OFF

BATCH = 500


class ExpiredLease(NamedTuple):
    """A run whose lease has expired, with the policy of its type: a row of ENDED_LEASES."""

    id: int
    epoch: int
    worker_id: str
    job_type: str
    failures: int
    max_attempts: int
    backoff: str

    @property
    def delay_seconds(self) -> float:
        """How long the run waits before its next attempt."""
        return Backoff.parse_or_default(self.backoff).delay_seconds(self.failures + 1)


class ReapedRun(NamedTuple):
    """A run that was taken back, as the statements return it."""

    id: int
    status: str
    next_run_at: str | None
    job_type: str
    attempt: int
    worker_id: str | None


class Reaper:
    """The reaper of one worker process.

    ``has_more``: whether the last step took a full batch. ``jumps``: how often the database's clock was seen
    to jump.
    """

    def __init__(self, *, lease_seconds: float, heartbeat_seconds: float, waits_first: bool) -> None:
        """``waits_first``: give other workers time to renew before the first step; a tick has no time."""
        self._lease_seconds = lease_seconds
        self._patience_seconds = heartbeat_seconds + 5.0
        self._not_before = monotonic() + (self._patience_seconds if waits_first else 0.0)
        # The heartbeat's thread and the reaper's both compare the clocks.
        self._clock_lock = Lock()
        self._clock_offset: float | None = None
        self.has_more = False
        self.jumps = 0
        self._skipped = SkippedRows()
        self._warnings = WarningThrottle()

    def reconnected(self) -> None:
        """Wait a heartbeat and more. After an outage all leases look expired, and most will be renewed."""
        self._not_before = monotonic() + self._patience_seconds

    def step(self, connection: psycopg.Connection) -> dict[str, int]:
        """Take back a batch of runs; return how many there are by their new status."""
        self.has_more = False
        if self._reads_jump(connection) or monotonic() < self._not_before:
            return {}
        if self._is_server_new(connection):
            return {}
        cursor = psycopg.RawCursor(connection, row_factory=args_row(ExpiredLease))
        expired = cursor.execute(ENDED_LEASES.encode(), (BATCH, self._skipped.ids)).fetchall()
        if not expired:
            return {}
        given_back = _give_back(connection, expired)
        given_back_ids = {run.id for run in given_back}
        lost = self._take_back_all(connection, [one for one in expired if one.id not in given_back_ids])
        self.has_more = len(expired) == BATCH and bool(given_back or lost)
        counts: dict[str, int] = {}
        for run in given_back + lost:
            counts[run.status] = counts.get(run.status, 0) + 1
            is_given_back = run.id in given_back_ids
            log.move(
                "release" if is_given_back else "reap", run_id=run.id, job_type=run.job_type,
                attempt=run.attempt, worker_id=run.worker_id,
                error_code=None if is_given_back else "lease_lost", status=run.status,
                next_run_at=run.next_run_at,
            )  # fmt: skip
        return counts

    def _take_back_all(
        self, connection: psycopg.Connection, expired: Sequence[ExpiredLease]
    ) -> list[ReapedRun]:
        """Take the runs back and return them; one that the database refuses alone is dead, if it may be."""
        reaped: list[ReapedRun] = []
        parts = RowBatches(expired)
        for part in parts:
            try:
                reaped += _take_back(connection, part, LOST_TEMPLATE)
            except psycopg.Error as refused:
                if not parts.halve(part, refused):
                    reaped += self._end_refused(connection, part[0], refusal_reason(refused))
        return reaped

    def _end_refused(
        self, connection: psycopg.Connection, expired: ExpiredLease, sentence: str
    ) -> list[ReapedRun]:
        """Let a run be dead that may not be tried again: with its lost attempt, or else the row alone."""
        self._warnings.warn(
            expired.id, "The database refuses that a lost run is tried again; it is dead if that may be.",
            run_id=expired.id, job_type=expired.job_type, error=sentence,
        )  # fmt: skip
        error = f"{LOST_TEMPLATE}; {sentence}"
        try:
            return _take_back(connection, [expired._replace(max_attempts=1)], error)
        except psycopg.Error as refused:
            if not is_refusal(refused):
                raise
        try:
            values = expired.id, expired.epoch, error
            return _reaping_cursor(connection).execute(END_REFUSED.encode(), values).fetchall()
        except psycopg.Error as refused:
            if not is_refusal(refused):
                raise
        self._skipped.add(expired.id)
        return []

    def _is_server_new(self, connection: psycopg.Connection) -> bool:
        """Whether the server started a moment ago: leases that expired while it was down may be renewed."""
        row = connection.execute(
            f"SELECT {is_since('pg_postmaster_start_time()', '%s')}".encode(), (self._patience_seconds,)
        ).fetchone()
        return bool(row and row[0])

    def _reads_jump(self, connection: psycopg.Connection) -> bool:
        """Read the database's clock; return whether it jumped."""
        before = monotonic()
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        return self.clock_jumped(row[0] if row else 0.0, before, monotonic())

    def clock_jumped(self, clock: float, before: float, after: float) -> bool:
        """Return whether the database's clock jumped by a quarter of a lease: then leases look expired.

        To be called every few seconds. After a jump nothing is taken back for a while.

        Args:
            clock: The database's clock, in seconds.
            before: When it was asked (monotonic seconds).
            after: When it answered. An answer that took long says nothing: nobody knows when in that time
                the clock was read.
        """
        if after - before > self._lease_seconds / 4:
            return False
        offset = clock - (before + after) / 2
        with self._clock_lock:
            known, self._clock_offset = self._clock_offset, offset
        if known is None or abs(offset - known) <= self._lease_seconds / 4:
            return False
        log.warn("The database's clock jumped; leases are not taken back for a moment.",
                 seconds=round(offset - known, 3))  # fmt: skip
        self.jumps += 1
        self.reconnected()
        return True


def _reaping_cursor(connection: psycopg.Connection) -> psycopg.RawCursor[ReapedRun]:
    return psycopg.RawCursor(connection, row_factory=args_row(ReapedRun))


def _give_back(connection: psycopg.Connection, expired: Sequence[ExpiredLease]) -> list[ReapedRun]:
    """Give back the runs that have not begun, and return them; one that is refused alone counts as begun."""
    cursor = _reaping_cursor(connection)
    given_back: list[ReapedRun] = []
    parts = RowBatches(expired)
    for part in parts:
        try:
            values = [one.id for one in part], [one.epoch for one in part]
            given_back += cursor.execute(GIVE_BACK.encode(), values).fetchall()
        except psycopg.Error as refused:
            if not parts.halve(part, refused):
                cursor.execute(STRIKE_OFF.encode(), (part[0].id, part[0].epoch))
    return given_back


def _take_back(
    connection: psycopg.Connection, expired: Sequence[ExpiredLease], error: str
) -> list[ReapedRun]:
    """Take back runs whose attempt is lost, with ``error`` as its message."""
    values = (
        [one.id for one in expired],
        [one.epoch for one in expired],
        [one.delay_seconds for one in expired],
        [one.max_attempts for one in expired],
        error,
        [lost_group(one.job_type).id for one in expired],
        LOST_TEMPLATE,
    )
    return _reaping_cursor(connection).execute(REAP.encode(), values).fetchall()
