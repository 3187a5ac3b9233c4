"""The end of a program that is a pool and nothing else: SIGINT or SIGTERM, stop, wait, leave."""

from __future__ import annotations

import signal
from queue import SimpleQueue

from wakeboard.config import log
from wakeboard.handlers.pool.pool import Pool
from wakeboard.handlers.pool.report import Report


def run_until_signal(pool: Pool, *, drain: bool = True, deadline_seconds: float | None = None) -> Report:
    """Sleep until SIGINT or SIGTERM, then stop the pool and wait for it. For the main thread alone.

    `drain` and `deadline_seconds` as in `Pool.stop` and `Pool.wait`. A handler of a signal may run in the
    middle of anything, so it does no more than to put the number where the main thread waits for it.
    """
    came: SimpleQueue[int] = SimpleQueue()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda which, _frame: came.put(which)) for number in numbers}
    try:
        why = signal.Signals(came.get()).name
        log.note("Stopping: no more jobs.", why=why, running=pool.metrics().in_flight)
        pool.stop(drain=drain)
        return pool.wait(deadline_seconds)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
