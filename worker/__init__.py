"""Wakeboard's worker: owns the tables and every write. This module is the handler author's front door.

Names are looked up when first used, so that ``import worker`` costs nothing in a process that needs few.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.context import Context as Context
    from worker.inline import run_now as run_now
    from worker.outcome import Permanent as Permanent
    from worker.outcome import Retryable as Retryable
    from worker.pool import Pool as Pool
    from worker.registry import job as job
    from worker.transitions.enqueue import enqueue as enqueue
    from worker.transitions.enqueue_many import enqueue_many as enqueue_many

__version__ = "0.1.0"
_ROOMS = {
    "Context": "worker.context",
    "Permanent": "worker.outcome",
    "Pool": "worker.pool",
    "Retryable": "worker.outcome",
    "enqueue": "worker.transitions.enqueue",
    "enqueue_many": "worker.transitions.enqueue_many",
    "job": "worker.registry",
    "run_now": "worker.inline",
}
__all__ = ["Context", "Permanent", "Pool", "Retryable", "enqueue", "enqueue_many", "job", "run_now"]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module 'worker' has no attribute {name!r}")
