"""The name handler authors import: ``from wakeboard import job, enqueue, Context``.

It is ``worker``'s front door.
"""

from worker import Context, Permanent, Retryable, enqueue, enqueue_many, job

__all__ = ["Context", "Permanent", "Retryable", "enqueue", "enqueue_many", "job"]
