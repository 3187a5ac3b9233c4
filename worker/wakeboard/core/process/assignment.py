"""A claimed run as it is sent from the worker to a child."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple


class Assignment(NamedTuple):
    """One claimed run for a child to execute.

    `payload` is JSON text, decoded in the child. Times are ISO texts, `scheduled_for` with its schedule's
    zone in brackets. `is_listed`: the attempt is on the list of attempts that have not begun
    (`wakeboard.queue.engine.unbegun`), and the child has to strike it off first.
    """

    run_id: int
    lease_epoch: int
    attempt: int
    job_type: str
    payload: str
    key: str | None
    definition_id: int | None
    scheduled_for: str | None
    enqueued_at: str | None
    timeout_seconds: float
    traceparent: str | None
    worker_id: str
    is_listed: bool = False


# A named tuple's own constructor takes its fields one by one, which costs more.
assignment_of: Callable[[Iterable[object]], Assignment] = partial(tuple.__new__, Assignment)
