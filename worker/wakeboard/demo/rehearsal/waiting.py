"""Waiting for a condition, never for a time; and Ctrl-C, which ends a wait and is heard nowhere else.

A signal is only noted: raised where it arrives, it could be swallowed by whatever runs at that moment.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
LOOK_SECONDS = 0.02
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RehearsalError(Exception):
    """The rehearsal could not be carried to its end; ``str()`` is a sentence that says where it stuck."""


class Waiter:
    """Waits for conditions, until somebody interrupts."""

    def __init__(self) -> None:
        self._is_interrupted = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Note Ctrl-C, SIGTERM and SIGHUP while the block lasts; afterwards they do what they did before."""
        # What our starter ignores (nohup) stays ignored.
        heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._note) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._is_interrupted = True

    def check(self) -> None:
        """Raise KeyboardInterrupt when somebody has interrupted."""
        if self._is_interrupted:
            raise KeyboardInterrupt

    def until(self, what: str, condition: Callable[[], T], seconds: float) -> T:
        """Return the first true answer of ``condition``.

        Raises RehearsalError, naming ``what``, after ``seconds``, and KeyboardInterrupt.
        """
        answers: list[T] = []

        def is_true() -> bool:
            self.check()
            answers[:] = [condition()]
            return bool(answers[0])

        if not comes_true(is_true, seconds):
            raise RehearsalError(f"Waited {seconds:g} s in vain until {what}.")
        return answers[0]

    def sees(self, condition: Callable[[], object], seconds: float) -> bool:
        """Tell whether ``condition`` comes true within ``seconds``. Raises KeyboardInterrupt."""

        def is_true() -> bool:
            self.check()
            return bool(condition())

        return comes_true(is_true, seconds)


def comes_true(condition: Callable[[], object], seconds: float) -> bool:
    """Tell whether ``condition`` comes true within ``seconds``; nobody interrupts."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True
