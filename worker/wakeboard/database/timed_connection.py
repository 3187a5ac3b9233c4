"""psycopg connections that wait a bounded time for each answer of the server.

A frozen server, or a proxy in front of a dead one, keeps its connections open and answers nothing. Neither
keepalives nor ``statement_timeout`` see that: the kernel goes on acknowledging, and the timeout is the
server's own. Extends ``Connection.wait`` by ``psycopg.waiting``, both public, as of psycopg 3.2 and 3.3.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.waiting import Ready, Wait

if TYPE_CHECKING:
    from psycopg.abc import PQGen

T = TypeVar("T")
_EVENTS = {Wait.R: select.POLLIN, Wait.W: select.POLLOUT, Wait.RW: select.POLLIN | select.POLLOUT}


class AnswerTimeout(psycopg.OperationalError):
    """The server has not answered a statement in time; the connection is closed."""


class TimedConnection(psycopg.Connection):
    """A connection that raises AnswerTimeout and closes when an answer takes longer than ``answer_seconds``.

    Set that above the session's ``statement_timeout``, so that a live server reports a slow statement itself.
    None waits for ever.
    """

    answer_seconds: float | None = None

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Do one exchange with the server, as psycopg does it. Raises AnswerTimeout."""
        if self.answer_seconds is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return _exchange(gen, self.fileno(), self.answer_seconds)
        except AnswerTimeout:
            self.close()
            raise


@contextmanager
def answer_timeout(connection: TimedConnection, seconds: float) -> Iterator[None]:
    """Bound the answer to each statement of the block. The statements raise AnswerTimeout."""
    outer, connection.answer_seconds = connection.answer_seconds, seconds
    try:
        yield
    finally:
        connection.answer_seconds = outer


def _exchange(gen: PQGen[T], socket: int, seconds: float) -> T:
    """Run ``gen``, which yields what it waits for on ``socket``, to its end. Raises AnswerTimeout."""
    deadline = monotonic() + seconds
    poller = select.poll()
    try:
        awaited = next(gen)
        while True:
            poller.register(socket, _EVENTS[awaited])
            polled = poller.poll(max(0.0, deadline - monotonic()) * 1000)
            if not polled:
                raise AnswerTimeout(f"the server has not answered for {seconds:g} seconds")
            awaited = gen.send(_ready(polled[0][1], awaited))
    except StopIteration as end:
        result: T = end.value
        return result


def _ready(events: int, awaited: Wait) -> Ready:
    """Return what is ready; all that is ``awaited`` where the connection broke, which libpq then reports."""
    if events & ~(select.POLLIN | select.POLLOUT):
        return Ready(awaited)
    return Ready((Ready.R if events & select.POLLIN else 0) | (Ready.W if events & select.POLLOUT else 0))
