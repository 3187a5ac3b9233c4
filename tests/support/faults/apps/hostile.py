"""Handlers for the rows about data: one echoes, one answers with nonsense, one raises what nobody expects."""

from __future__ import annotations

import sys
from typing import Any

from tests.support.faults.hostile_values import FAILURES, hostile_value
from tests.support.faults.truth_file import tell
from wakeboard import Context, job


@job("echo", max_attempts=1)
def echo(ctx: Context) -> None:
    """Tell what payload it got."""
    tell("start", ctx)


@job("babble", max_attempts=1, timeout=60)
def babble(ctx: Context) -> Any:
    """Return, print, log and report hostile values."""
    tell("start", ctx)
    value = hostile_value(ctx.payload["seed"])
    if isinstance(value, str):
        print(value)
        ctx.log.info("%s", value[:1000])
        sys.stdout.buffer.write(value[:1000].encode("utf-16", "surrogatepass"))
    elif isinstance(value, int | float):
        ctx.progress(value, value)  # type: ignore[arg-type]
        ctx.progress(-1, 10**30)
    return value


@job("fall", max_attempts=1, timeout=60)
def fall(ctx: Context) -> None:
    """Fail in the way that the payload names."""
    tell("start", ctx)
    FAILURES[ctx.payload["way"]][0]()
