"""A quick handler that goes on for as long as somebody wants."""

from __future__ import annotations

import time
from pathlib import Path

from wakeboard import Context, job


@job("task", backoff="fixed 1s")
def task(ctx: Context) -> None:
    """End at once, after some seconds, or when the payload's file is there."""
    time.sleep(ctx.payload.get("seconds", 0))
    while "until" in ctx.payload and not Path(ctx.payload["until"]).exists():
        time.sleep(0.005)


@job("once", max_attempts=1)
def once(ctx: Context) -> None:
    """End at once."""
