"""Ends what a dead template leaves to the supervisor, its nearest subreaper, and nothing else that is a child
of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

from worker.family import own_children, reap


def end_leftovers(family: str, variable: str, sessions: Collection[int], seconds: float) -> bool:
    """Kill and reap, for at most `seconds`, every child of ours that descends from the template.

    A descendant is known by `variable=family` in the environment it was started with, or by a session (its
    own id or its session's) in `sessions`. Other children, such as a database server that we started, stay.
    False when some are left.
    """
    end = time.monotonic() + seconds
    empty_listings = 0
    mark = f"{variable}={family}".encode()
    while empty_listings < 2:
        found = [pid for pid in own_children() if _descends(pid, mark, sessions)]
        empty_listings = 0 if found else empty_listings + 1
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if sum(map(reap, found)) < len(found):
            time.sleep(0.0005)
        if found and time.monotonic() > end:
            return False
    return True


def _descends(pid: int, mark: bytes, sessions: Collection[int]) -> bool:
    with contextlib.suppress(OSError):
        if pid in sessions or os.getsid(pid) in sessions:
            return True
    with contextlib.suppress(OSError):
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False
