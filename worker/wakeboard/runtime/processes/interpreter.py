"""What a run may change in the Python that it shares with the next one, and the way back. What modules keep
for themselves stays."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import socket
import sys
from contextvars import Context, copy_context
from typing import Any


class Interpreter:
    """The interpreter of a process that has not run anything yet, to compare with and to return to."""

    def __init__(self) -> None:
        self._state = _state()
        self._arguments = list(sys.argv)
        self._variables, self._decimal = _without_decimals(copy_context())
        self._policy = _event_loop_policy()

    def new_context(self) -> Context:
        """The context variables for one run: as the import of the handlers has left them."""
        context = self._variables.copy()
        if self._decimal is not None:
            context.run(sys.modules["decimal"].setcontext, self._decimal.copy())
        return context

    def restore(self) -> bool:
        """Put back all but what `asyncio` has; True when something was another."""
        # It may be called in an hour, and end the process.
        faulthandler.cancel_dump_traceback_later()
        is_other = _state() != self._state or sys.argv != self._arguments
        if is_other:
            _set_state(self._state)
            sys.argv[:] = self._arguments
        return is_other

    def forget_event_loop(self) -> None:
        """Let `asyncio.get_event_loop()` be as in a fresh process: a run may have closed its loop or set
        none."""
        asyncio = sys.modules.get("asyncio")
        if asyncio is None:
            return
        if sys.version_info >= (3, 14):
            asyncio.set_event_loop(None)
        else:
            asyncio.set_event_loop_policy(None if self._policy is None else self._policy())


def _state() -> tuple[Any, ...]:
    return (
        gc.isenabled(),
        gc.get_threshold(),
        sys.getrecursionlimit(),
        sys.gettrace(),
        sys.getprofile(),
        sys.excepthook,
        sys.getswitchinterval(),
        sys.get_int_max_str_digits(),
        faulthandler.is_enabled(),
        socket.getdefaulttimeout(),
        logging.root.manager.disable,
    )


def _set_state(wanted: tuple[Any, ...]) -> None:
    collects, thresholds, depth, trace, profile, hook, interval, digits, faults, timeout, disabled = wanted
    (gc.enable if collects else gc.disable)()
    gc.set_threshold(*thresholds)
    sys.setrecursionlimit(depth)
    sys.settrace(trace)
    sys.setprofile(profile)
    sys.excepthook = hook
    sys.setswitchinterval(interval)
    sys.set_int_max_str_digits(digits)
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        (faulthandler.enable if faults else faulthandler.disable)()
    socket.setdefaulttimeout(timeout)
    logging.disable(disabled)


def _without_decimals(context: Context) -> tuple[Context, Any]:
    """All context variables but that of `decimal`, whose value a run would change for all; and that value,
    None where it is as Python makes it by itself."""
    decimal = sys.modules.get("decimal")
    kept, found = Context(), None
    for variable, value in context.items():
        if decimal is not None and isinstance(value, decimal.Context):
            found = None if _rules(value) == _rules(decimal.DefaultContext) else value.copy()
        else:
            kept.run(variable.set, value)
    return kept, found


def _rules(context: Any) -> tuple[Any, ...]:
    """All of a decimal context but its flags."""
    return (
        context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp,
        dict(context.traps),
    )  # fmt: skip


def _event_loop_policy() -> Any:
    """What makes the policy of a process that has not asked for an event loop; None for asyncio's own."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or sys.version_info >= (3, 14):
        return None
    policy = asyncio.get_event_loop_policy()
    if type(policy) is asyncio.DefaultEventLoopPolicy:
        return None
    try:
        type(policy)()
    except Exception:
        return lambda: policy
    return type(policy)
