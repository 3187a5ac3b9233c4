"""psycopg connections that wait for the server for a bounded time only.

A frozen server, or a proxy in front of a dead one, keeps its connections open and answers nothing. Neither
keepalives nor ``statement_timeout`` see that: the kernel goes on acknowledging, and the timeout is the
server's own.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

if TYPE_CHECKING:
    from psycopg.abc import PQGen

Found = TypeVar("Found")


class SilentServer(psycopg.OperationalError):
    """The server has not answered a statement in time; the connection is closed."""


class Patient(psycopg.Connection[Any]):
    """A connection that gives up, and closes itself, when an answer takes longer than ``answer_seconds``.

    Set that above the session's ``statement_timeout``, so that a server that lives can say so itself. None
    waits for ever.
    """

    answer_seconds: float | None = None

    def wait(self, gen: PQGen[Found], *given: Any, **named: Any) -> Found:
        """Do one exchange with the server, as psycopg does it. Raises SilentServer."""
        if self.answer_seconds is not None:
            gen = _bounded(gen, self.answer_seconds)
        try:
            return super().wait(gen, *given, **named)
        except SilentServer:
            self.close()
            raise


def _bounded(gen: PQGen[Found], seconds: float) -> PQGen[Found]:
    """Hand on what ``gen`` waits for and what it got, and raise SilentServer after ``seconds``.

    psycopg comes back every tenth of a second, also when nothing has arrived.
    """
    until = monotonic() + seconds
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and monotonic() > until:
                raise SilentServer(f"the server has not answered for {seconds:g} seconds")
            wanted = gen.send(ready)
    except StopIteration as done:
        found: Found = done.value
        return found
