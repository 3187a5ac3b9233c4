"""The signals that ask a process to stop: before it handles them itself, and where the supervisor decides.

A process that serves records early stops first of all, and asks ``is_stop_requested`` when it can stop.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# A closed terminal sends SIGHUP; the others are sent by somebody who wants an end.
ENDS = (signal.SIGINT, signal.SIGTERM)
STOPS = (signal.SIGHUP, *ENDS)


def no_action(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. Unlike SIG_IGN this ends with an exec: a program started here gets the default actions."""


def set_no_action(*numbers: signal.Signals) -> None:
    """Give these signals no action from now on. One that is ignored already, as by nohup, stays ignored."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, no_action)


class StopInterrupt(KeyboardInterrupt):
    """A stop that interrupts the main thread.

    Not KeyboardInterrupt itself: where that comes out of an ``exec`` of text, as a dataclass is made by,
    Python ends with SIGINT although somebody caught it.
    """


class _EarlyStop:
    """Whether a stop came while this process started, and whether one interrupts it."""

    is_requested = is_interrupting = False

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        self.is_requested = True
        if self.is_interrupting:
            raise StopInterrupt


_early = _EarlyStop()


def record_early_stops() -> None:
    """Only record SIGINT and SIGTERM, until other handlers are set.

    The first call of a process that serves: by default SIGTERM ends it with -15 in the middle of its start.
    """
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _early.handle)


def is_stop_requested() -> bool:
    """Return whether a stop has come since ``record_early_stops``."""
    return _early.is_requested


def exit_if_requested() -> None:
    """End this process with code 0 when a stop has come since ``record_early_stops``."""
    if _early.is_requested:
        raise SystemExit(0)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a stop raise StopInterrupt within the block, which may wait for long; a recorded one at once."""
    try:
        _early.is_interrupting = True
        if _early.is_requested:
            raise StopInterrupt
        yield
    finally:
        _early.is_interrupting = False


def block() -> None:
    """Let stops wait from now on, also over an exec, until ``unblock``."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)


def unblock() -> None:
    """Deliver the stops that ``block`` let wait, and those that follow."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


@contextmanager
def blocked() -> Iterator[None]:
    """Let stops wait within the block, and in a program that it starts until that unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """Ignore stops from now on, in a process that ends.

    Python restores the default actions before it is gone, and a second stop would kill it then.
    """
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
