"""A channel that comes back: opened by a short-lived thread, so that the loop never waits for a connect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import psycopg

from wakeboard.config.service_thread import FailureLog
from wakeboard.core.text.sanitize import described
from wakeboard.database.db import DatabaseError, UnfitError, connect, is_pooled
from wakeboard.database.outage_log import Absence
from wakeboard.runtime.loop.channel import Channel

# Within five seconds of the end of an outage, however long it was, a worker is at work again.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 4.0


@dataclass(frozen=True, slots=True)
class Connected:
    """A line has a fresh connection."""

    line: Line
    channel: Channel


@dataclass(frozen=True, slots=True)
class NotConnected:
    """An attempt to connect failed; ``is_final``: so will every other."""

    line: Line
    reason: str
    is_final: bool = False


class Line:
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
        self.absence = Absence(name)
        self._connecting = False
        self._failures = FailureLog(f"The connection {name!r} could not be opened and is tried again")
        self._retry_at = 0.0
        self._pause = FIRST_PAUSE

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
                self.failed(described(failure))

    def _open(self) -> None:
        """Connect and tell of it; whatever goes wrong, the loop hears of it and tries again."""
        try:
            self._tell(Connected(self, self._channel()))
        except (DatabaseError, psycopg.Error) as failure:
            self._tell(NotConnected(self, str(failure).strip(), isinstance(failure, UnfitError)))
        except BaseException as failure:
            try:
                self._failures.add(failure)
            finally:
                self._tell(NotConnected(self, described(failure)))

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
        self.absence.back()

    def failed(self, reason: str) -> None:
        """Wait longer before the next try."""
        self._connecting, self._retry_at = False, monotonic() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        self.absence.lost(reason)

    def drop(self) -> None:
        """Let go of a connection that is lost."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()
