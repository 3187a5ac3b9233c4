"""Waits for conditions; Ctrl-C and stop signals end a wait.

A signal is only noted and raised between two looks: raised where it arrives, other code could swallow it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
PAUSE_SECONDS = 0.02
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RehearsalError(Exception):
    """The rehearsal could not be carried to its end; ``str()`` is a sentence that says where it stuck."""


class Waiter:
    """Waits for conditions until a signal interrupts."""

    def __init__(self) -> None:
        self._is_interrupted = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Note SIGINT, SIGTERM and SIGHUP while the block lasts; restore their handlers afterwards."""
        # What the parent process ignores (nohup) stays ignored.
        signals = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._interrupt) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._is_interrupted = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal came."""
        if self._is_interrupted:
            raise KeyboardInterrupt

    def wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Return whether ``condition`` becomes true within ``seconds``. Raises KeyboardInterrupt."""

        def is_true() -> bool:
            self.check()
            return bool(condition())

        return wait_until(is_true, seconds)

    def require(self, what: str, condition: Callable[[], T], seconds: float) -> T:
        """Return the first true value of ``condition``.

        Raises RehearsalError, naming ``what``, after ``seconds``, and KeyboardInterrupt.
        """
        values: list[T] = []

        def is_true() -> bool:
            values[:] = [condition()]
            return bool(values[0])

        if not self.wait(is_true, seconds):
            raise RehearsalError(f"Waited {seconds:g} s in vain until {what}.")
        return values[0]


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Return whether ``condition`` becomes true within ``seconds``, whatever signals come."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_SECONDS)
    return True
