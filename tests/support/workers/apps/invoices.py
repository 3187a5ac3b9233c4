"""Business code that knows no engine."""

from __future__ import annotations

from typing import Any

from wakeboard import Context, Permanent, job


@job("total", timeout=30)
def total(ctx: Context) -> int:
    """Add an invoice up."""
    ctx.check()
    if not ctx.payload["lines"]:
        raise Permanent("no_lines", f"Invoice {ctx.payload['invoice_id']} has no lines.")
    return int(ctx.once("total", lambda: sum(ctx.payload["lines"])))


@job("who", timeout=60)
async def who(ctx: Context) -> list[Any]:
    """Say what the context knows."""
    return [ctx.job_type, ctx.attempt, ctx.key, 50 < ctx.seconds_left <= 60]


@job("who_fails")
async def who_fails(ctx: Context) -> None:
    """Miss a value."""
    raise KeyError("who")


@job("whose_day")
def whose_day(ctx: Context) -> str:
    """Say the day that the schedule meant."""
    return ctx.scheduled_for.date().isoformat()  # type: ignore[union-attr]
