"""Calls a handler: for a child of the database worker, the in-process pool and ``run_now``.

Turns whatever the handler does into an AttemptResult. It decides nothing, writes nothing and stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from types import AsyncGeneratorType, CoroutineType, GeneratorType

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
_GENERATORS = frozenset({GeneratorType, AsyncGeneratorType})
HandlerCoroutine = Coroutine[object, object, object]


def run_async(coroutine: HandlerCoroutine) -> object:
    """Run the coroutine of an `async def` handler in an event loop of its own; returns what it returns.

    Where the caller's thread has a loop running (a notebook, an async test), another thread runs it.
    """
    import asyncio

    try:
        is_running = bool(asyncio.get_running_loop())
    except RuntimeError:
        is_running = False
    # Outside of the except block, so that its RuntimeError is not the context of what the handler raises.
    if not is_running:
        return asyncio.run(coroutine)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(copy_context().run, asyncio.run, coroutine).result()


def invoke(
    job_type: JobType,
    context: Context,
    *,
    window: AbstractContextManager[object] | None = None,
    await_it: Callable[[HandlerCoroutine], object] = run_async,
) -> AttemptResult:
    """Call the handler of `job_type` with `context` and return how it ended; it never raises.

    `window` is open exactly while the handler's own code runs: it may raise `Cancelled` or
    `DeadlineExceeded` into it. Raised after the handler has returned, they change nothing any more.
    `await_it` runs the coroutine of an async handler.
    """
    value: object = _NOTHING
    try:
        with window or nullcontext():
            value = job_type.function(context)
            if type(value) is CoroutineType:
                coroutine, value = value, _NOTHING
                value = await_it(coroutine)
            if type(value) in _GENERATORS:
                value = _NOTHING
                raise TypeError(
                    "The handler gave back a generator, so nothing of it has run; return a value."
                )
    except BaseException as error:
        if value is _NOTHING or not isinstance(error, Cancelled | DeadlineExceeded):
            return result_of_exception(error, job_type.permanent)
    return result_of_return(value)
