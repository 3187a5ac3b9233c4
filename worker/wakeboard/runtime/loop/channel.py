"""One libpq connection driven without blocking, for the supervisor's loop.

A *script* is a generator that yields statements and is sent their rows. Statements that it yields as one
``Transaction`` are sent in one go, so no lock is held while the network or this process is slow. Statements
are prepared on first use, except behind a pooler, where the next one may run in another session. Nothing here
waits: the loop watches ``fileno()`` and calls ``pump()``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from wakeboard.database.db import PLANNING, configure, is_pooled

# Values are int, float, bool, str or None.
Row = tuple[Any, ...]
Rows = list[Row]
Params = tuple[bytes | None, ...]
Statement = tuple[str, Params]


class Transaction(tuple[Statement, ...]):
    """Statements that are one transaction: all succeed, or none has an effect.

    The script is sent a list with the rows of each. Each statement sees the effects of those before it, and
    what others committed before it began.
    """


Request = Statement | Transaction
# It is sent the rows of each statement, or a list with the rows of each statement of a transaction.
Script = Generator[Request, Any, Any]

# Longer than any statement timeout of the session: a peer that is silent for so long is dead.
DEADLINE_SECONDS = 40.0
# The server ends the session of a machine that has gone, and releases its locks, within 11 seconds.
KEEPALIVE_SETTINGS = {"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3"}
# A plan is made for the table's size at that moment, and on a new installation the table grows by the second.
# Planning takes as long as claiming, so a script that somebody waits for plans again only when the table may
# have grown.
PLANS_SECONDS = 5.0
PLANS_ROWS = 500
OLDEST_PLANS_SECONDS = 120.0
# SQLSTATEs after which a connection is of no use: the server goes down, the connection broke, it became
# read-only (a demoted primary), it was ended because a transaction took too long, or it does not know our
# prepared statements any more (a pooler).
DEAD_CONNECTION_STATES = ("57P", "08", "25006", "25P04", "26000")
_SUCCESS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY)


class StatementFailed(Exception):
    """The server refused a statement; ``sqlstate`` says why. The connection still works."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class ChannelLost(Exception):
    """The connection is lost; the statement under way may or may not have taken effect."""


@dataclass(slots=True)
class _Job:
    """A script under way, with its last request and the answers to it so far.

    ``expected`` has an entry for each result to come: the text of a statement being prepared, None for an
    execution.
    """

    script: Script
    on_done: Callable[[Any], None]
    on_failure: Callable[[Exception], None]
    request: Request = ("", ())
    answers: list[Rows] = field(default_factory=list)
    expected: deque[str | None] = field(default_factory=deque)
    started_at: float = 0.0
    error: StatementFailed | None = None


@dataclass(slots=True)
class Plans:
    """When a session's plans were made (monotonic seconds), and how many rows they have returned."""

    made_at: float
    rows: int = 0

    def are_old(self, now: float, *, is_background: bool) -> bool:
        """Return whether to plan again before a script; ``is_background``: nobody waits for its result."""
        is_time = is_background or self.rows >= PLANS_ROWS
        return now - self.made_at >= (PLANS_SECONDS if is_time else OLDEST_PLANS_SECONDS)


