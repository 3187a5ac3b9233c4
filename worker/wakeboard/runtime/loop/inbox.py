"""What other threads and signals have to say to the loop, which wakes up for each message."""

from __future__ import annotations

import os
import selectors
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A signal or a person asked the worker to stop."""

    why: str


@dataclass(frozen=True, slots=True)
class WorkMayBeDue:
    """Something was done that may have made runs due."""


@dataclass(frozen=True, slots=True)
class Looked:
    """Somebody asked the database at ``asked_at`` (monotonic) whether anything could be claimed."""

    has_work: bool
    asked_at: float


@dataclass(frozen=True, slots=True)
class HearsNothing:
    """A notification to this worker did not come back."""


class Inbox:
    """Messages in the order in which they came. Only ``tell`` may be called from another thread.

    A byte written to ``rope``, as Python does for a signal, wakes the loop as well.
    """

    def __init__(self) -> None:
        self._messages: deque[object] = deque()
        self._bell, self.rope = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Let the loop's selector wake up for a message; the key's data is what to call then."""
        selector.register(self._bell, selectors.EVENT_READ, self._silence)

    def tell(self, message: object) -> None:
        """Leave a message, from any thread, and wake the loop."""
        self._messages.append(message)
        try:
            os.write(self.rope, b"x")
        except BlockingIOError:
            pass

    def messages(self) -> Iterator[object]:
        """Give out every message, those too that come meanwhile."""
        while self._messages:
            yield self._messages.popleft()

    def _silence(self) -> None:
        try:
            os.read(self._bell, 65_536)
        except BlockingIOError:
            pass
