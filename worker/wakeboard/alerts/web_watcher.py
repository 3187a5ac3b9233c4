"""The watcher inside the web process, for what goes wrong when no worker lives: three threads.

One looks at rules and says that it lives, one sends messages, one notices when the database is silent and
needs no database for that. None of them serves a page, and no page waits for them.
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
from typing import Any

import psycopg

from wakeboard.alerts.channels import Channels
from wakeboard.alerts.delivery import SENT, deliver, waiting
from wakeboard.alerts.heartbeat import Heartbeat
from wakeboard.alerts.outage import PATIENCE_SECONDS, Outage
from wakeboard.alerts.watch import Watch, post
from wakeboard.config import log
from wakeboard.config.service_thread import ServiceThread
from wakeboard.config.settings import Settings
from wakeboard.core.text.sanitize import describe_error, first_line
from wakeboard.database.audit import ENGINE
from wakeboard.database.db import MISSING_TABLE_ERRORS, DatabaseError, connect
from wakeboard.database.outage_log import MissingTables, OutageLog, WarningThrottle
from wakeboard.queue import cancel
from wakeboard.reporting.heartbeats import Beat

Connection = psycopg.Connection[Any]
LOOK_SECONDS = 15.0
POST_SECONDS = 2.0
OUTAGE_SECONDS = 3.0
NO_TABLES_SECONDS = 5.0
STATEMENT_SECONDS = 10

# A message may take a channel for so long, and there may be several.
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
FORGET = "DELETE FROM wakeboard.loops WHERE process_id = %s"
OURS = "SELECT DISTINCT process_id FROM wakeboard.loops WHERE starts_with(process_id, %s)"
# What follows the host's name: of host app, the rows of host app-2 begin alike and go on otherwise.
OF_THIS_HOST = re.compile("[0-9a-f]{6}-([0-9]+)")
REQUEUED = "SELECT status FROM wakeboard.job_runs WHERE id = %s"


class WebWatcher:
    """The watcher of one web process. ``stage`` is a file that its sibling processes share, see Outage."""

    def __init__(
        self,
        url: str,
        settings: Settings,
        stage: int,
        *,
        look_seconds: float = LOOK_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Nothing is started or connected before ``start``; ``url`` is the primary's. The database is said
        not to answer after ``patience_seconds`` of silence."""
        self._url = url
        self._settings = settings
        self._watch = Watch("web", settings)
        self._heartbeat = Heartbeat(settings.heartbeat_url)
        self.looks = 0
        self.outage = Outage(settings, stage, patience_seconds=patience_seconds)
        self._prefix = f"web-{socket.gethostname()[:60]}-"
        self.process_id = f"{self._prefix}{secrets.token_hex(3)}-{os.getpid()}"
        self._lack = MissingTables()
        self._warnings = WarningThrottle()
        self._beside: Sequence[Callable[[], Beat]] = ()
        self._stopping = threading.Event()
        # What the rows of the loops tell: every how many seconds, when it last succeeded, its last error.
        self._intervals = {"alerts": look_seconds, "post": SEND_SECONDS, "outage": SEND_SECONDS}
        self._succeeded_at = dict.fromkeys(self._intervals, monotonic())
        self._errors: dict[str, str] = {}
        bodies = {
            "alerts": lambda: self._connected("alerts", look_seconds, self._look),
            "post": lambda: self._connected("post", POST_SECONDS, self._post),
            "outage": self._notice,
        }
        self._threads = {name: self._thread(name, body) for name, body in bodies.items()}

    def _thread(self, name: str, body: Callable[[], None]) -> ServiceThread:
        def failed(failure: BaseException) -> None:
            self._errors[name] = describe_error(failure)

        return ServiceThread(name, body, stopping=self._stopping, on_failure=failed)

    def start(self, beside: Sequence[Callable[[], Beat]] = ()) -> None:
        """Start watching; ``beside`` tell how other threads of this process stand."""
        self._beside = beside
        for thread in self._threads.values():
            thread.start()

    def stop(self, timeout_seconds: float = 3.0) -> None:
        """End the threads after the step under way and take the loop's row away."""
        self._stopping.set()
        for thread in self._threads.values():
            thread.join(timeout_seconds)
        with suppress(DatabaseError, psycopg.Error), self._open() as connection:
            connection.execute(FORGET, (self.process_id,))

    def _open(self) -> Connection:
        return connect(self._url, name="wakeboard alerts", statement_timeout_seconds=STATEMENT_SECONDS)

    def _connected(self, name: str, every_seconds: float, step: Callable[[Connection], None]) -> None:
        """Call ``step`` every so often with a connection, opened again whenever it was lost."""
        connection: Connection | None = None
        absence = OutageLog(name)
        try:
            while not self._stopping.is_set():
                try:
                    if connection is None or connection.closed:
                        connection = self._open()
                    step(connection)
                    absence.report_recovery()
                    self._lack.remove(name)
                    self._succeeded(name)
                except (DatabaseError, psycopg.OperationalError) as failure:
                    absence.report_failure(
                        "The alerts cannot reach the database.", error=str(failure).strip()[:300]
                    )
                    _close(connection)
                    connection = None
                except MISSING_TABLE_ERRORS as failure:
                    self._lack.add(name, failure)
                    self._stopping.wait(max(0.0, NO_TABLES_SECONDS - every_seconds))
                except psycopg.Error as failure:
                    self._refused(name, failure)
                self._stopping.wait(every_seconds)
        finally:
            _close(connection)

    def _succeeded(self, name: str) -> None:
        self._succeeded_at[name] = monotonic()
        self._threads[name].mark_recovered()

    def _refused(self, name: str, failure: psycopg.Error) -> None:
        self._errors[name] = first_line(failure)[:300]
        self._warnings.warn(
            (name, self._errors[name]), "A step of the alerts failed and will be tried again.", loop=name,
            error=self._errors[name],
        )  # fmt: skip

    def _beats(self) -> Iterator[Beat]:
        """Give how each thread stands; that of the rules has just succeeded. An error is told once."""
        now = monotonic()
        for name, interval_seconds in self._intervals.items():
            ago = 0.0 if name == "alerts" else now - self._succeeded_at[name]
            yield Beat(name, interval_seconds, ago, self._errors.pop(name, None))
        yield from (beat() for beat in self._beside)

    def _look(self, connection: Connection) -> None:
        connection.execute("SELECT 1")
        self.outage.answered()
        self._watch.step(connection)
        self._heartbeat.step(connection)
        self._forget_dead_siblings(connection)
        self.looks += 1
        for beat in self._beats():
            connection.execute(BEAT, {
                "process_id": self.process_id, "name": beat.name, "interval": beat.interval_seconds,
                "ago": beat.ago_seconds, "error": beat.error,
            })  # fmt: skip

    def _forget_dead_siblings(self, connection: Connection) -> None:
        """Take away the rows of web processes of this host that were killed: nobody waits for them."""
        for (process_id,) in connection.execute(OURS, (self._prefix,)).fetchall():
            ours = OF_THIS_HOST.fullmatch(process_id.removeprefix(self._prefix))
            if ours is not None and not _lives(int(ours[1])):
                connection.execute(FORGET, (process_id,))

    def _post(self, connection: Connection) -> None:
        while self.outage.history:
            told = self.outage.history[0]
            # Both or neither: a message that stands there unsent is one that somebody sends.
            with connection.transaction():
                message_id = post(
                    connection, None, told.cause, told.channel, told.words.subject, told.words.body
                )
                connection.execute(SENT.encode(), {"id": message_id, "words": told.answer})
            self.outage.history.pop(0)
        channels = Channels(self._settings)
        for message_id, run_id in waiting(connection, channels):
            done = deliver(connection, channels, message_id)
            if done.result == "sent" and run_id is not None:
                self._call_off(connection, run_id)
            if done.result in ("failed", "gave_up"):
                log.warn("An alert could not be sent.", message=message_id, error=done.words)
            self._succeeded("post")

    def _call_off(self, connection: Connection, run_id: int) -> None:
        """Cancel the waiting run of a message that was sent here: no worker came for it in time."""
        row = connection.execute(REQUEUED, (run_id,)).fetchone()
        if row is not None and row[0] in ("queued", "failed"):
            cancel(connection, run_id, ENGINE, "the web process delivered the message")

    def _notice(self) -> None:
        while not self._stopping.wait(OUTAGE_SECONDS):
            self.outage.step()
            self._succeeded("outage")


def _close(connection: Connection | None) -> None:
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
