"""The loop's two connections: ``claim`` claims and listens, ``finish`` writes results.

A lost connection is logged and replaced. A short-lived thread opens the new one, so the loop never waits for
a connect.
"""

from __future__ import annotations

import selectors
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from time import monotonic

import psycopg

from wakeboard.config import log
from wakeboard.config.service_thread import FailureLog
from wakeboard.core.text.sanitize import describe_error
from wakeboard.database.db import DatabaseError, UnsupportedDatabaseError, connect, is_pooled
from wakeboard.database.outage_log import OutageLog
from wakeboard.runtime.loop.channel import Channel, ChannelLost
from wakeboard.runtime.loop.inbox import ConnectFailure, NewConnection, Post

# The longest pause between two tries: a worker is back at work within five seconds of the end of an outage.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 4.0
# Shorter than the interval of two notify checks, so a claim that is silent at the second failure is found.
SILENT_CLAIM_SECONDS = 7.0


class LoopConnection:
    """One named connection of the loop, which is opened again after a loss."""

    def __init__(self, url: str, name: str, post: Post, listens: Sequence[str] = ()) -> None:
        """
        Args:
            url: The database's libpq URL.
            name: What logs and ``pg_stat_activity`` call the connection.
            post: Called from another thread with the result of each try to connect.
            listens: The notification channels to listen on.
        """
        self.url = url
        self.name = name
        self._post = post
        self._listens = listens
        self.channel: Channel | None = None
        self.is_pooled = False
        self.outage_log = OutageLog(name)
        self._is_connecting = False
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
        """Whether no script is under way, connected or not."""
        return self.channel is None or not self.channel.is_busy

    def ensure(self) -> None:
        """Start to connect when there is no connection and the pause after the last failure is over."""
        if self.channel is None and not self._is_connecting and monotonic() >= self._retry_at:
            self._is_connecting = True
            try:
                threading.Thread(target=self._connect, name=f"connect {self.name}", daemon=True).start()
            except RuntimeError as failure:
                # The system has no room for a thread.
                self.fail(describe_error(failure))

    def _connect(self) -> None:
        """Connect and post the result, whatever goes wrong."""
        try:
            self._post(NewConnection(self, self._open_channel()))
        except (DatabaseError, psycopg.Error) as failure:
            self._post(
                ConnectFailure(self, str(failure).strip(), isinstance(failure, UnsupportedDatabaseError))
            )
        except BaseException as failure:
            try:
                self._failures.add(failure)
            finally:
                self._post(ConnectFailure(self, describe_error(failure)))

    def _open_channel(self) -> Channel:
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
        """Use the connection that was opened."""
        self.channel, self._is_connecting, self._pause = channel, False, FIRST_PAUSE
        self.outage_log.report_recovery()

    def fail(self, reason: str) -> None:
        """Note a failure to connect, and wait longer before the next try."""
        self._is_connecting, self._retry_at = False, monotonic() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        self.outage_log.report_failure(reason)

    def close(self) -> None:
        """Close the connection, if there is one."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()


class LoopConnections:
    """Both connections, registered in the loop's selector."""

    def __init__(
        self, url: str, selector: selectors.BaseSelector, post: Post, listens: Sequence[str]
    ) -> None:
        """See ``LoopConnection``; ``listens`` are the channels of the connection ``claim``."""
        self._selector = selector
        self._notifications: deque[tuple[str, str]] = deque()
        self.claim = LoopConnection(url, "claim", post, listens)
        self.finish = LoopConnection(url, "finish", post)

    @property
    def are_free(self) -> bool:
        """Whether both connections are up and no answer is outstanding."""
        return self.claim.is_free and self.finish.is_free

    def adopt(self, connection: LoopConnection, channel: Channel) -> None:
        """Use the connection that was opened."""
        connection.adopt(channel)
        self._selector.register(channel.fileno(), selectors.EVENT_READ, lambda: self._pump(connection))

    def watch_writing(self) -> None:
        """Watch a connection for writing while its socket has not accepted all of a statement yet."""
        for connection in (self.claim, self.finish):
            channel = connection.channel
            if channel is None or channel.is_lost:
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wants_write else 0)
            key = self._selector.get_key(channel.fileno())
            if key.events != wanted:
                self._selector.modify(channel.fileno(), wanted, key.data)

    def _pump(self, connection: LoopConnection) -> None:
        """Process what a connection received; keep its notifications."""
        channel = connection.channel
        if channel is None:
            return
        try:
            self._notifications += channel.pump()
        except ChannelLost as lost:
            self._drop(connection)
            connection.outage_log.report_failure(
                "A database connection was lost; opening another.", error=str(lost)
            )

    def notifications(self) -> Iterator[tuple[str, str]]:
        """Yield each notification that arrived, as channel and payload."""
        while self._notifications:
            yield self._notifications.popleft()

    def check(self) -> None:
        """Drop connections that are lost or silent for too long; open those that are missing."""
        for connection in (self.claim, self.finish):
            if connection.channel is not None and (
                connection.channel.is_lost or connection.channel.is_overdue()
            ):
                self._drop(connection)
                connection.outage_log.report_failure(
                    "The database does not answer; opening another connection."
                )
            connection.ensure()

    def renew_listener(self) -> None:
        """Replace the listening connection, on which a notification did not arrive.

        A claim that got under way just now is left alone. One that is silent for long waits on a half-open
        connection: the notification was sent through another connection, so the database answers.
        """
        channel = self.claim.channel
        if channel is not None and (not channel.is_busy or channel.is_overdue(SILENT_CLAIM_SECONDS)):
            self._drop(self.claim)
            log.warn("No notification arrives; opening another connection.", connection=self.claim.name)

    def _drop(self, connection: LoopConnection) -> None:
        assert connection.channel is not None
        self._selector.unregister(connection.channel.fileno())
        connection.close()

    def close(self) -> None:
        """Close both connections."""
        self.claim.close()
        self.finish.close()
