"""Every write to the queue: one move, one guarded statement, one function. See ``core.states.MOVES``.

``engine`` has the worker's moves as statements, ``operator`` the buttons on runs, ``definitions`` and
``types`` the buttons on schedules and job types, ``enqueue`` and ``enqueue_many`` the front door. Nothing
here knows a page, and nothing outside of here changes a run.
"""

from wakeboard.core.answer import Answer
from wakeboard.core.run_spec import EnqueueError, NewRun
from wakeboard.queue import definitions, types
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
]
