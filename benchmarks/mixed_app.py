"""Handlers that wait as for an answer from elsewhere, of twenty types: nine of ten 1 ms, the tenth 200 ms."""

from time import sleep

from wakeboard import Context, job


def quick(ctx: Context) -> None:
    """Wait for a quick answer."""
    sleep(0.001)


def slow(ctx: Context) -> None:
    """Wait for a slow answer."""
    sleep(0.2)


for number in range(20):
    job(f"t{number:04}")(slow if number % 10 == 9 else quick)
