"""Wakeboard's worker: owns the tables and every write. This module is the handler author's front door.

Names are looked up when first used, so that ``import worker`` costs nothing in a process that needs few.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.context import Context as Context
    from worker.hooks import on_child_exit as on_child_exit
    from worker.inline import run_now as run_now
    from worker.outcome import Cancelled as Cancelled
    from worker.outcome import DeadlineExceeded as DeadlineExceeded
    from worker.outcome import Permanent as Permanent
    from worker.outcome import Retryable as Retryable
    from worker.plain_json import PlainEncoder as PlainEncoder
    from worker.pool import Pool as Pool
    from worker.pool import PoolFull as PoolFull
    from worker.pool import PoolStopped as PoolStopped
    from worker.registry import job as job
    from worker.transitions.enqueue import KeyTaken as KeyTaken
    from worker.transitions.enqueue import enqueue as enqueue
    from worker.transitions.enqueue_many import enqueue_many as enqueue_many
    from worker.transitions.newrun import EnqueueError as EnqueueError

__version__ = "0.1.0"
_ROOMS = {
    "Cancelled": "worker.outcome",
    "Context": "worker.context",
    "DeadlineExceeded": "worker.outcome",
    "EnqueueError": "worker.transitions.newrun",
    "KeyTaken": "worker.transitions.enqueue",
    "Permanent": "worker.outcome",
    "PlainEncoder": "worker.plain_json",
    "Pool": "worker.pool",
    "PoolFull": "worker.pool",
    "PoolStopped": "worker.pool",
    "Retryable": "worker.outcome",
    "enqueue": "worker.transitions.enqueue",
    "enqueue_many": "worker.transitions.enqueue_many",
    "job": "worker.registry",
    "on_child_exit": "worker.hooks",
    "run_now": "worker.inline",
}
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
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module 'worker' has no attribute {name!r}")
