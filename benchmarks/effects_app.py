"""Handlers that leave something beside their run: an effect that happens once, a row of theirs, a failure."""

from sqlalchemy import text

from wakeboard import Context, Permanent, job

WRITE = text("INSERT INTO public.written (run_id) VALUES (:run_id)")


@job("once")
def once(ctx: Context) -> None:
    """Make an effect that costs nothing."""
    ctx.once("mail", lambda: None)


@job("transaction")
def transaction(ctx: Context) -> None:
    """Write a row together with the run's finish."""
    with ctx.transaction() as connection:
        connection.execute(WRITE, {"run_id": ctx.run_id})


@job("failure")
def failure(ctx: Context) -> None:
    """Fail for good."""
    raise Permanent("refused", "The card was refused.")
