"""The loop's two connections: one claims and listens, one writes.

Losing either is a sentence in the log and a new one soon. A short-lived thread opens it, so that the loop
never waits for a connect.
"""

from __future__ import annotations

import selectors
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

import psycopg

from wakeboard.config import log
from wakeboard.config.service_thread import FailureLog
from wakeboard.core.text.sanitize import describe_error
from wakeboard.database.db import DatabaseError, UnsupportedDatabaseError, connect, is_pooled
from wakeboard.database.outage_log import OutageLog
from wakeboard.runtime.loop.channel import Channel, ChannelLost

# Within five seconds of the end of an outage, however long it was, a worker is at work again.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 4.0
# Between two proofs of hearing, so that the second failure in a row finds a silent claim.
SILENT_CLAIM_SECONDS = 7.0


@dataclass(frozen=True, slots=True)
class Connected:
    """A fresh connection is there."""

    connection: LoopConnection
    channel: Channel


@dataclass(frozen=True, slots=True)
class NotConnected:
    """An attempt to connect failed; ``is_final``: so will every other."""

    connection: LoopConnection
    reason: str
    is_final: bool = False


class LoopConnection:
    """One named connection of the loop. ``tell`` must be safe to call from another thread."""

    def __init__(
        self,
        url: str,
        name: str,
        tell: Callable[[Connected | NotConnected], None],
        listens: Sequence[str] = (),
    ) -> None:
        self.url = url
        self.name = name
        self._tell = tell
        self._listens = listens
        self.channel: Channel | None = None
        self.is_pooled = False
        self.absence = OutageLog(name)
        self._connecting = False
        self._failures = FailureLog(f"The connection {name!r} could not be opened and is tried again")
        self._retry_at = 0.0
        self._pause = FIRST_PAUSE

    @property
    def is_up(self) -> bool:
        """Whether there is a connection that is not known to be lost."""
        return self.channel is not None and not self.channel.is_lost

    @property
    def is_free(self) -> bool:
        """Whether a script can be run now."""
        return self.channel is not None and not self.channel.is_busy and not self.channel.is_lost

    @property
    def is_quiet(self) -> bool:
        """Whether no script is under way (connected or not)."""
        return self.channel is None or not self.channel.is_busy

    def ensure(self) -> None:
        """Begin to connect when there is no connection and the pause is over."""
        if self.channel is None and not self._connecting and monotonic() >= self._retry_at:
            self._connecting = True
            try:
                threading.Thread(target=self._open, name=f"connect {self.name}", daemon=True).start()
            except RuntimeError as failure:
                # The system has no room for a thread.
                self.failed(describe_error(failure))

    def _open(self) -> None:
        """Connect and tell of it; whatever goes wrong, the loop hears of it and tries again."""
        try:
            self._tell(Connected(self, self._channel()))
        except (DatabaseError, psycopg.Error) as failure:
            self._tell(
                NotConnected(self, str(failure).strip(), isinstance(failure, UnsupportedDatabaseError))
            )
        except BaseException as failure:
            try:
                self._failures.add(failure)
            finally:
                self._tell(NotConnected(self, describe_error(failure)))

    def _channel(self) -> Channel:
        connection = connect(self.url, name=f"wakeboard {self.name}")
        try:
            for channel in self._listens:
                connection.execute(f'LISTEN "{channel}"'.encode())
            self.is_pooled = is_pooled(connection)
            return Channel(connection)
        except BaseException:
            connection.close()
            raise

    def adopt(self, channel: Channel) -> None:
        """Use the connection that arrived."""
        self.channel, self._connecting, self._pause = channel, False, FIRST_PAUSE
        self.absence.report_recovery()

    def failed(self, reason: str) -> None:
        """Wait longer before the next try."""
        self._connecting, self._retry_at = False, monotonic() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        self.absence.report_failure(reason)

    def drop(self) -> None:
        """Let go of a connection that is lost."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()


class LoopConnections:
    """Both connections, in the loop's selector."""

    def __init__(
        self,
        url: str,
        selector: selectors.BaseSelector,
        tell: Callable[[Connected | NotConnected], None],
        listens: Sequence[str],
    ) -> None:
        """``tell``: see ``LoopConnection``; ``listens``: the channels whose notifications are kept."""
        self._selector = selector
        self._notifications: deque[tuple[str, str]] = deque()
        self.claim = LoopConnection(url, "claim", tell, listens=listens)
        self.finish = LoopConnection(url, "finish", tell)

    @property
    def are_free(self) -> bool:
        """Whether both connections stand, and everything that was asked of them is answered."""
        return self.claim.is_free and self.finish.is_free

    def connected(self, connection: LoopConnection, channel: Channel) -> None:
        """Use the connection that was opened."""
        connection.adopt(channel)
        self._selector.register(channel.fileno(), selectors.EVENT_READ, lambda: self._pump(connection))

    def watch_writing(self) -> None:
        """Watch a connection for writing while its socket has not taken all of a statement yet."""
        for connection in (self.claim, self.finish):
            channel = connection.channel
            if channel is None or channel.is_lost:
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wants_write else 0)
            key = self._selector.get_key(channel.fileno())
            if key.events != wanted:
                self._selector.modify(channel.fileno(), wanted, key.data)

    def _pump(self, connection: LoopConnection) -> None:
        """Let a connection go on, and keep what it was notified of."""
        channel = connection.channel
        if channel is None:
            return
        try:
            self._notifications += channel.pump()
        except ChannelLost as lost:
            self._drop(connection)
            connection.absence.report_failure(
                "A database connection was lost; opening another.", error=str(lost)
            )

    def notifications(self) -> Iterator[tuple[str, str]]:
        """Give out each notification that came, as channel and payload."""
        while self._notifications:
            yield self._notifications.popleft()

    def look(self) -> None:
        """Drop what is lost or has been silent for too long; open what is missing."""
        for connection in (self.claim, self.finish):
            if connection.channel is not None and (
                connection.channel.is_lost or connection.channel.is_overdue()
            ):
                self._drop(connection)
                connection.absence.report_failure("The database does not answer; opening another connection.")
            connection.ensure()

    def listen_anew(self) -> None:
        """Open another connection for what hears nothing, unless a claim got under way on it just now.

        The notification was sent through another connection, so the database answers: a claim that is silent
        for long waits on a connection that is half open.
        """
        channel = self.claim.channel
        if channel is not None and (not channel.is_busy or channel.is_overdue(SILENT_CLAIM_SECONDS)):
            self._drop(self.claim)
            log.warn("No notification arrives; opening another connection.", connection=self.claim.name)

    def _drop(self, connection: LoopConnection) -> None:
        assert connection.channel is not None
        self._selector.unregister(connection.channel.fileno())
        connection.drop()

    def close(self) -> None:
        """Let go of both connections."""
        self.claim.drop()
        self.finish.drop()
