"""How a slot's child ends in order: its hooks, then what Python does at the end of any program (its threads,
`atexit`), all within a bound.

What was registered before the handlers' module was imported belongs to the process that it was forked from,
and does not run.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import signal
import sys
import traceback
from typing import NoReturn

from wakeboard.core.hooks import ON_CHILD_EXIT
from wakeboard.core.text.sanitize import last_line
from wakeboard.handlers.event_loop import EventLoop

# The status of a child whose hook failed; what it said is in the slot's output.
HOOK_FAILED = 71

_status: int | None = None


def prepare() -> None:
    """To be called before the handlers' module is imported: `atexit` runs last what was registered first, so
    our last word comes after all that the module and its runs have registered, and before all else."""
    atexit.register(_last_word)


def end(seconds: float, loop: EventLoop) -> NoReturn:
    """End this process within `seconds`; 0: at once. The kernel ends what takes longer."""
    global _status
    if seconds <= 0:
        os._exit(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    status = _call_hooks(loop)
    loop.close()
    _status = status
    # Waits for threads, then calls what `atexit` has, the last word in the end.
    ctypes.pythonapi.Py_Exit(status)
    os._exit(status)


def ended_in_order(status: int | None) -> bool:
    """Whether a wait status is that of a child that ended in order, in time or not."""
    code = None if status is None else os.waitstatus_to_exitcode(status)
    return code in (0, HOOK_FAILED, -signal.SIGALRM)


def word_of_end(status: int | None, output: str) -> str | None:
    """Say what went wrong at such an end; None when nothing did. `output`: what the child wrote."""
    code = None if status is None else os.waitstatus_to_exitcode(status)
    if code == -signal.SIGALRM:
        return (
            "took longer to end than WAKEBOARD_CHILD_EXIT_SECONDS allows: what its threads, atexit functions "
            "and hooks had still to do is lost."
        )
    if code == HOOK_FAILED:
        return f"ended with a hook of @on_child_exit that failed: {last_line(output)[:300]}"
    return None


def _call_hooks(loop: EventLoop) -> int:
    status = 0
    for hook in reversed(ON_CHILD_EXIT):
        try:
            value = hook()
            if hasattr(value, "__await__"):
                loop.run(value)
        except BaseException:
            traceback.print_exc()
            status = HOOK_FAILED
    return status


def _last_word() -> None:
    """End without taking the interpreter apart, which costs time and may crash; nothing but in a child."""
    if _status is None:
        return
    with contextlib.suppress(BaseException):
        # It was registered when the template was started.
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(_status)
