"""How a process that was just forked or spawned becomes a slot's child, and how it ends."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from wakeboard.config.stop_signals import STOPS, outlast
from wakeboard.core.process.process_tree import become_subreaper, die_with_parent
from wakeboard.core.process.shared_slot import SharedSlot
from wakeboard.handlers.registry import load_app
from wakeboard.runtime.processes import ending
from wakeboard.runtime.processes.child import Child

_WORK_FD_FROM = 200


def settle(parent: int, output: int) -> None:
    """Make the process that was just forked or spawned a child: its own session, its signals, its streams,
    its end.

    `parent` is the template's process id, `output` the descriptor of the slot's output.
    """
    signal.set_wakeup_fd(-1)
    outlast(*STOPS)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with contextlib.suppress(PermissionError):
        os.setsid()
    die_with_parent(parent)
    become_subreaper()
    null = os.open(os.devnull, os.O_RDONLY)
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


def live(
    slot: int, pages: int, work: int, recycle_runs: int, recycle_mb: int, exit_seconds: float
) -> NoReturn:
    """Serve `slot` with the descriptors of the slots' pages and of the work socket, then end this process."""
    try:
        page = SharedSlot(pages, slot)
        os.close(pages)
        child = Child(slot, page, _high(work), recycle_runs, recycle_mb)
        child.serve()
        ending.end(exit_seconds, child.loop)
    except BaseException:
        traceback.print_exc()  # into the slot's output, which the supervisor reads after this process's death
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(70)


def _high(work: int) -> socket.socket:
    """The socket on a descriptor that a handler closing or reusing the low ones does not meet."""
    import fcntl

    with contextlib.suppress(OSError):
        high = fcntl.fcntl(work, fcntl.F_DUPFD_CLOEXEC, _WORK_FD_FROM)
        os.close(work)
        work = high
    return socket.socket(fileno=work)


def main(argument: str) -> NoReturn:
    """Entry of a child that was started as a fresh process; `argument` is JSON made by the template."""
    given = json.loads(argument)
    settle(given["parent"], given["output"])
    ending.prepare()
    load_app(given["app"])
    names = ("slot", "pages", "work", "recycle_runs", "recycle_mb", "exit_seconds")
    live(*(given[name] for name in names))
