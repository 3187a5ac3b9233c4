"""Keeping leases alive: a thread and a connection of its own, which depend on no user code and no finish.

Every heartbeat it renews what is held, and every poll, while something is held, it looks whether a cancel was
asked for. It answers per run: kept, busy (somebody holds the row for a moment: tried again at once), gone
(told to the loop).
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import psycopg

from wakeboard.config.service_thread import ServiceThread
from wakeboard.core.text.sanitize import described
from wakeboard.database.db import PLANNING, DatabaseError, configure, connect, is_pooled
from wakeboard.database.outage_log import OutageLog, RepeatedWarnings
from wakeboard.database.poison_rows import Parts, reason
from wakeboard.queue.engine.fence import CANCELS, RENEW, STANDING
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.duties.watchdog import Watchdog
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.in_flight import RunInFlight, RunsInFlight

BUSY_TRIES = 3
# Between two looks, however often somebody says that there is something to see.
LEAST_SECONDS = 0.01
STATEMENT_SECONDS = 5.0
# Between two proofs that the connection of a worker at rest still answers; one that was closed says so.
PROOF_SECONDS, WORD_SECONDS = 30.0, 0.1
UNRENEWED = "The leases could not be renewed; trying again."


@dataclass(frozen=True, slots=True)
class LeaseTaken:
    """Somebody took the run over, or its row is gone."""

    run_id: int
    lease_epoch: int


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """A person asked the run to stop."""

    run_id: int
    lease_epoch: int


Told = LeaseTaken | CancelAsked


class LoopHangs(Exception):
    """The loop that watches the runs has not moved for so long that they have to be left to other workers."""


class LeaseKeeper:
    """The renewing thread. ``tell`` must be safe to call from it.

    It renews only while the loop moves: ``loop_silent_seconds`` tells how long ago the loop last did, and
    beyond ``patience_seconds`` (a lease) nothing is renewed. A loop that hangs records no result, sees no
    timeout and stops no run, so a lease that went on for ever would keep its runs from everybody.
    """

    def __init__(
        self,
        url: str,
        worker_id: str,
        in_flight: RunsInFlight,
        *,
        heartbeat_seconds: float,
        poll_seconds: float,
        patience_seconds: float,
        loop_silent_seconds: Callable[[], float],
        progress: Callable[[RunInFlight], tuple[int, int] | None],
        tell: Callable[[Told], None],
    ) -> None:
        self._url = url
        self._worker_id = worker_id
        self._in_flight = in_flight
        self._heartbeat_seconds = heartbeat_seconds
        self._poll_seconds = min(poll_seconds, heartbeat_seconds)
        self._patience_seconds = patience_seconds
        self._loop_silent_seconds = loop_silent_seconds
        self._progress = progress
        self._tell = tell
        self._stopping = threading.Event()
        self._is_asked = threading.Event()
        self._thread = ServiceThread("lease", self._keep, stopping=self._stopping, failed=self._failed)
        self._connection: psycopg.Connection[Any] | None = None
        self._succeeded_at = self._proven_at = monotonic()
        self._error: str | None = None
        self._ended_by: str | None = None
        self._absence = OutageLog("lease")
        self._warnings = RepeatedWarnings()
        self.watchdog = Watchdog(2 * STATEMENT_SECONDS)

    def beat(self) -> Beat:
        """Return how the renewing stands; what ended the thread is told once, though it works again."""
        ended_by, self._ended_by = self._ended_by, None
        return Beat("renew", self._poll_seconds, monotonic() - self._succeeded_at, self._error or ended_by)

    def start(self) -> None:
        """Start renewing."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """Stop renewing; the last child has gone."""
        self._stopping.set()
        self._is_asked.set()
        self._thread.join(timeout_seconds)

    @property
    def is_failing(self) -> bool:
        """Whether the thread has ended by an error and has not worked since: nobody renews leases."""
        return self._thread.failing_seconds > 0

    @property
    def is_lost(self) -> bool:
        """Whether the thread has gone, or fails for a lease by errors that no wait mends."""
        return self._thread.is_lost(self._patience_seconds)

    def look(self) -> None:
        """Look for cancels at once: somebody says that one was asked for. Safe from any thread."""
        self._is_asked.set()

    def _rest(self) -> None:
        """Wait for the next poll, or for a word that there is something to see, which anybody may send."""
        self._stopping.wait(LEAST_SECONDS)
        self._is_asked.wait(self._poll_seconds)
        self._is_asked.clear()

    def _keep(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step_or_tell()
                self._rest()
        finally:
            self._disconnect()

    def _step_or_tell(self) -> None:
        """Make one step; a database that is away and a loop that hangs are told, and waited for."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            with self.watchdog.over(self._connection):
                self.step(self._connection)
        except (DatabaseError, psycopg.Error) as failure:
            self._error = str(failure).strip()[:500]
            self._absence.lost(UNRENEWED, error=self._error)
            self._disconnect()
        except LoopHangs as failure:
            self._error = str(failure)
            self._warnings.warn(LoopHangs, UNRENEWED, error=self._error)
            self._disconnect()
        else:
            self._succeeded_at, self._error = monotonic(), None
            self._absence.back()
        # The thread works: what it waits for is no error of its own.
        self._thread.recovered()

    def _failed(self, failure: BaseException) -> None:
        self._ended_by = described(failure)

    def _connect(self) -> psycopg.Connection[Any]:
        connection = connect(
            self._url,
            name="wakeboard lease",
            statement_timeout_seconds=STATEMENT_SECONDS,
            lock_timeout_seconds=1,
        )
        # One plan per heartbeat costs nothing, and none is made for a table that has grown since.
        if not is_pooled(connection):
            configure(connection, PLANNING | {"plan_cache_mode": "force_custom_plan"})
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def step(self, connection: psycopg.Connection[Any]) -> None:
        """Renew what is due for renewal, then look for cancels among the rest.

        Raises LoopHangs, or psycopg.Error.
        """
        now = boottime_ns()
        runs = self._in_flight.all()
        if not runs:
            # A connection that broke while nothing ran must not be found out by the first heartbeat.
            if _has_word(connection) or monotonic() >= self._proven_at + PROOF_SECONDS:
                connection.execute("SELECT 1")
                self._proven_at = monotonic()
            return
        if (silent := self._loop_silent_seconds()) > self._patience_seconds:
            raise LoopHangs(
                f"the worker's loop has not moved for {silent:.0f} s: its runs are left to others"
            )
        limit = (self._heartbeat_seconds - self._poll_seconds / 2) * 1e9
        due = [run for run in runs if now - run.leased_ns >= limit]
        for _ in range(BUSY_TRIES):
            if not due:
                break
            due = self._renew(connection, due)
        self._look_for_cancels(connection, [run.run_id for run in runs])
        self._proven_at = monotonic()

    def _renew(self, connection: psycopg.Connection[Any], due: Sequence[RunInFlight]) -> list[RunInFlight]:
        """Renew ``due``; return those whose row somebody else holds for a moment.

        A lease that the database refuses to renew is left to end; all others are renewed.
        """
        busy: list[RunInFlight] = []
        parts = Parts(due)
        for part in parts:
            try:
                busy += self._renew_part(connection, part)
            except psycopg.Error as refused:
                if not parts.halve(part, refused):
                    (run,) = part
                    self._warnings.warn(
                        run.run_id,
                        "The database refuses to renew a run's lease; it is stopped before that ends.",
                        run_id=run.run_id, job_type=run.assignment.job_type, error=reason(refused),
                    )  # fmt: skip
        return busy

    def _renew_part(
        self, connection: psycopg.Connection[Any], due: Sequence[RunInFlight]
    ) -> list[RunInFlight]:
        """Renew ``due`` by one statement; return those whose row somebody else holds for a moment."""
        sent_ns = boottime_ns()
        progress = [self._progress(run) for run in due]
        values = (
            self._worker_id,
            [run.run_id for run in due],
            [run.lease_epoch for run in due],
            [run.lease_seconds for run in due],
            [None if told is None else told[0] for told in progress],
            [None if told is None else told[1] for told in progress],
        )
        rows = psycopg.RawCursor(connection).execute(RENEW.encode(), values).fetchall()
        kept = {row[:2] for row in rows}
        missing = []
        for run in due:
            if run.assignment[:2] in kept:
                run.leased_ns = sent_ns
            else:
                missing.append(run)
        return self._settle(connection, missing, sent_ns)

    def _settle(
        self, connection: psycopg.Connection[Any], missing: Sequence[RunInFlight], sent_ns: int
    ) -> list[RunInFlight]:
        """Tell the loop which of ``missing`` are gone; return those that are merely busy.

        A row that our own attempt has ended (by ``transaction()``) needs no lease: code after it may go on.
        """
        if not missing:
            return []
        ids = [run.run_id for run in missing]
        rows = psycopg.RawCursor(connection).execute(STANDING.encode(), (ids,)).fetchall()
        standing = {row[0]: row for row in rows}
        busy = []
        for run in missing:
            row = standing.get(run.run_id)
            if row is None or row[1] != run.lease_epoch or row[2] not in (None, self._worker_id):
                self._tell(LeaseTaken(run.run_id, run.lease_epoch))
            elif row[3] == "running":
                busy.append(run)
            else:
                run.leased_ns = sent_ns
        return busy

    def _look_for_cancels(self, connection: psycopg.Connection[Any], ids: Sequence[int]) -> None:
        if not ids:
            return
        rows = psycopg.RawCursor(connection).execute(CANCELS.encode(), (list(ids),)).fetchall()
        for run_id, epoch in rows:
            self._tell(CancelAsked(run_id, epoch))


def _has_word(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server sends something unasked: that it ends the connection."""
    door = select.poll()
    door.register(connection.fileno(), select.POLLIN)
    return bool(door.poll(WORD_SECONDS * 1000))
