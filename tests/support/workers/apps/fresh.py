"""Handlers that see how many runs their process has had, for the tests of types with one for each run."""

from __future__ import annotations

import os
from typing import Any

from wakeboard import Context, job

RUNS = {"so far": 0}


@job("shared")
def shared(ctx: Context) -> Any:
    """Share a process with others."""
    return seen()


@job("alone", fresh=True)
def alone(ctx: Context) -> Any:
    """Have a process of its own."""
    if ctx.payload.get("fail") and ctx.attempt == 1:
        seen()
        raise ValueError("once")
    return seen()


@job("alone_async", fresh=True)
async def alone_async(ctx: Context) -> Any:
    """Have a process of its own, with a loop of its own."""
    return seen()


def seen() -> Any:
    """Return the process, and how many runs it had before this one."""
    RUNS["so far"] += 1
    return [os.getpid(), RUNS["so far"] - 1]
