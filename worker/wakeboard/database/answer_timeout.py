"""psycopg connections that wait for the server for a bounded time only.

A frozen server, or a proxy in front of a dead one, keeps its connections open and answers nothing. Neither
keepalives nor ``statement_timeout`` see that: the kernel goes on acknowledging, and the timeout is the
server's own. It extends ``Connection.wait`` and speaks ``psycopg.waiting``, as of psycopg 3.2 and 3.3.
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

Found = TypeVar("Found")
_EVENTS = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}


class SilentServer(psycopg.OperationalError):
    """The server has not answered a statement in time; the connection is closed."""


class TimedConnection(psycopg.Connection[Any]):
    """A connection that gives up, and closes itself, when an answer takes longer than ``answer_seconds``.

    Set that above the session's ``statement_timeout``, so that a server that lives can say so itself. None
    waits for ever.
    """

    answer_seconds: float | None = None

    def wait(self, gen: PQGen[Found], *given: Any, **named: Any) -> Found:
        """Do one exchange with the server, as psycopg does it. Raises SilentServer."""
        if self.answer_seconds is None:
            return super().wait(gen, *given, **named)
        try:
            return _exchange(gen, self.fileno(), self.answer_seconds)
        except SilentServer:
            self.close()
            raise


@contextmanager
def answering_within(connection: TimedConnection, seconds: float) -> Iterator[None]:
    """Let each statement of the block take at most so many seconds. They raise SilentServer."""
    usual, connection.answer_seconds = connection.answer_seconds, seconds
    try:
        yield
    finally:
        connection.answer_seconds = usual


def _exchange(gen: PQGen[Found], socket: int, seconds: float) -> Found:
    """Give ``gen`` what it waits for on ``socket`` until it is done. Raises SilentServer."""
    until = monotonic() + seconds
    poller = select.poll()
    try:
        wanted = next(gen)
        while True:
            poller.register(socket, _EVENTS[wanted])
            found = poller.poll(max(0.0, until - monotonic()) * 1000)
            if not found:
                raise SilentServer(f"the server has not answered for {seconds:g} seconds")
            wanted = gen.send(_ready(found[0][1], wanted))
    except StopIteration as done:
        answer: Found = done.value
        return answer


def _ready(events: int, wanted: Wait) -> Ready:
    """Return what is ready; all that is ``wanted`` where the connection broke, which libpq then finds."""
    if events & ~(select.POLLIN | select.POLLOUT):
        return Ready(wanted)
    return Ready((Ready.R if events & select.POLLIN else 0) | (Ready.W if events & select.POLLOUT else 0))
