"""The loop's inbox: messages from other threads and from signal handlers, each of which wakes the loop."""

from __future__ import annotations

import os
import selectors
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wakeboard.runtime.loop.channel import Channel
    from wakeboard.runtime.loop.connections import LoopConnection


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A signal or a person asks the worker to stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkHint:
    """A duty did something that may have made runs due."""


@dataclass(frozen=True, slots=True)
class WorkCheck:
    """A poll asked the database at ``checked_at`` (monotonic seconds) whether anything could be claimed."""

    has_work: bool
    checked_at: float


@dataclass(frozen=True, slots=True)
class NotifyTimeout:
    """A notification that this worker sent to itself did not arrive."""


@dataclass(frozen=True, slots=True)
class LeaseLoss:
    """Another worker took the run over, or its row is gone."""

    run_id: int
    lease_epoch: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """A person asks the run to stop."""

    run_id: int
    lease_epoch: int


@dataclass(frozen=True, slots=True)
class NewConnection:
    """A connection of the loop was opened."""

    connection: LoopConnection
    channel: Channel


@dataclass(frozen=True, slots=True)
class ConnectFailure:
    """A connection of the loop could not be opened; ``is_final``: no later try can succeed."""

    connection: LoopConnection
    reason: str
    is_final: bool = False


Message = (
    StopRequest
    | WorkHint
    | WorkCheck
    | NotifyTimeout
    | LeaseLoss
    | CancelRequest
    | NewConnection
    | ConnectFailure
)
Post = Callable[[Message], None]


class Inbox:
    """Messages in the order of their arrival. Only ``post`` may be called from other threads.

    A byte written to ``wakeup_fd`` wakes the loop too: Python does that for a signal.
    """

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._read_fd, self.wakeup_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Let ``selector`` wake up for a message; the key's data is the function to call then."""
        selector.register(self._read_fd, selectors.EVENT_READ, self._drain)

    def post(self, message: Message) -> None:
        """Add a message and wake the loop."""
        self._messages.append(message)
        try:
            os.write(self.wakeup_fd, b"x")
        except BlockingIOError:
            pass

    def messages(self) -> Iterator[Message]:
        """Yield every message, including those that arrive meanwhile."""
        while self._messages:
            yield self._messages.popleft()

    def _drain(self) -> None:
        try:
            os.read(self._read_fd, 65_536)
        except BlockingIOError:
            pass
