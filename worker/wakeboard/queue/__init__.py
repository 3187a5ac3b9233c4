"""Every write to the queue: one move, one guarded statement, one function. See ``core.states.MOVES``.

``enqueue`` and ``enqueue_many`` insert runs. ``engine`` has the statements of the worker's moves,
``operator`` the operator's moves on runs, ``definitions`` those on schedules, ``types`` those on job types,
``workers`` those on workers. Nothing outside of this package changes a run.
"""

from wakeboard.core.answer import Answer
from wakeboard.core.run_spec import EnqueueError, NewRun
from wakeboard.queue import definitions, types, workers
from wakeboard.queue.enqueue import enqueue
from wakeboard.queue.enqueue_many import enqueue_many
from wakeboard.queue.operator import cancel, release_lease, retry_now, run_again

__all__ = [
    "Answer",
    "EnqueueError",
    "NewRun",
    "cancel",
    "definitions",
    "enqueue",
    "enqueue_many",
    "release_lease",
    "retry_now",
    "run_again",
    "types",
    "workers",
]
