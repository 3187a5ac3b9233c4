"""``run_now``: runs one handler in the caller's thread, for tests. No queue, no retry, no database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from wakeboard.core.outcome import AttemptResult
from wakeboard.core.run_spec import Encoder, NewRun, payload_limit
from wakeboard.handlers.context import Context
from wakeboard.handlers.invoke import invoke
from wakeboard.handlers.registry import Handler, type_of


def run_now(
    handler: str | Handler,
    payload: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    attempt: int = 1,
    scheduled_for: datetime | None = None,
    encoder: Encoder | None = None,
) -> AttemptResult:
    """Run a handler as an engine would and return the AttemptResult that the engine would judge.

    `handler` is a type's name or the decorated function; `payload`, `key` and `encoder` are as for `enqueue`;
    `attempt` is what `ctx.attempt` says, `scheduled_for` (a time with a zone) what `ctx.scheduled_for` is.
    `once()` remembers in memory, `check()` knows the type's timeout. Raises LookupError for an unknown
    handler, EnqueueError for a payload or key that cannot be, and ValueError for a time without a zone.
    """
    job_type = type_of(handler)
    _, text, *_ = NewRun(job_type.name, payload, key=key).columns(payload_limit(), encoder)
    context = Context(
        payload=json.loads(text),
        job_type=job_type.name,
        attempt=attempt,
        key=key,
        scheduled_for=scheduled_for,
        timeout_seconds=job_type.timeout_seconds,
    )
    return invoke(job_type, context)
