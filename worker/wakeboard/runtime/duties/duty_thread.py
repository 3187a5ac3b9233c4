"""A thread with a connection on which a worker's duties run one after the other.

Each duty is a function of a connection, which runs at its own interval. One that fails is logged, tried again
and never stops the others. When each last succeeded is written to ``loops``: so it can be seen when a duty
has died while its process looks healthy.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic

import psycopg

from wakeboard.config.service_thread import FailureLog, ServiceThread
from wakeboard.core.text.sanitize import describe_error, first_line
from wakeboard.database.db import MISSING_TABLE_ERRORS, DatabaseError, connect
from wakeboard.database.migrations import current_revision
from wakeboard.database.outage_log import MissingTables, OutageLog, WarningThrottle
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.duties.notify_check import NotifyTimeoutError
from wakeboard.runtime.loop.channel import DEAD_CONNECTION_STATES, DEADLINE_SECONDS

RECONNECT_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 5.0
# What a duty may fail by while nothing is wrong with the program.
EXPECTED = (DatabaseError, psycopg.Error, NotifyTimeoutError)
# What a step returns for the system page: numbers or short texts by name.
Numbers = Mapping[str, object]
Step = Callable[[psycopg.Connection], Numbers | None]


@dataclass(slots=True)
class Duty:
    """One duty: ``step`` runs every ``interval_seconds``.

    A duty that is ``on_demand`` runs once at first, and then after ``run_soon``; ``interval_seconds`` is how
    often somebody checks whether it is due, and calls ``mark_healthy`` when it is not.
    """

    name: str
    interval_seconds: float
    step: Step
    on_demand: bool = False
    due_at: float = 0.0
    succeeded_at: float = field(default_factory=monotonic)
    error: str | None = None
    numbers: Numbers | None = None

    def beat(self) -> Beat:
        """Return the duty's state."""
        ago = monotonic() - self.succeeded_at
        return Beat(self.name, self.interval_seconds, ago, self.error, self.numbers)


