"""A quick handler that goes on for as long as somebody wants."""

from __future__ import annotations

import time
from pathlib import Path

from wakeboard import Context, job


@job("task", backoff="fixed 1s")
def task(ctx: Context) -> None:
    """End at once, or when the payload's file is there."""
    while "until" in ctx.payload and not Path(ctx.payload["until"]).exists():
        time.sleep(0.005)
