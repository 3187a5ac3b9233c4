"""The loop's two connections: one claims and listens, one writes. Losing either is a sentence in the log and
a new one soon.
"""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from wakeboard.config import log
from wakeboard.runtime.loop.channel import Channel, ChannelLost
from wakeboard.runtime.loop.line import Connected, Line, NotConnected

# Between two proofs of hearing, so that the second failure in a row finds a silent claim.
SILENT_CLAIM_SECONDS = 7.0


class Lines:
    """The two lines, in the loop's selector."""

    def __init__(
        self,
        url: str,
        selector: selectors.BaseSelector,
        tell: Callable[[Connected | NotConnected], None],
        listens: Sequence[str],
    ) -> None:
        """``tell``: see ``Line``; ``listens``: the channels of which ``notifications`` gives what came."""
        self._selector = selector
        self._notifications: deque[tuple[str, str]] = deque()
        self.claim = Line(url, "claim", tell, listens=listens)
        self.finish = Line(url, "finish", tell)

    @property
    def are_free(self) -> bool:
        """Whether both connections stand, and everything that was asked of them is answered."""
        return self.claim.is_free and self.finish.is_free

    def connected(self, line: Line, channel: Channel) -> None:
        """Use the connection that a line has opened."""
        line.adopt(channel)
        self._selector.register(channel.fileno(), selectors.EVENT_READ, lambda: self._pump(line))

    def watch_writing(self) -> None:
        """Watch a line for writing while its socket has not taken all of a statement yet."""
        for line in (self.claim, self.finish):
            channel = line.channel
            if channel is None or channel.is_lost:
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wants_write else 0)
            key = self._selector.get_key(channel.fileno())
            if key.events != wanted:
                self._selector.modify(channel.fileno(), wanted, key.data)

    def _pump(self, line: Line) -> None:
        """Let a connection go on, and keep what it was notified of."""
        channel = line.channel
        if channel is None:
            return
        try:
            self._notifications += channel.pump()
        except ChannelLost as lost:
            self._drop(line)
            line.absence.lost("A database connection was lost; opening another.", error=str(lost))

    def notifications(self) -> Iterator[tuple[str, str]]:
        """Give out each notification that came, as channel and payload."""
        while self._notifications:
            yield self._notifications.popleft()

    def look(self) -> None:
        """Drop what is lost or has been silent for too long; open what is missing."""
        for line in (self.claim, self.finish):
            if line.channel is not None and (line.channel.is_lost or line.channel.is_overdue()):
                self._drop(line)
                line.absence.lost("The database does not answer; opening another connection.")
            line.ensure()

    def listen_anew(self) -> None:
        """Open another connection for what hears nothing, unless a claim got under way on it just now.

        The notification was sent through another connection, so the database answers: a claim that is silent
        for long waits on a connection that is half open.
        """
        channel = self.claim.channel
        if channel is not None and (not channel.is_busy or channel.is_overdue(SILENT_CLAIM_SECONDS)):
            self._drop(self.claim)
            log.warn("No notification arrives; opening another connection.", connection=self.claim.name)

    def _drop(self, line: Line) -> None:
        assert line.channel is not None
        self._selector.unregister(line.channel.fileno())
        line.drop()

    def close(self) -> None:
        """Let go of both connections."""
        self.claim.drop()
        self.finish.drop()
