"""The functions that handlers register for the end of a process that runs handlers.

They are kept in the order in which they were registered. ``runtime.processes.spawn`` calls them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

Hook = Callable[[], object]
_Hook = TypeVar("_Hook", bound=Hook)

ON_CHILD_EXIT: list[Hook] = []


def on_child_exit(function: _Hook) -> _Hook:
    """Have the decorated `def f()` or `async def f()` called when a process that runs handlers ends in order.

    That is when the worker stops, when the process is replaced, and after a run that was stopped with
    SIGTERM; not when it is killed or dies. The last one registered is called first, then what `atexit` has.
    All of it has `WAKEBOARD_CHILD_EXIT_SECONDS`. A pool and `run_now` call nothing: there the process is
    yours. TypeError, in a sentence, for what cannot be called without arguments.
    """
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise TypeError(
            f"@on_child_exit: {function!r} cannot be called without arguments ({error}); write `def f()`."
        ) from None
    except ValueError:
        # Functions in C may have no signature.
        pass
    # One of the same name is this function before its module was loaded once more.
    ON_CHILD_EXIT[:] = [hook for hook in ON_CHILD_EXIT if _name(hook) != _name(function)]
    ON_CHILD_EXIT.append(function)
    return function


def _name(function: Hook) -> object:
    name = getattr(function, "__qualname__", None)
    return function if name is None or "<" in name else (getattr(function, "__module__", None), name)
