"""The lease keeper: a thread with its own connection that renews leases, whatever handlers and results do.

Every heartbeat it renews the leases of the runs in flight, and at every poll it looks for cancel requests
while any run is in flight. A row that somebody else has locked is tried again at once; a lost lease is posted
to the loop.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence
from time import monotonic

import psycopg

from wakeboard.config.service_thread import ServiceThread
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.core.text.sanitize import describe_error
from wakeboard.database.db import PLANNING, DatabaseError, configure, connect, is_pooled
from wakeboard.database.outage_log import OutageLog, WarningThrottle
from wakeboard.database.poison_rows import RowBatches, refusal_reason
from wakeboard.queue.engine.fence import CANCELS, RENEW, RUN_STATES
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.loop.in_flight import RunInFlight, RunsInFlight
from wakeboard.runtime.loop.inbox import CancelRequest, LeaseLoss, Post
from wakeboard.runtime.worker import Worker

BUSY_TRIES = 3
# The shortest pause between two steps, however often the loop asks for one.
LEAST_SECONDS = 0.01
STATEMENT_SECONDS = 5.0
# How often the connection of a worker without runs is tested, and how long its socket is watched for the
# server's word that it was closed.
TEST_SECONDS, SOCKET_SECONDS = 30.0, 0.1
UNRENEWED = "The leases could not be renewed; trying again."


class StalledLoopError(Exception):
    """The loop that watches the runs has not moved for so long that other workers must take them."""


class LeaseKeeper:
    """The thread that renews leases.

    It renews them only while the loop moves. A loop that hangs records no result, sees no timeout and stops
    no run, so a lease that was renewed for ever would keep its runs from all other workers.
    """

    def __init__(
        self,
        url: str,
        worker: Worker,
        in_flight: RunsInFlight,
        *,
        loop_silent_seconds: Callable[[], float],
        progress: Callable[[RunInFlight], tuple[int, int] | None],
        post: Post,
    ) -> None:
        """
        Args:
            url: The database's libpq URL.
            worker: The worker whose leases are renewed.
            in_flight: Its runs.
            loop_silent_seconds: Returns how long ago the loop last moved. Beyond a lease, none is renewed.
            progress: Returns the progress of a run (done, total), or None.
            post: Called from this thread with messages for the loop.
        """
        self._url = url
        self._worker = worker
        self._in_flight = in_flight
        self._poll_seconds = min(worker.poll_seconds, worker.heartbeat_seconds)
        self._loop_silent_seconds = loop_silent_seconds
        self._progress = progress
        self._post = post
        self._stopping = threading.Event()
        self._wakeup = threading.Event()
        self._thread = ServiceThread("lease", self._run, stopping=self._stopping, on_failure=self._note_end)
        self._connection: psycopg.Connection | None = None
        self._succeeded_at = self._tested_at = monotonic()
        self._error: str | None = None
        self._end_reason: str | None = None
        self._outage_log = OutageLog("lease")
        self._warnings = WarningThrottle()

    def beat(self) -> Beat:
        """Return the keeper's state. What ended the thread is in it once, though the thread works again."""
        end_reason, self._end_reason = self._end_reason, None
        return Beat("renew", self._poll_seconds, monotonic() - self._succeeded_at, self._error or end_reason)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """End the thread, after the last child has gone; wait for that at most ``timeout_seconds``."""
        self._stopping.set()
        self._wakeup.set()
        self._thread.join(timeout_seconds)

    @property
    def is_failing(self) -> bool:
        """Whether the thread has ended by an error and has not worked since."""
        return self._thread.failing_seconds > 0

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended, or has failed by unexpected errors for a whole lease."""
        return self._thread.is_lost(self._worker.lease_seconds)

    def wake(self) -> None:
        """Look for cancel requests at once. Safe from any thread."""
        self._wakeup.set()

    def _pause(self) -> None:
        """Wait for the next poll, or for ``wake``, which anybody may cause by a notification."""
        self._stopping.wait(LEAST_SECONDS)
        self._wakeup.wait(self._poll_seconds)
        self._wakeup.clear()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step_or_log()
                self._pause()
        finally:
            self._disconnect()

    def _step_or_log(self) -> None:
        """Make one step; log that the database is away or that the loop hangs."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            self.step(self._connection)
        except (DatabaseError, psycopg.Error) as failure:
            self._error = str(failure).strip()[:500]
            self._outage_log.report_failure(UNRENEWED, error=self._error)
            self._disconnect()
        except StalledLoopError as failure:
            self._error = str(failure)
            self._warnings.warn(StalledLoopError, UNRENEWED, error=self._error)
            self._disconnect()
        else:
            self._succeeded_at, self._error = monotonic(), None
            self._outage_log.report_recovery()
        # The thread itself works, whatever it waits for.
        self._thread.mark_recovered()

    def _note_end(self, failure: BaseException) -> None:
        self._end_reason = describe_error(failure)

    def _connect(self) -> psycopg.Connection:
        connection = connect(
            self._url,
            name="wakeboard lease",
            statement_timeout_seconds=STATEMENT_SECONDS,
            lock_timeout_seconds=1,
            answer_seconds=2 * STATEMENT_SECONDS,
        )
        # One plan a heartbeat costs nothing, and a kept plan would be wrong for a table that has grown.
        if not is_pooled(connection):
            configure(connection, PLANNING | {"plan_cache_mode": "force_custom_plan"})
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def step(self, connection: psycopg.Connection) -> None:
        """Renew the leases that are due, then look for cancel requests.

        Raises StalledLoopError or psycopg.Error.
        """
        now = boottime_ns()
        runs = self._in_flight.all()
        if not runs:
            # A connection that broke while nothing ran must be found before the first heartbeat needs it.
            if _has_message(connection) or monotonic() >= self._tested_at + TEST_SECONDS:
                connection.execute("SELECT 1")
                self._tested_at = monotonic()
            return
        if (silent := self._loop_silent_seconds()) > self._worker.lease_seconds:
            raise StalledLoopError(
                f"the worker's loop has not moved for {silent:.0f} s: its runs are left to others"
            )
        limit = (self._worker.heartbeat_seconds - self._poll_seconds / 2) * 1e9
        due = [run for run in runs if now - run.leased_ns >= limit]
        for _ in range(BUSY_TRIES):
            if not due:
                break
            due = self._renew(connection, due)
        self._post_cancels(connection, [run.run_id for run in runs])
        self._tested_at = monotonic()

    def _renew(self, connection: psycopg.Connection, due: Sequence[RunInFlight]) -> list[RunInFlight]:
        """Renew the leases of ``due``; return the runs whose row is locked.

        A lease that the database refuses to renew expires; all others are renewed.
        """
        busy: list[RunInFlight] = []
        parts = RowBatches(due)
        for part in parts:
            try:
                busy += self._renew_part(connection, part)
            except psycopg.Error as refused:
                if not parts.halve(part, refused):
                    run = part[0]
                    self._warnings.warn(
                        run.run_id,
                        "The database refuses to renew a run's lease; it is stopped before that ends.",
                        run_id=run.run_id, job_type=run.assignment.job_type,
                        error=refusal_reason(refused),
                    )  # fmt: skip
        return busy

    def _renew_part(self, connection: psycopg.Connection, due: Sequence[RunInFlight]) -> list[RunInFlight]:
        """Renew the leases of ``due`` by one statement; return the runs whose row is locked."""
        sent_ns = boottime_ns()
        progress = [self._progress(run) for run in due]
        values = (
            self._worker.id,
            [run.run_id for run in due],
            [run.lease_epoch for run in due],
            [run.lease_seconds for run in due],
            [None if one is None else one[0] for one in progress],
            [None if one is None else one[1] for one in progress],
        )
        rows = psycopg.RawCursor(connection).execute(RENEW.encode(), values).fetchall()
        renewed = {row[:2] for row in rows}
        missing = []
        for run in due:
            if run.assignment[:2] in renewed:
                run.leased_ns = sent_ns
            else:
                missing.append(run)
        return self._check_missing(connection, missing, sent_ns)

    def _check_missing(
        self, connection: psycopg.Connection, missing: Sequence[RunInFlight], sent_ns: int
    ) -> list[RunInFlight]:
        """Post which leases of ``missing`` are lost; return the runs whose row is merely locked.

        A run whose own attempt has written its end, by ``transaction()``, needs no lease: its code may go on.
        """
        if not missing:
            return []
        ids = [run.run_id for run in missing]
        rows = psycopg.RawCursor(connection).execute(RUN_STATES.encode(), (ids,)).fetchall()
        standing = {row[0]: row for row in rows}
        busy = []
        for run in missing:
            row = standing.get(run.run_id)
            if row is None or row[1] != run.lease_epoch or row[2] not in (None, self._worker.id):
                self._post(LeaseLoss(run.run_id, run.lease_epoch))
            elif row[3] == "running":
                busy.append(run)
            else:
                run.leased_ns = sent_ns
        return busy

    def _post_cancels(self, connection: psycopg.Connection, ids: Sequence[int]) -> None:
        if not ids:
            return
        rows = psycopg.RawCursor(connection).execute(CANCELS.encode(), (list(ids),)).fetchall()
        for run_id, epoch in rows:
            self._post(CancelRequest(run_id, epoch))


def _has_message(connection: psycopg.Connection) -> bool:
    """Whether the server has sent a message by itself: that it closes the connection."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(SOCKET_SECONDS * 1000))
