"""What is open in a process that must not cross a fork: threads and connections, in the template mostly by
importing the handlers. Looks only."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Collection
from pathlib import Path


def hazards(own: Collection[int]) -> list[str]:
    """One phrase for each second thread and each connected socket but those in `own` (descriptors)."""
    return [*_threads(), *_connections(own)]


def warning(found: list[str]) -> str:
    """The one line that tells an operator what was found and what it costs."""
    return (
        f"Importing the handlers left {', '.join(found)} open, which a forked process cannot share; so every "
        "child is a fresh process (slower to start). Start threads and connect inside the handlers instead."
    )


def _threads() -> list[str]:
    named = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    found = [f"thread {thread.name!r} of module {_module_of(thread)}" for thread in named]
    with contextlib.suppress(OSError):
        unnamed = len(list(Path("/proc/self/task").iterdir())) - 1 - len(named)
        if unnamed > 0:
            found.append(f"{unnamed} thread(s) of a native library")
    return found


def _module_of(thread: threading.Thread) -> str:
    """The module of the function that the thread runs, as far as its frames tell."""
    module = type(thread).__module__
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        module = module if name == "threading" else name
        frame = frame.f_back
    return module


def _connections(own: Collection[int]) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for fd in sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
            peer = None if fd in own or fd < 3 else _peer(fd)
            if peer is not None:
                found.append(f"a connection to {peer} ({_owner(fd)})")
    return found


def _peer(fd: int) -> str | None:
    try:
        second = os.dup(fd)
    except OSError:
        return None
    try:
        copy = socket.socket(fileno=second)
    except OSError:
        os.close(second)
        return None
    with copy:
        try:
            peer = copy.getpeername()
        except OSError:
            return None
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "a local socket")


def _owner(fd: int) -> str:
    import gc

    for thing in gc.get_objects():
        with contextlib.suppress(Exception):
            if callable(getattr(type(thing), "fileno", None)) and thing.fileno() == fd:
                return f"held by a {type(thing).__module__}.{type(thing).__qualname__}"
    return "held by a native library"
