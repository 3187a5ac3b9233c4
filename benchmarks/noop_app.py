"""The handler of the benchmarks: nothing at all."""

from wakeboard import Context, job


@job("noop")
def noop(ctx: Context) -> None:
    """Do nothing."""
