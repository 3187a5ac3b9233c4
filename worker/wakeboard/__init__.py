"""What handler authors import: ``from wakeboard import job, enqueue, Context``.

Names are looked up when first used, so that ``import wakeboard`` costs nothing in a process that needs few.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wakeboard.core.hooks import on_child_exit as on_child_exit
    from wakeboard.core.outcome import Cancelled as Cancelled
    from wakeboard.core.outcome import DeadlineExceeded as DeadlineExceeded
    from wakeboard.core.outcome import Permanent as Permanent
    from wakeboard.core.outcome import Retryable as Retryable
    from wakeboard.core.run_spec import EnqueueError as EnqueueError
    from wakeboard.core.text.plain_json import PlainEncoder as PlainEncoder
    from wakeboard.handlers.context import Context as Context
    from wakeboard.handlers.pool import NoResult as NoResult
    from wakeboard.handlers.pool import Pool as Pool
    from wakeboard.handlers.pool import PoolFull as PoolFull
    from wakeboard.handlers.pool import PoolStopped as PoolStopped
    from wakeboard.handlers.pool import run_until_signal as run_until_signal
    from wakeboard.handlers.registry import job as job
    from wakeboard.handlers.testing import run_now as run_now
    from wakeboard.queue.enqueue import KeyTaken as KeyTaken
    from wakeboard.queue.enqueue import enqueue as enqueue
    from wakeboard.queue.enqueue_many import enqueue_many as enqueue_many

__version__ = "0.1.0"
_ROOMS = {
    "Cancelled": "wakeboard.core.outcome",
    "Context": "wakeboard.handlers.context",
    "DeadlineExceeded": "wakeboard.core.outcome",
    "EnqueueError": "wakeboard.core.run_spec",
    "KeyTaken": "wakeboard.queue.enqueue",
    "Permanent": "wakeboard.core.outcome",
    "NoResult": "wakeboard.handlers.pool",
    "PlainEncoder": "wakeboard.core.text.plain_json",
    "Pool": "wakeboard.handlers.pool",
    "PoolFull": "wakeboard.handlers.pool",
    "PoolStopped": "wakeboard.handlers.pool",
    "Retryable": "wakeboard.core.outcome",
    "enqueue": "wakeboard.queue.enqueue",
    "enqueue_many": "wakeboard.queue.enqueue_many",
    "job": "wakeboard.handlers.registry",
    "on_child_exit": "wakeboard.core.hooks",
    "run_now": "wakeboard.handlers.testing",
    "run_until_signal": "wakeboard.handlers.pool",
}
__all__ = [
    "Cancelled",
    "Context",
    "DeadlineExceeded",
    "EnqueueError",
    "KeyTaken",
    "NoResult",
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
    "run_until_signal",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module 'wakeboard' has no attribute {name!r}")
