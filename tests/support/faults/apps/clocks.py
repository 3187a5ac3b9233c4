"""Handlers for the rows about clocks: they tell what time they think it is, and wait for their deadline."""

from __future__ import annotations

import time

from tests.support.faults.apps.handlers import BACKOFF, effect, hang, note, slow, unsteady
from tests.support.faults.fake_clock import TIMEOUT_SECONDS
from tests.support.faults.truth_file import tell
from wakeboard import Context, enqueue, job

__all__ = ["asked", "effect", "hang", "note", "patient", "postpone", "slow", "unsteady"]


@job("asked", backoff=BACKOFF, timeout=60)
def asked(ctx: Context) -> float:
    """Say what time it is, after a while in which others get their turn."""
    tell("start", ctx)
    time.sleep(0.2)
    tell("end", ctx)
    return time.time()


@job("postpone", backoff=BACKOFF, timeout=60)
def postpone(ctx: Context) -> int:
    """Enqueue a run that is due in one second."""
    tell("start", ctx)
    return enqueue(None, "note", {}, delay=1)


@job("patient", timeout=TIMEOUT_SECONDS, max_attempts=1)
def patient(ctx: Context) -> None:
    """Wait for the deadline, and tell when it came."""
    tell("start", ctx)
    try:
        while True:
            ctx.check()
            time.sleep(0.01)
    finally:
        tell("deadline", ctx)
