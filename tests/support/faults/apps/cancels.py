"""Handlers for the rows about cancelling: one that ends on time, one that listens, one that is deaf."""

from __future__ import annotations

import time

from tests.support.faults.apps.handlers import BACKOFF, deaf
from tests.support.faults.truth_file import now, tell
from wakeboard import Context, job

__all__ = ["deaf", "listener", "punctual"]


@job("punctual", backoff=BACKOFF, timeout=60, max_attempts=50)
def punctual(ctx: Context) -> None:
    """End at ``at`` seconds since boot and ``apart`` for each run before it, ready to stop all the time."""
    tell("start", ctx)
    at = ctx.payload["at"] + ctx.payload["n"] * ctx.payload["apart"]
    while (left := at - now()) > 0:
        ctx.check()
        # Near the end it looks each millisecond; before that it leaves the machine to those who are.
        time.sleep(min(left, 0.001) if left < 0.03 else 0.01)
    tell("end", ctx)


@job("listener", backoff=BACKOFF, timeout=300, max_attempts=50)
def listener(ctx: Context) -> None:
    """Wait until told to stop, and tell when that was."""
    tell("start", ctx)
    try:
        while True:
            ctx.check()
            time.sleep(0.001)
    finally:
        tell("told", ctx)
