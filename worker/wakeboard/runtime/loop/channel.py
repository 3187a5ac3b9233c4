"""One libpq connection driven without blocking, for the supervisor's loop.

A *script* is a generator that yields statements and is sent their rows. What it yields as ``Together`` is
sent in one go and is one transaction: nobody holds a lock while the network or this process is slow.
Statements are prepared on first use, but behind a pooler, where the next may run in another session. Nothing
here waits: the loop watches ``fileno()`` and calls ``pump()``.
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

# As Python's own values: int, float, bool, str, None.
Rows = list[tuple[Any, ...]]
Params = tuple[bytes | None, ...]
Statement = tuple[str, Params]


class Together(tuple[Statement, ...]):
    """Statements that are one transaction, the script is sent the rows of each; where one is refused, none
    has happened. Each sees what those before it did, and what others committed before it began."""


Asked = Statement | Together
# Is sent the rows of a statement, or a list of the rows of each of several together.
Script = Generator[Asked, Any, Any]

# Longer than any statement limit of the session: what is still silent then is a dead peer.
DEADLINE_SECONDS = 40.0
# After so long the server ends the session of a machine that has gone, and its locks (no more than 11 s).
OF_A_DEAD_PEER = {"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3"}
# Plans know the table as large as it was when they were made; on a new installation it grows by the second.
# Planning takes as long as claiming: who is waited for plans anew only when the table may have grown.
PLANS_SECONDS = 5.0
PLANS_ROWS = 500
OLDEST_PLANS_SECONDS = 120.0
# The server goes down, the connection broke, it became read-only (a demoted primary), it was ended because a
# transaction took too long, or it does not know our prepared statements any more (a pooler): another
# connection is needed.
USELESS = ("57P", "08", "25006", "25P04", "26000")
_GOOD = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY)


class StatementFailed(Exception):
    """The server refused a statement; ``sqlstate`` says why, the connection lives."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class ChannelLost(Exception):
    """The connection is gone; what was under way may or may not have happened."""


@dataclass(slots=True)
class _Job:
    """A script under way: what it asked for last, the answers that have come, the texts being prepared."""

    script: Script
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]
    asked: Asked = ("", ())
    answers: list[Rows] = field(default_factory=list)
    expected: deque[str | None] = field(default_factory=deque)
    started_at: float = 0.0
    error: StatementFailed | None = None


@dataclass(slots=True)
class Plans:
    """Since when a session keeps its plans (monotonic, in seconds), and how many rows they brought."""

    made_at: float
    rows: int = 0

    def are_old(self, now: float, *, is_spare: bool) -> bool:
        """Return whether to plan anew before a script; ``is_spare``: nobody waits for what it brings."""
        is_time = is_spare or self.rows >= PLANS_ROWS
        return now - self.made_at >= (PLANS_SECONDS if is_time else OLDEST_PLANS_SECONDS)


