"""The watcher of the web process, for the time when no worker lives: three threads.

``alerts`` evaluates rules and beats, ``post`` sends messages, ``outage`` notices that the database does not
answer and needs no database. None of them serves a page, and no page waits for them.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import monotonic

import psycopg
from psycopg import Connection

from wakeboard.alerts.channels import Channels
from wakeboard.alerts.delivery import SENT, deliver, find_waiting
from wakeboard.alerts.evaluation import RuleEvaluator, post
from wakeboard.alerts.heartbeat import Heartbeat
from wakeboard.alerts.outage import PATIENCE_SECONDS, Outage
from wakeboard.config import log
from wakeboard.config.service_thread import ServiceThread
from wakeboard.config.settings import Settings
from wakeboard.core.text.sanitize import describe_error, first_line
from wakeboard.database.audit import ENGINE
from wakeboard.database.db import MISSING_TABLE_ERRORS, DatabaseError, connect
from wakeboard.database.outage_log import MissingTables, OutageLog, WarningThrottle
from wakeboard.queue import cancel
from wakeboard.reporting.heartbeats import Beat

CHECK_SECONDS = 15.0
POST_SECONDS = 2.0
OUTAGE_SECONDS = 3.0
NO_TABLES_SECONDS = 5.0
STATEMENT_SECONDS = 10

# A message may occupy a channel for so long, and there may be several.
SEND_SECONDS = 60.0

BEAT = """
INSERT INTO wakeboard.loops AS known
    (process_id, name, interval_seconds, last_success_at, last_error, last_error_at)
VALUES (%(process_id)s, %(name)s, %(interval)s, now() - make_interval(secs => %(ago)s), %(error)s,
    CASE WHEN %(error)s::text IS NOT NULL THEN now() END)
ON CONFLICT (process_id, name) DO UPDATE SET last_success_at = excluded.last_success_at,
    interval_seconds = excluded.interval_seconds,
    last_error = coalesce(excluded.last_error, known.last_error),
    last_error_at = coalesce(excluded.last_error_at, known.last_error_at)
