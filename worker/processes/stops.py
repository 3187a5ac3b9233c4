"""The signals that ask a process to stop, in processes whose end is the supervisor's to say."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def unmoved(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. A signal that is ignored stays so over an exec; one that has a function is as it was born,
    so a program that is started here finds its signals as cron would leave them."""


def outlast(*numbers: signal.Signals) -> None:
    """Let these signals pass from now on. What was ignored from the start, as by nohup, stays ignored."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, unmoved)


@contextmanager
def held_back() -> Iterator[None]:
    """Let stops wait while the block lasts, here and in a program that it starts: until that lets them in."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
