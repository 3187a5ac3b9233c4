"""The handler that `benchmarks/children.py` runs."""

from __future__ import annotations

from worker import Context, job


@job("noop")
def noop(ctx: Context) -> None:
    """Do nothing."""