class DutyThread:
    """The thread of several duties. ``rounds`` counts how often it has run all that were due."""

    def __init__(
        self,
        url: str,
        duties: list[Duty],
        *,
        name: str = "duties",
        missing_tables: MissingTables | None = None,
        on_reconnect: Callable[[], None] = lambda: None,
        on_first_round: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            url: The database's libpq URL.
            duties: What runs on the thread, in this order.
            name: The name of the thread and of its connection.
            missing_tables: The tables that the process misses, shared by its threads.
            on_reconnect: Called after each new connection but the first.
            on_first_round: Called when each duty has run once.
        """
        self._url = url
        self.name = name
        self._duties = duties
        self._on_reconnect = on_reconnect
        self._on_first_round = on_first_round
        self._connection: psycopg.Connection | None = None
        self._was_connected = False
        self._outage_log = OutageLog(name)
        self._revision: str | None = None
        self.missing_tables = missing_tables or MissingTables()
        self.is_without_tables = False
        self._stopping = threading.Event()
        self._wakeup = threading.Event()
        self._warnings = WarningThrottle()
        self._end_reason: str | None = None
        self._failures = {
            duty.name: FailureLog(f"The duty {duty.name!r} failed and will be tried again") for duty in duties
        }
        self._thread = ServiceThread(name, self._run, stopping=self._stopping, on_failure=self._note_end)
        self.rounds = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """End the thread after the step under way; wait for that at most ``timeout_seconds``."""
        self._stopping.set()
        self._wakeup.set()
        self._thread.join(timeout_seconds)

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended though nobody stopped it."""
        return self._thread.is_lost(math.inf)

    def run_soon(self, name: str, *, in_seconds: float = 0.0) -> None:
        """Run a duty in ``in_seconds`` at the latest, as soon as the thread is free then."""
        for duty in self._duties:
            if duty.name == name:
                duty.due_at = min(duty.due_at, monotonic() + in_seconds)
        self._wakeup.set()

    def mark_healthy(self, name: str) -> None:
        """Note that a duty has nothing to do."""
        for duty in self._duties:
            if duty.name == name:
                duty.succeeded_at, duty.error = monotonic(), None
                duty.numbers = dict.fromkeys(duty.numbers, 0) if duty.numbers else None
                self.missing_tables.remove(name)

    def beats(self) -> list[Beat]:
        """Return the state of each duty. What ended the thread is in the first one, once."""
        beats = [duty.beat() for duty in self._duties]
        if self._end_reason is not None:
            beats[0] = replace(beats[0], error=f"The thread {self.name!r} ended: {self._end_reason}")
            self._end_reason = None
        return beats

    def _run(self) -> None:
        try:
            self._run_rounds()
        finally:
            # A statement that was cut short leaves a connection that nobody can use.
            if self._connection is not None:
                self._connection.close()

    def _note_end(self, failure: BaseException) -> None:
        self._end_reason = describe_error(failure)

    def _run_rounds(self) -> None:
        while not self._stopping.is_set():
            try:
                self._connect()
            except (DatabaseError, psycopg.Error) as failure:
                self._outage_log.report_failure(str(failure).strip())
                self._stopping.wait(RECONNECT_SECONDS)
                continue
            if not (self._has_tables() and self._run_due()):
                self._stopping.wait(RECONNECT_SECONDS)
                continue
            self._thread.mark_recovered()
            self.rounds += 1
            if self.rounds == 1:
                self._on_first_round()
            pause = min(duty.due_at for duty in self._duties) - monotonic()
            self._wakeup.wait(max(0.01, min(pause, LONGEST_PAUSE_SECONDS)))
            self._wakeup.clear()

    def _connect(self) -> None:
        if self._connection is not None and not self._connection.closed:
            return
        self._connection = connect(self._url, name=f"wakeboard {self.name}", answer_seconds=DEADLINE_SECONDS)
        self._outage_log.report_recovery()
        if self._was_connected:
            self._on_reconnect()
        self._was_connected = True

    def _has_tables(self) -> bool:
        """Whether the database has tables. It is asked only after one was found missing.

        The question leaves no error in the server's log. After a migration the duties that failed run at
        once.
        """
        if not self.missing_tables.names:
            # Another thread may have seen that they were created.
            self.is_without_tables = False
            return True
        assert self._connection is not None
        try:
            revision = current_revision(self._connection)
        except psycopg.Error:
            # The duties meet the same error, and log it.
            return True
        if revision != self._revision:
            self._revision = revision
            for duty in self._duties:
                if duty.name in self.missing_tables.names:
                    duty.due_at = 0.0
        self.is_without_tables = revision is None
        if self.is_without_tables:
            self.missing_tables.warn()
        return not self.is_without_tables

    def _run_due(self) -> bool:
        """Run the duties that are due; return False when the database has no tables."""
        assert self._connection is not None
        for duty in self._duties:
            if monotonic() < duty.due_at or self._stopping.is_set():
                continue
            duty.due_at = math.inf if duty.on_demand else monotonic() + duty.interval_seconds
            try:
                numbers = duty.step(self._connection)
                duty.numbers = numbers if numbers else duty.numbers
                duty.succeeded_at, duty.error = monotonic(), None
                self.missing_tables.remove(duty.name)
            except Exception as failure:
                duty.error = str(failure).strip()[:500] or type(failure).__name__
                if isinstance(failure, MISSING_TABLE_ERRORS):
                    self.missing_tables.add(duty.name, failure)
                    if not self._has_tables():
                        return False
                    continue
                self._log_failure(duty, failure)
                if _is_connection_lost(failure):
                    self._connection.close()
                    return True
        return True

    def _log_failure(self, duty: Duty, failure: Exception) -> None:
        """Log that a duty failed, the same failure of the same duty once a minute."""
        if not isinstance(failure, EXPECTED):
            self._failures[duty.name].add(failure)
            return
        sentence, fields = "A duty failed and will be tried again.", {"duty": duty.name, "error": duty.error}
        if _is_connection_lost(failure):
            self._outage_log.report_failure(sentence, **fields)
        else:
            self._warnings.warn((duty.name, first_line(failure)), sentence, **fields)


def _is_connection_lost(failure: Exception) -> bool:
    """Whether the connection of ``failure`` can never work again.

    A server that is gone gives no SQLSTATE. A lock timeout leaves a connection that works.
    """
    if isinstance(failure, psycopg.OperationalError) and failure.sqlstate is None:
        return True
    return isinstance(failure, psycopg.Error) and (failure.sqlstate or "").startswith(DEAD_CONNECTION_STATES)
