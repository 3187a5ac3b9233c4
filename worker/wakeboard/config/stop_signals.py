"""The signals that ask a process to stop: in processes whose end is the supervisor's to say, and in those
that serve, before they look after them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Whoever sends these wants an end; a terminal that is closed sends the first of STOPS.
ENDS = (signal.SIGINT, signal.SIGTERM)
STOPS = (signal.SIGHUP, *ENDS)


def unmoved(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. A signal that is ignored stays so over an exec; one that has a function is as it was born,
    so a program that is started here finds its signals as cron would leave them."""


def outlast(*numbers: signal.Signals) -> None:
    """Let these signals pass from now on. What was ignored from the start, as by nohup, stays ignored."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, unmoved)


class StopInterrupt(KeyboardInterrupt):
    """A stop that interrupts what goes on.

    Where KeyboardInterrupt itself comes out of an `exec` of text, as a dataclass is made by, Python ends with
    SIGINT although somebody caught it.
    """


class _Early:
    """Whether a stop came while this process started, and whether one interrupts it."""

    was_asked = interrupts = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        self.was_asked = True
        if self.interrupts:
            raise StopInterrupt


_early = _Early()


def take_note() -> None:
    """Only note SIGINT and SIGTERM, until somebody sets other handlers and asks `was_asked`.

    First of all in a process that serves: the system's own answer to SIGTERM ends it with -15 in the middle
    of its start.
    """
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _early.note)


def was_asked() -> bool:
    """Whether a stop has come since `take_note`."""
    return _early.was_asked


def leave_if_asked() -> None:
    """End this process in order when a stop has come since `take_note`."""
    if _early.was_asked:
        raise SystemExit(0)


@contextmanager
def interrupting() -> Iterator[None]:
    """Let a stop raise `StopInterrupt` while the block lasts, which may wait for long; one that was noted
    before does so at once."""
    try:
        _early.interrupts = True
        if _early.was_asked:
            raise StopInterrupt
        yield
    finally:
        _early.interrupts = False


def hold_back() -> None:
    """Let stops wait from now on, also over an exec, until `let_in`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)


def let_in() -> None:
    """Let in what `hold_back` let wait."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def end() -> None:
    """Ignore stops from now on, in a process that ends: Python gives its handlers back before it is gone, and
    who says it once more then would kill it."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def holding_back() -> Iterator[None]:
    """Let stops wait while the block lasts, here and in a program that it starts: until that lets them in."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
