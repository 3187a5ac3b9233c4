"""A claimed run on its way from the worker to the child that runs its handler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple


class Assignment(NamedTuple):
    """One claimed run on its way to a child. `payload` is JSON text (decoded in the child); times are ISO
    texts, `scheduled_for` with its schedule's zone in brackets. `is_listed`: it stands on the list of those
    that have not begun, and the child has to strike it off first."""

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


# A namedtuple's own constructor takes its fields one by one, which is dearer.
assignment_of: Callable[[Iterable[Any]], Assignment] = partial(tuple.__new__, Assignment)