"""
REMOVE_LOOPS = "DELETE FROM wakeboard.loops WHERE process_id = %s"
PROCESSES_OF_HOST = "SELECT DISTINCT process_id FROM wakeboard.loops WHERE starts_with(process_id, %s)"
# What follows the host's name. The rows of host app-2 begin like those of host app.
AFTER_HOST_NAME = re.compile("[0-9a-f]{6}-([0-9]+)")
STATUS_OF_RUN = "SELECT status FROM wakeboard.job_runs WHERE id = %s"


class WebWatcher:
    """The watcher of one web process. ``lock_file`` is shared with its sibling processes, see Outage."""

    def __init__(
        self,
        url: str,
        settings: Settings,
        lock_file: int,
        *,
        check_seconds: float = CHECK_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Starts and connects nothing before ``start``; ``url`` is the primary's.

        The outage alert fires after ``patience_seconds`` without an answer of the database.
        """
        self._url = url
        self._settings = settings
        self._evaluator = RuleEvaluator("web", settings)
        self._heartbeat = Heartbeat(settings.heartbeat_url)
        self.checks = 0
        self.outage = Outage(settings, lock_file, patience_seconds=patience_seconds)
        self._prefix = f"web-{socket.gethostname()[:60]}-"
        self.process_id = f"{self._prefix}{secrets.token_hex(3)}-{os.getpid()}"
        self._missing_tables = MissingTables()
        self._warnings = WarningThrottle()
        self._other_beats: Sequence[Callable[[], Beat]] = ()
        self._stopping = threading.Event()
        # What the rows of the loops say: the interval in seconds, the last success, the last error.
        self._intervals = {"alerts": check_seconds, "post": SEND_SECONDS, "outage": SEND_SECONDS}
        self._succeeded_at = dict.fromkeys(self._intervals, monotonic())
        self._errors: dict[str, str] = {}
        bodies = {
            "alerts": lambda: self._run("alerts", check_seconds, self._check),
            "post": lambda: self._run("post", POST_SECONDS, self._post),
            "outage": self._watch_outage,
        }
        self._threads = {name: self._thread(name, body) for name, body in bodies.items()}

    def _thread(self, name: str, body: Callable[[], None]) -> ServiceThread:
        def failed(failure: BaseException) -> None:
            self._errors[name] = describe_error(failure)

        return ServiceThread(name, body, stopping=self._stopping, on_failure=failed)

    def start(self, other_beats: Sequence[Callable[[], Beat]] = ()) -> None:
        """Start the threads; ``other_beats`` return the beats of other threads of this process."""
        self._other_beats = other_beats
        for thread in self._threads.values():
            thread.start()

    def stop(self, timeout_seconds: float = 3.0) -> None:
        """End the threads after their current step and remove the rows of their loops."""
        self._stopping.set()
        for thread in self._threads.values():
            thread.join(timeout_seconds)
        with suppress(DatabaseError, psycopg.Error), self._open() as connection:
            connection.execute(REMOVE_LOOPS, (self.process_id,))

    def _open(self) -> Connection:
        return connect(self._url, name="wakeboard alerts", statement_timeout_seconds=STATEMENT_SECONDS)

    def _run(self, name: str, every_seconds: float, step: Callable[[Connection], None]) -> None:
        """Call ``step`` at intervals with a connection, opened again whenever it was lost."""
        connection: Connection | None = None
        outage_log = OutageLog(name)
        try:
            while not self._stopping.is_set():
                try:
                    if connection is None or connection.closed:
                        connection = self._open()
                    step(connection)
                    outage_log.report_recovery()
                    self._missing_tables.remove(name)
                    self._record_success(name)
                except (DatabaseError, psycopg.OperationalError) as failure:
                    outage_log.report_failure(
                        "The alerts cannot reach the database.", error=str(failure).strip()[:300]
                    )
                    _close(connection)
                    connection = None
                except MISSING_TABLE_ERRORS as failure:
                    self._missing_tables.add(name, failure)
                    self._stopping.wait(max(0.0, NO_TABLES_SECONDS - every_seconds))
                except psycopg.Error as failure:
                    self._record_error(name, failure)
                self._stopping.wait(every_seconds)
        finally:
            _close(connection)

    def _record_success(self, name: str) -> None:
        self._succeeded_at[name] = monotonic()
        self._threads[name].mark_recovered()

    def _record_error(self, name: str, failure: psycopg.Error) -> None:
        self._errors[name] = first_line(failure)[:300]
        self._warnings.warn(
            (name, self._errors[name]), "A step of the alerts failed and will be tried again.", loop=name,
            error=self._errors[name],
        )  # fmt: skip

    def _beats(self) -> Iterator[Beat]:
        """Yield the beat of each thread; ``alerts`` has just succeeded. An error is in one beat only."""
        now = monotonic()
        for name, interval_seconds in self._intervals.items():
            ago = 0.0 if name == "alerts" else now - self._succeeded_at[name]
            yield Beat(name, interval_seconds, ago, self._errors.pop(name, None))
        yield from (beat() for beat in self._other_beats)

    def _check(self, connection: Connection) -> None:
        connection.execute("SELECT 1")
        self.outage.answered()
        self._evaluator.step(connection)
        self._heartbeat.step(connection)
        self._remove_dead_siblings(connection)
        self.checks += 1
        for beat in self._beats():
            connection.execute(BEAT, {
                "process_id": self.process_id, "name": beat.name, "interval": beat.interval_seconds,
                "ago": beat.ago_seconds, "error": beat.error,
            })  # fmt: skip

    def _remove_dead_siblings(self, connection: Connection) -> None:
        """Remove the rows of web processes of this host that were killed."""
        for (process_id,) in connection.execute(PROCESSES_OF_HOST, (self._prefix,)).fetchall():
            match = AFTER_HOST_NAME.fullmatch(process_id.removeprefix(self._prefix))
            if match is not None and not _is_alive(int(match[1])):
                connection.execute(REMOVE_LOOPS, (process_id,))

    def _post(self, connection: Connection) -> None:
        while self.outage.sent:
            message = self.outage.sent[0]
            # In one transaction: somebody would send a message whose row is unsent.
            with connection.transaction():
                message_id = post(connection, None, message.cause, message.channel, message.text)
                connection.execute(SENT.encode(), {"id": message_id, "answer": message.answer})
            self.outage.sent.pop(0)
        channels = Channels(self._settings)
        for waiting in find_waiting(connection, channels):
            delivery = deliver(connection, channels, waiting.id)
            if delivery.result == "sent" and waiting.run_id is not None:
                self._cancel_run(connection, waiting.run_id)
            if delivery.result in ("failed", "gave_up"):
                log.warn("An alert could not be sent.", message=waiting.id, error=delivery.sentence)
            self._record_success("post")

    def _cancel_run(self, connection: Connection, run_id: int) -> None:
        """Cancel the waiting run of a message that was sent here: no worker came for it in time."""
        row = connection.execute(STATUS_OF_RUN, (run_id,)).fetchone()
        if row is not None and row[0] in ("queued", "failed"):
            cancel(connection, run_id, ENGINE, "the web process delivered the message")

    def _watch_outage(self) -> None:
        while not self._stopping.wait(OUTAGE_SECONDS):
            self.outage.step()
            self._record_success("outage")


def _close(connection: Connection | None) -> None:
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
