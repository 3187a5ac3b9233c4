"""The one place where a handler is called: by the database worker's child, by the in-process pool, inline.

Turns whatever the handler does into an AttemptResult. It decides nothing, writes nothing and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from wakeboard.core.outcome import (
    AttemptResult,
    Cancelled,
    DeadlineExceeded,
    result_of_exception,
    result_of_return,
)
from wakeboard.handlers.context import Context
from wakeboard.handlers.registry import JobType

_NOTHING = object()
_NOT_RUN = frozenset({GeneratorType, AsyncGeneratorType})
_OPEN: AbstractContextManager[Any] = nullcontext()


def run_async(coroutine: Any) -> object:
    """Run the coroutine of an `async def` handler in an event loop of its own; returns what it returns.

    Where the caller's thread has a loop running (a notebook, an async test), another thread runs it.
    """
    import asyncio

    try:
        is_running = bool(asyncio.get_running_loop())
    except RuntimeError:
        is_running = False
    # Not above, where the missing loop would be the context of whatever the handler raises.
    if not is_running:
        return asyncio.run(coroutine)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(copy_context().run, asyncio.run, coroutine).result()


def invoke(
    job_type: JobType,
    context: Context,
    *,
    window: AbstractContextManager[Any] = _OPEN,
    await_it: Callable[[Any], object] = run_async,
) -> AttemptResult:
    """Call the handler of `job_type` with `context` and return how it ended; it never raises.

    `window` is open exactly while the handler's own code runs: it may raise `Cancelled` or
    `DeadlineExceeded` into it. Raised after the handler has returned, they change nothing any more.
    `await_it` runs the coroutine of an async handler.
    """
    value: object = _NOTHING
    try:
        with window:
            value = job_type.function(context)
            if type(value) is CoroutineType:
                coroutine, value = value, _NOTHING
                value = await_it(coroutine)
            if type(value) in _NOT_RUN:
                value = _NOTHING
                raise TypeError(
                    "The handler gave back a generator, so nothing of it has run; return a value."
                )
    except BaseException as error:
        if value is _NOTHING or not isinstance(error, Cancelled | DeadlineExceeded):
            return result_of_exception(error, job_type.permanent)
    return result_of_return(value)