class Channel:
    """A connection on which one script runs at a time."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._is_pooled = is_pooled(connection)
        if not self._is_pooled:
            configure(connection, PLANNING | OF_A_DEAD_PEER)
        self._connection = connection
        self._pgconn = connection.pgconn
        self._pgconn.nonblocking = 1
        self._pgconn.enter_pipeline_mode()
        # psycopg's own reader, in C: values of rows are half of what this process does for a quick run.
        self._reader = Transformer(connection)
        # A name for each text, never the same twice: whether a text whose preparation was refused left
        # anything behind is not asked.
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
        """Close the connection; a script under way is told that the channel is lost."""
        job, self._job = self._job, None
        self._connection.close()
        if job is not None:
            job.failed(ChannelLost("the connection was closed"))

    def run(
        self,
        script: Script,
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        *,
        is_spare: bool = False,
    ) -> None:
        """Start ``script``; later ``done`` gets its return value, or ``failed`` the reason.

        ``is_spare``: nobody waits for what it brings, so that it is a good time to plan anew.
        Raises RuntimeError when another script is under way.
        """
        if self._job is not None:
            raise RuntimeError("this channel is busy")
        if not self._is_pooled and self._plans.are_old(monotonic(), is_spare=is_spare):
            self._plans = Plans(monotonic())
            script = _planned_anew(script)
        self._job = _Job(script, done, failed)
        try:
            self._advance(None)
        except psycopg.OperationalError as gone:
            self._lost(str(gone))

    def pump(self) -> list[tuple[str, str]]:
        """Take what has arrived and go on; return notifications as (channel, payload).

        Raises ChannelLost when the connection is gone (after telling the script).
        """
        try:
            self._flush()
            self._pgconn.consume_input()
            while self._job is not None and not self._pgconn.is_busy():
                # None between two results.
                if (result := self._pgconn.get_result()) is not None:
                    self._keep(result)
            return self._notifications()
        except psycopg.OperationalError as gone:
            raise self._lost(str(gone)) from gone

    def is_overdue(self, seconds: float = DEADLINE_SECONDS) -> bool:
        """Whether a statement has had no answer for ``seconds``, by default for longer than any may take."""
        return self._job is not None and monotonic() - self._job.started_at > seconds

    def _lost(self, why: str) -> ChannelLost:
        job, self._job = self._job, None
        lost = ChannelLost(why.strip().splitlines()[0] if why.strip() else "the connection is gone")
        self.is_lost = True
        if job is not None:
            job.failed(lost)
        return lost

    def _notifications(self) -> list[tuple[str, str]]:
        found = []
        while (notice := self._pgconn.notifies()) is not None:
            found.append((notice.relname.decode(), notice.extra.decode("utf-8", "replace")))
        return found

    def _keep(self, result: pq.abc.PGresult) -> None:
        """Collect a result's rows, or the first error; after the last one the script goes on."""
        job = self._job
        assert job is not None
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            self._answered(job)
            return
        prepared = job.expected.popleft() if job.expected else None
        if result.status not in _GOOD:
            if prepared is not None:
                self._prepared.pop(prepared, None)
            if result.status != pq.ExecStatus.PIPELINE_ABORTED:
                job.error = self._refusal(result)
        elif prepared is None:
            rows: Rows = []
            if result.ntuples:
                self._plans.rows += result.ntuples
                self._reader.set_pgresult(result)
                rows = self._reader.load_rows(0, result.ntuples, tuple)
            job.answers.append(rows)

    def _refusal(self, result: pq.abc.PGresult) -> StatementFailed:
        """Return why the server refused a statement. Raises OperationalError when it is of no more use."""
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"no message").decode()
        if self._pgconn.status != pq.ConnStatus.OK or state.startswith(USELESS):
            raise psycopg.OperationalError(message)
        return StatementFailed(message, state)

    def _answered(self, job: _Job) -> None:
        """Hand the script its rows, or what was refused."""
        answers, job.answers = job.answers, []
        error, job.error = job.error, None
        self._advance(answers if isinstance(job.asked, Together) else answers[0] if answers else [], error)

    def _advance(self, answer: Any, error: StatementFailed | None = None) -> None:
        """Let the script go on with ``answer`` (None: begin) or with ``error`` raised inside it."""
        job = self._job
        assert job is not None
        try:
            if error is not None:
                job.asked = job.script.throw(error)
            else:
                job.asked = next(job.script) if answer is None else job.script.send(answer)
        except StopIteration as ended:
            self._job = None
            job.done(ended.value)
        except StatementFailed as refused:
            self._job = None
            job.failed(refused)
        else:
            job.started_at = monotonic()
            self._send(job)

    def _send(self, job: _Job) -> None:
        """Send what the script asked for, and a word to the server that this is all: there it commits."""
        job.expected.clear()
        for text, params in job.asked if isinstance(job.asked, Together) else (job.asked,):
            # A list: before 3.3 psycopg takes nothing else.
            values = list(params)
            if self._is_pooled:
                self._pgconn.send_query_params(text.encode(), values)
            else:
                self._pgconn.send_query_prepared(self._prepare(job, text), values)
            job.expected.append(None)
        self._pgconn.pipeline_sync()
        self._flush()

    def _prepare(self, job: _Job, text: str) -> bytes:
        """Return the name of a statement, which is prepared with what is sent when it is new."""
        name = self._prepared.get(text)
        if name is None:
            name = self._prepared[text] = b"wakeboard_%d" % next(self._names)
            self._pgconn.send_prepare(name, text.encode())
            job.expected.append(text)
        return name

    def _flush(self) -> None:
        """Send what the socket takes; ``wants_write`` says that the loop must watch it for the rest."""
        self.wants_write = self._pgconn.flush() == 1


def _planned_anew(script: Script) -> Script:
    """Return ``script`` with the session's plans forgotten before its first statement."""
    yield "DISCARD PLANS", ()
    return (yield from script)


def numbers(values: Iterable[float | str]) -> bytes:
    """Return a PostgreSQL array literal of numbers, or of their texts: no None, nothing to be quoted."""
    return ("{" + ",".join(map(str, values)) + "}").encode("ascii")


def array(values: Iterable[object]) -> bytes:
    """Return a PostgreSQL array literal of numbers, booleans, texts and Nones."""
    elements = ["NULL" if value is None else _WRITTEN[type(value)](value) for value in values]
    return ("{" + ",".join(elements) + "}").encode("utf-8", "replace")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# How an element of an array is written, by its type.
_WRITTEN: dict[type, Callable[[Any], str]] = {
    int: str, float: str, str: _quoted, bool: lambda value: "t" if value else "f",
}  # fmt: skip
