"""Handlers for the rows of limits and order."""

from __future__ import annotations

import time

from tests.support.faults.truth_file import tell
from wakeboard import Context, job


@job("four_at_a_time", backoff="fixed 0.2s", timeout=60, max_running=4, max_attempts=50)
def four_at_a_time(ctx: Context) -> None:
    """A type of which four may run over all workers."""
    tell("start", ctx)
    time.sleep(ctx.payload["seconds"])
    tell("end", ctx)


@job("paused", backoff="fixed 0.2s")
@job("open", backoff="fixed 0.2s")
def short(ctx: Context) -> None:
    """Start and end at once."""
    tell("start", ctx)