class Channel:
    """A connection on which one script runs at a time."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._is_pooled = is_pooled(connection)
        if not self._is_pooled:
            configure(connection, PLANNING | KEEPALIVE_SETTINGS)
        self._connection = connection
        self._pgconn = connection.pgconn
        self._pgconn.nonblocking = 1
        self._pgconn.enter_pipeline_mode()
        # psycopg's reader, in C: reading values is half of this process's work for a quick run.
        self._reader = Transformer(connection)
        # A name is never used twice, so it does not matter what a refused preparation left behind.
        self._prepared: dict[str, bytes] = {}
        self._names = count()
        self._job: _Job | None = None
        self._descriptor = self._pgconn.socket
        self._plans = Plans(monotonic())
        self.is_lost = False
        self.wants_write = False

    @property
    def is_busy(self) -> bool:
        """Whether a script is under way."""
        return self._job is not None

    def fileno(self) -> int:
        """Return the socket to watch for reading; it stays open until ``close``."""
        return self._descriptor

    def close(self) -> None:
        """Close the connection; a script under way fails with ChannelLost."""
        job, self._job = self._job, None
        self._connection.close()
        if job is not None:
            job.on_failure(ChannelLost("the connection was closed"))

    def run(
        self,
        script: Script,
        on_done: Callable[[Any], None],
        on_failure: Callable[[Exception], None],
        *,
        is_background: bool = False,
    ) -> None:
        """Start ``script``. Later ``on_done`` gets its return value, or ``on_failure`` its error.

        ``is_background``: nobody waits for its result, so this is a good time to plan again.
        Raises RuntimeError when another script is under way.
        """
        if self._job is not None:
            raise RuntimeError("this channel is busy")
        if not self._is_pooled and self._plans.are_old(monotonic(), is_background=is_background):
            self._plans = Plans(monotonic())
            script = _with_new_plans(script)
        self._job = _Job(script, on_done, on_failure)
        try:
            self._advance(None)
        except psycopg.OperationalError as gone:
            self._mark_lost(str(gone))

    def pump(self) -> list[tuple[str, str]]:
        """Process what has arrived; return notifications as (channel, payload).

        Raises ChannelLost when the connection is lost, after the script has failed with it.
        """
        try:
            self._flush()
            self._pgconn.consume_input()
            while self._job is not None and not self._pgconn.is_busy():
                # None between two results.
                if (result := self._pgconn.get_result()) is not None:
                    self._collect(result)
            return self._notifications()
        except psycopg.OperationalError as gone:
            raise self._mark_lost(str(gone)) from gone

    def is_overdue(self, seconds: float = DEADLINE_SECONDS) -> bool:
        """Whether a statement has had no answer for ``seconds``; the default is longer than any may take."""
        return self._job is not None and monotonic() - self._job.started_at > seconds

    def _mark_lost(self, why: str) -> ChannelLost:
        job, self._job = self._job, None
        lost = ChannelLost(why.strip().splitlines()[0] if why.strip() else "the connection is gone")
        self.is_lost = True
        if job is not None:
            job.on_failure(lost)
        return lost

    def _notifications(self) -> list[tuple[str, str]]:
        notifications = []
        while (notify := self._pgconn.notifies()) is not None:
            notifications.append((notify.relname.decode(), notify.extra.decode("utf-8", "replace")))
        return notifications

    def _collect(self, result: pq.abc.PGresult) -> None:
        """Collect a result's rows or the first error; continue the script after the last result."""
        job = self._job
        assert job is not None
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            self._finish_request(job)
            return
        prepared = job.expected.popleft() if job.expected else None
        if result.status not in _SUCCESS:
            if prepared is not None:
                self._prepared.pop(prepared, None)
            if result.status != pq.ExecStatus.PIPELINE_ABORTED:
                job.error = self._refused(result)
        elif prepared is None:
            rows: Rows = []
            if result.ntuples:
                self._plans.rows += result.ntuples
                self._reader.set_pgresult(result)
                rows = self._reader.load_rows(0, result.ntuples, tuple)
            job.answers.append(rows)

    def _refused(self, result: pq.abc.PGresult) -> StatementFailed:
        """Return the refusal. Raises OperationalError when the connection is of no more use."""
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"no message").decode()
        if self._pgconn.status != pq.ConnStatus.OK or state.startswith(DEAD_CONNECTION_STATES):
            raise psycopg.OperationalError(message)
        return StatementFailed(message, state)

    def _finish_request(self, job: _Job) -> None:
        """Send the script its rows, or raise the refusal inside it."""
        answers, job.answers = job.answers, []
        error, job.error = job.error, None
        self._advance(
            answers if isinstance(job.request, Transaction) else answers[0] if answers else [], error
        )

    def _advance(self, answer: Any, error: StatementFailed | None = None) -> None:
        """Continue the script with ``answer`` (None: start it) or with ``error`` raised inside it."""
        job = self._job
        assert job is not None
        try:
            if error is not None:
                job.request = job.script.throw(error)
            else:
                job.request = next(job.script) if answer is None else job.script.send(answer)
        except StopIteration as ended:
            self._job = None
            job.on_done(ended.value)
        except StatementFailed as refused:
            self._job = None
            job.on_failure(refused)
        else:
            job.started_at = monotonic()
            self._send(job)

    def _send(self, job: _Job) -> None:
        """Send the script's request and a sync, at which the server commits."""
        job.expected.clear()
        for text, params in job.request if isinstance(job.request, Transaction) else (job.request,):
            # psycopg before 3.3 accepts a list only.
            values = list(params)
            if self._is_pooled:
                self._pgconn.send_query_params(text.encode(), values)
            else:
                self._pgconn.send_query_prepared(self._prepare(job, text), values)
            job.expected.append(None)
        self._pgconn.pipeline_sync()
        self._flush()

    def _prepare(self, job: _Job, text: str) -> bytes:
        """Return the name of a prepared statement; a new one is prepared by the same message."""
        name = self._prepared.get(text)
        if name is None:
            name = self._prepared[text] = b"wakeboard_%d" % next(self._names)
            self._pgconn.send_prepare(name, text.encode())
            job.expected.append(text)
        return name

    def _flush(self) -> None:
        """Send what the socket accepts; ``wants_write`` says that the loop must watch it for the rest."""
        self.wants_write = self._pgconn.flush() == 1


def _with_new_plans(script: Script) -> Script:
    """Return ``script`` with the session's plans discarded first."""
    yield "DISCARD PLANS", ()
    return (yield from script)


def numbers(values: Iterable[float | str]) -> bytes:
    """Return a PostgreSQL array literal of numbers or their texts, without None."""
    return ("{" + ",".join(map(str, values)) + "}").encode("ascii")


def array(values: Iterable[object]) -> bytes:
    """Return a PostgreSQL array literal of numbers, booleans, texts and None."""
    elements = ["NULL" if value is None else _FORMATS[type(value)](value) for value in values]
    return ("{" + ",".join(elements) + "}").encode("utf-8", "replace")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# The text of an array's element, by its type.
_FORMATS: dict[type, Callable[[Any], str]] = {
    int: str, float: str, str: _quoted, bool: lambda value: "t" if value else "f",
}  # fmt: skip
