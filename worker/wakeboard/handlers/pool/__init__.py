"""The in-process pool: threads for work that may be lost when the process ends. Writes no table.

It calls the same `@job` handlers as the database worker by the same code, and retries by the same rules.
Unlike a worker's process, a thread cannot be stopped and has no `memory_mb`. A deadline makes `ctx.check()`
raise and cuts an `async def` at its next `await`. A handler that ignores both is abandoned: its job ends as
dead with `timed_out` and is not tried again, its answer is refused, and another thread takes its place.
Threads and locks do not survive a fork: make a pool, or use it for the first time, after the fork.
"""

from __future__ import annotations

from wakeboard.handlers.pool.future import NoResult, PoolFuture
from wakeboard.handlers.pool.metrics import PoolMetrics, Report, Running
from wakeboard.handlers.pool.pool import Pool, run_until_signal
from wakeboard.handlers.pool.state import PoolFull, PoolStopped

__all__ = [
    "NoResult",
    "Pool",
    "PoolFull",
    "PoolFuture",
    "PoolMetrics",
    "PoolStopped",
    "Report",
    "Running",
    "run_until_signal",
]
