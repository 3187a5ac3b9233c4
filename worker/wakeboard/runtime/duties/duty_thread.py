"""The duties of a worker process that share a thread and a connection, one after the other.

Each duty is a function of a connection, run at its own interval. One that fails is logged, tried again
and never stops the others; when each last succeeded is written to ``loops``, so that a loop which died
while its process looks healthy can be seen.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import psycopg

from wakeboard.config.service_thread import FailureLog, ServiceThread
from wakeboard.core.text.sanitize import describe_error, first_line
from wakeboard.database.db import MISSING_TABLE_ERRORS, DatabaseError, connect
from wakeboard.database.migrations import current_revision
from wakeboard.database.outage_log import MissingTables, OutageLog, WarningThrottle
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.duties.notify_check import NotHeard
from wakeboard.runtime.loop.channel import DEADLINE_SECONDS, USELESS

RECONNECT_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 5.0
# What a duty may fail by while nothing is wrong with the program.
EXPECTED = (DatabaseError, psycopg.Error, NotHeard)
Connection = psycopg.Connection[Any]
Step = Callable[[Connection], Mapping[str, Any] | None]


@dataclass(slots=True)
class Duty:
    """One loop: ``step`` every ``interval_seconds``; what it returns are numbers for the system page.

    One ``on_demand`` runs at first and then when it is hurried; ``interval_seconds`` is how often somebody
    looks whether it is due, and says ``well`` when it is not.
    """

    name: str
    interval_seconds: float
    step: Step
    on_demand: bool = False
    due_at: float = 0.0
    succeeded_at: float = field(default_factory=monotonic)
    error: str | None = None
    numbers: Mapping[str, Any] | None = None

    def beat(self) -> Beat:
        """Return how this loop stands."""
        ago = monotonic() - self.succeeded_at
        return Beat(self.name, self.interval_seconds, ago, self.error, self.numbers)


class Duties:
    """The thread that runs them."""

    def __init__(
        self,
        url: str,
        duties: list[Duty],
        *,
        name: str = "duties",
        lack: MissingTables | None = None,
        reconnected: Callable[[], None] = lambda: None,
        came_round: Callable[[], None] = lambda: None,
    ) -> None:
        """``name``: of the thread and its connection; ``lack``: the tables that are missing, as other threads
        meet it; ``came_round`` is called when each duty has had its first turn."""
        self._url = url
        self.name = name
        self._duties = duties
        self._reconnected = reconnected
        self._came_round = came_round
        self._connection: Connection | None = None
        self._was_connected = False
        self._absence = OutageLog(name)
        self._revision: str | None = None
        self.lack = lack or MissingTables()
        self.is_without_tables = False
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._warnings = WarningThrottle()
        self._ended_by: str | None = None
        self._failures = {
            duty.name: FailureLog(f"The duty {duty.name!r} failed and will be tried again") for duty in duties
        }
        self._thread = ServiceThread(name, self._work, stopping=self._stopping, on_failure=self._failed)
        self.rounds = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """End the thread after the step under way, and wait so long for it."""
        self._stopping.set()
        self._hurry.set()
        self._thread.join(timeout_seconds)

    @property
    def is_gone(self) -> bool:
        """Whether the thread has ended, though nobody stopped it."""
        return self._thread.is_lost(math.inf)

    def hurry(self, name: str, *, in_seconds: float = 0.0) -> None:
        """Run one duty in ``in_seconds`` at the latest, as soon as the thread is free then."""
        for duty in self._duties:
            if duty.name == name:
                duty.due_at = min(duty.due_at, monotonic() + in_seconds)
        self._hurry.set()

    def well(self, name: str) -> None:
        """Somebody looked and found nothing for this duty to do."""
        for duty in self._duties:
            if duty.name == name:
                duty.succeeded_at, duty.error = monotonic(), None
                duty.numbers = dict.fromkeys(duty.numbers, 0) if duty.numbers else None
                self.lack.remove(name)

    def beats(self) -> list[Beat]:
        """Return how each loop stands; the first one's tells once what ended the thread of all."""
        beats = [duty.beat() for duty in self._duties]
        if self._ended_by is not None:
            beats[0] = replace(beats[0], error=f"The thread {self.name!r} ended: {self._ended_by}")
            self._ended_by = None
        return beats

    def _work(self) -> None:
        try:
            self._go_round()
        finally:
            # A statement that was cut short leaves a connection that nobody can use.
            if self._connection is not None:
                self._connection.close()

    def _failed(self, failure: BaseException) -> None:
        self._ended_by = describe_error(failure)

    def _go_round(self) -> None:
        while not self._stopping.is_set():
            try:
                self._connect()
            except (DatabaseError, psycopg.Error) as failure:
                self._absence.report_failure(str(failure).strip())
                self._stopping.wait(RECONNECT_SECONDS)
                continue
            if not (self._has_tables() and self._run_due()):
                self._stopping.wait(RECONNECT_SECONDS)
                continue
            self._thread.mark_recovered()
            self.rounds += 1
            if self.rounds == 1:
                self._came_round()
            pause = min(duty.due_at for duty in self._duties) - monotonic()
            self._hurry.wait(max(0.01, min(pause, LONGEST_PAUSE_SECONDS)))
            self._hurry.clear()

    def _connect(self) -> None:
        if self._connection is not None and not self._connection.closed:
            return
        self._connection = connect(self._url, name=f"wakeboard {self.name}", answer_seconds=DEADLINE_SECONDS)
        self._absence.report_recovery()
        if self._was_connected:
            self._reconnected()
        self._was_connected = True

    def _has_tables(self) -> bool:
        """Whether there is anything to work on, asked only since something was found missing.

        Asked this way it is no error in the server's log. What was hindered comes at once after a migration.
        """
        if not self.lack.names:
            # Another thread may have been the one that saw them made.
            self.is_without_tables = False
            return True
        assert self._connection is not None
        try:
            revision = current_revision(self._connection)
        except psycopg.Error:
            # The duties meet it, too, and tell it.
            return True
        if revision != self._revision:
            self._revision = revision
            for duty in self._duties:
                if duty.name in self.lack.names:
                    duty.due_at = 0.0
        self.is_without_tables = revision is None
        if self.is_without_tables:
            self.lack.warn()
        return not self.is_without_tables

    def _run_due(self) -> bool:
        """Run what is due; False when there is no table at all to work on."""
        assert self._connection is not None
        for duty in self._duties:
            if monotonic() < duty.due_at or self._stopping.is_set():
                continue
            duty.due_at = math.inf if duty.on_demand else monotonic() + duty.interval_seconds
            try:
                numbers = duty.step(self._connection)
                duty.numbers = numbers if numbers else duty.numbers
                duty.succeeded_at, duty.error = monotonic(), None
                self.lack.remove(duty.name)
            except Exception as failure:
                duty.error = str(failure).strip()[:500] or type(failure).__name__
                if isinstance(failure, MISSING_TABLE_ERRORS):
                    self.lack.add(duty.name, failure)
                    if not self._has_tables():
                        return False
                    continue
                self._tell(duty, failure)
                if _is_useless(failure):
                    self._connection.close()
                    return True
        return True

    def _tell(self, duty: Duty, failure: Exception) -> None:
        """Log that a duty failed, the same failure of the same duty once a minute."""
        if not isinstance(failure, EXPECTED):
            self._failures[duty.name].add(failure)
            return
        sentence, fields = "A duty failed and will be tried again.", {"duty": duty.name, "error": duty.error}
        if _is_useless(failure):
            self._absence.report_failure(sentence, **fields)
        else:
            self._warnings.warn((duty.name, first_line(failure)), sentence, **fields)


def _is_useless(failure: Exception) -> bool:
    """Whether the connection that ``failure`` came from can never work again.

    A server that is gone gives no state; one that waited for a lock for too long works on.
    """
    if isinstance(failure, psycopg.OperationalError) and failure.sqlstate is None:
        return True
    return isinstance(failure, psycopg.Error) and (failure.sqlstate or "").startswith(USELESS)
