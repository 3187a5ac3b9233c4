"""The name handler authors import: ``from wakeboard import job, enqueue, Context``.

It is ``worker``'s front door, and as light: a name is looked up when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import worker

if TYPE_CHECKING:
    from worker import (
        Cancelled,
        Context,
        DeadlineExceeded,
        EnqueueError,
        KeyTaken,
        Permanent,
        PlainEncoder,
        Pool,
        PoolFull,
        PoolStopped,
        Retryable,
        enqueue,
        enqueue_many,
        job,
        on_child_exit,
        run_now,
    )

__all__ = [
    "Cancelled",
    "Context",
    "DeadlineExceeded",
    "EnqueueError",
    "KeyTaken",
    "Permanent",
    "PlainEncoder",
    "Pool",
    "PoolFull",
    "PoolStopped",
    "Retryable",
    "enqueue",
    "enqueue_many",
    "job",
    "on_child_exit",
    "run_now",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(worker, name)
    raise AttributeError(f"module 'wakeboard' has no attribute {name!r}")
