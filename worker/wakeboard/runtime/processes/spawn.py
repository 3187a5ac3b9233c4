"""How a process that was just forked or spawned becomes a slot's child, and how it ends in order.

A clean end calls the hooks of the handlers' module, then does what Python does at the end of any program
(threads, `atexit`), all within a time limit. What was registered with `atexit` before the handlers were
imported belongs to the process that the child was forked from, and does not run.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import NamedTuple, NoReturn

from wakeboard.config.stop_signals import STOPS, set_no_action
from wakeboard.core.hooks import ON_CHILD_EXIT
from wakeboard.core.process.process_tree import become_subreaper, die_with_parent
from wakeboard.core.process.shared_slot import SharedSlot
from wakeboard.handlers.event_loop import EventLoop
from wakeboard.handlers.registry import load_app
from wakeboard.runtime.processes.child import Child
from wakeboard.runtime.processes.child_exit import HOOK_FAILED

_WORK_FD_FROM = 200
_FAILED = 70

_exit_status: int | None = None


class ChildOptions(NamedTuple):
    """What a child is started with. `parent`: the fork server's process id; `*_fd`: descriptors of the slots'
    shared memory, of the socket to the supervisor and of the slot's output."""

    app: str | None
    slot: int
    parent: int
    slots_fd: int
    work_fd: int
    output_fd: int
    recycle_runs: int
    recycle_mb: int
    child_exit_seconds: float


def main(argument: str) -> NoReturn:
    """Run a child that was started as a fresh process; `argument`: its `ChildOptions` as JSON."""
    options = ChildOptions._make(json.loads(argument))
    isolate(options)
    register_exit()
    load_app(options.app)
    run_child(options)


def isolate(options: ChildOptions) -> None:
    """Give the current process the session, signals, streams and parent of a child."""
    signal.set_wakeup_fd(-1)
    set_no_action(*STOPS)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with contextlib.suppress(PermissionError):
        os.setsid()
    die_with_parent(options.parent)
    become_subreaper()
    null, output = os.open(os.devnull, os.O_RDONLY), options.output_fd
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    for fd in {null, output} - {0, 1, 2}:
        os.close(fd)
    with contextlib.suppress(OSError):
        # Out of memory, the kernel should take a handler, not the supervisor or the database.
        Path("/proc/self/oom_score_adj").write_text("500")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()


def run_child(options: ChildOptions) -> NoReturn:
    """Serve the slot, then end this process."""
    try:
        shared = SharedSlot(options.slots_fd, options.slot)
        os.close(options.slots_fd)
        work = socket.socket(fileno=_move_up(options.work_fd))
        child = Child(shared, work, options.recycle_runs, options.recycle_mb)
        child.serve()
        _exit_in_order(options.child_exit_seconds, child.loop)
    except BaseException:
        traceback.print_exc()  # into the slot's output, which the supervisor reads after this process's death
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(_FAILED)


def _move_up(fd: int) -> int:
    """Return a high descriptor for `fd`, safe from handlers that close or reuse the low ones."""
    import fcntl

    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _WORK_FD_FROM)
    except OSError:
        return fd
    os.close(fd)
    return high


def register_exit() -> None:
    """Prepare a clean end. To be called before the handlers' module is imported.

    `atexit` runs last what was registered first, so `_skip_teardown` runs after all that the module and its
    runs registered, and before all else.
    """
    atexit.register(_skip_teardown)


def _exit_in_order(seconds: float, loop: EventLoop) -> NoReturn:
    """End this process within `seconds`; 0: at once. The kernel ends what takes longer."""
    global _exit_status
    if seconds <= 0:
        os._exit(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    status = 0
    for hook in reversed(ON_CHILD_EXIT):
        try:
            value = hook()
            if isinstance(value, Coroutine):
                loop.run(value)
        except BaseException:
            traceback.print_exc()
            status = HOOK_FAILED
    loop.close()
    _exit_status = status
    # Waits for threads, then calls what `atexit` has, `_skip_teardown` in the end.
    ctypes.pythonapi.Py_Exit(status)
    os._exit(status)


def _skip_teardown() -> None:
    """End a child without taking the interpreter apart, which costs time and may crash."""
    if _exit_status is None:
        return
    with contextlib.suppress(BaseException):
        # It was registered when the fork server was started.
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(_exit_status)
