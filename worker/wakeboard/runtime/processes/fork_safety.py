"""What must not cross a fork.

Out of the fork server: threads and connections, which importing the handlers may have opened
(`find_hazards`). Out of a child whose handler forks: the child's signal handlers, its socket to the
supervisor, its way to end (`ForkGuard`). `os.fork` and `multiprocessing` pass the guard, and so does a
`preexec_fn`. It costs a run nothing that forks nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from wakeboard.config.stop_signals import STOPS, no_action
from wakeboard.core.process.exits import is_exit, status_of


def find_hazards(own: Collection[int]) -> list[str]:
    """Return one phrase for each thread beside the main one and for each connected socket.

    `own`: descriptors to leave out. Opens nothing that stays open.
    """
    return [*_threads(), *_connections(own)]


def hazard_warning(hazards: list[str]) -> str:
    """Return the line that tells an operator which hazards there are and what they cost."""
    return (
        f"Importing the handlers left {', '.join(hazards)} open, which a forked process cannot share; so "
        "every child is a fresh process (slower to start). Start threads and connect inside the handlers "
        "instead."
    )


def _threads() -> list[str]:
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    phrases = [f"thread {thread.name!r} of module {_module_of(thread)}" for thread in others]
    with contextlib.suppress(OSError):
        native = len(list(Path("/proc/self/task").iterdir())) - 1 - len(others)
        if native > 0:
            phrases.append(f"{native} thread(s) of a native library")
    return phrases


def _module_of(thread: threading.Thread) -> str:
    """Return the module of the function that the thread runs, as far as its frames tell."""
    module = type(thread).__module__
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        module = module if name == "threading" else name
        frame = frame.f_back
    return module


def _connections(own: Collection[int]) -> list[str]:
    phrases = []
    with contextlib.suppress(OSError):
        for fd in sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
            peer = None if fd in own or fd < 3 else _peer(fd)
            if peer is not None:
                phrases.append(f"a connection to {peer} ({_owner(fd)})")
    return phrases


def _peer(fd: int) -> str | None:
    try:
        duplicate = os.dup(fd)
    except OSError:
        return None
    try:
        copy = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None
    with copy:
        try:
            peer = copy.getpeername()
        except OSError:
            return None
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "a local socket")


def _owner(fd: int) -> str:
    import gc

    for item in gc.get_objects():
        with contextlib.suppress(Exception):
            if callable(getattr(type(item), "fileno", None)) and item.fileno() == fd:
                return f"held by a {type(item).__module__}.{type(item).__qualname__}"
    return "held by a native library"


class ForkGuard:
    """Gives a process that a handler forks the signals of an ordinary Python process and no socket.

    `is_forked`: the current process was forked by a handler.
    """

    def __init__(self, on_term: Callable[[int, FrameType | None], None], work: socket.socket) -> None:
        """`on_term`: the child's handler of SIGTERM; `work`: its socket to the supervisor."""
        self.is_forked = False
        # The child's own handler of each signal, and the default of Python.
        self._defaults: dict[signal.Signals, tuple[object, Any]] = {
            signal.SIGHUP: (no_action, signal.SIG_DFL),
            signal.SIGINT: (no_action, signal.default_int_handler),
            signal.SIGTERM: (on_term, signal.SIG_DFL),
        }
        self._work = work
        self._masks: dict[int, set[signal.Signals]] = {}
        os.register_at_fork(
            before=self._block_stops, after_in_parent=self._unblock_stops, after_in_child=self._detach
        )

    def _block_stops(self) -> None:
        """Hold stop signals back until the new process has its own handlers: they would be lost."""
        mask: Any = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        self._masks[threading.get_ident()] = mask

    def _unblock_stops(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.pop(threading.get_ident(), ()))

    def _detach(self) -> None:
        """Replace the child's own signal handlers by the defaults; handlers that the run set stay."""
        self.is_forked = True
        for number, (own, default) in self._defaults.items():
            if signal.getsignal(number) == own:
                signal.signal(number, default)
        self._work.close()
        self._unblock_stops()


def exit_forked_process(error: BaseException | None) -> NoReturn:
    """End a forked process whose handler ended by `error`, with the exit status that Python would give.

    The answer is left to the process that forked it.
    """
    status = 0
    if error is not None and is_exit(error):
        status = status_of(error)
        if isinstance(error, SystemExit) and not isinstance(error.code, int | None):
            with contextlib.suppress(BaseException):
                sys.stderr.write(f"{error.code}\n")
    elif error is not None:
        status = 1
        with contextlib.suppress(BaseException):
            traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(status)
