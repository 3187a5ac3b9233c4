"""The in-process pool: N threads for work that may be lost when the process ends. Writes no table.

The same `@job` handlers as the database worker's, called by the same code, judged by the same rule of retry.
What a pool of threads cannot do, and a worker's processes can: stop a handler that listens to nothing. Its
deadline makes `ctx.check()` raise and cuts an `async def` at its next `await`; a handler that heeds neither
is given up: the job ends as dead with `timed_out`, is never tried again beside itself, what it returns later
is refused, and another thread takes its place. Nor can a thread hold a run to `memory_mb`. Threads and locks
do not survive a fork: make a pool, or use it for the first time, after it.
"""

from __future__ import annotations

from wakeboard.handlers.pool.future import NoResult, Ticket
from wakeboard.handlers.pool.metrics import PoolMetrics, Report, Running
from wakeboard.handlers.pool.pool import Pool, PoolFull, PoolStopped, run_until_signal

__all__ = [
    "NoResult",
    "Pool",
    "PoolFull",
    "PoolMetrics",
    "PoolStopped",
    "Report",
    "Running",
    "Ticket",
    "run_until_signal",
]
