"""What a handlers' module wants to be called for in the life of a process that runs handlers.

The functions are kept in the order in which they were registered. ``runtime.processes.spawn`` calls them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[[], Any])

ON_CHILD_EXIT: list[Callable[[], Any]] = []


def on_child_exit(function: _Function) -> _Function:
    """Have the decorated `def f()` or `async def f()` called when a process that runs handlers ends in order.

    That is when the worker stops, when the process is replaced, and after a run that was stopped with
    SIGTERM; not when it is killed or dies. The last one registered is called first, then what `atexit` has.
    All of it has `WAKEBOARD_CHILD_EXIT_SECONDS`. A pool and `run_now` call nothing: there the process is
    yours. TypeError, in a sentence, for what cannot be called without arguments.
    """
    _register(ON_CHILD_EXIT, function, "on_child_exit")
    return function


def _register(hooks: list[Callable[[], Any]], function: Callable[[], Any], name: str) -> None:
    """Add `function`; one of the same name is what it was before its module was loaded once more."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise TypeError(
            f"@{name}: {function!r} cannot be called without arguments ({error}); write `def f()`."
        ) from None
    except ValueError:
        # Code in C may not tell.
        pass
    hooks[:] = [hook for hook in hooks if _name(hook) != _name(function)]
    hooks.append(function)


def _name(function: Callable[[], Any]) -> object:
    name = getattr(function, "__qualname__", None)
    return function if name is None or "<" in name else (getattr(function, "__module__", None), name)
