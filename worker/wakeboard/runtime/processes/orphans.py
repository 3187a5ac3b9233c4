"""Ends what a dead fork server leaves to the supervisor, its nearest subreaper, and no other child of it.

What descends from a fork server is known by a mark that a new session, an empty environment and an exec
leave in place: a soft limit of its own on the bytes of POSIX message queues.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

from wakeboard.core.process.process_tree import own_children, reap

_USUAL_BYTES = 819_200


def new_mark() -> int:
    """A limit that no other process is likely to have."""
    if sys.platform != "linux":
        return 0
    hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]
    most = _USUAL_BYTES if hard == resource.RLIM_INFINITY else min(hard, _USUAL_BYTES)
    return random.randrange(most // 2, max(most, 1))


def wear(mark: int) -> None:
    """Give this process and all its descendants to come the mark."""
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (mark, resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]))


def end_leftovers(mark: int, seconds: float) -> bool:
    """Kill and reap, for at most `seconds`, every child of ours with the mark; False when some are left.

    Other children, such as a database server that we started, stay.
    """
    end = time.monotonic() + seconds
    empty_listings = 0
    while empty_listings < 2:
        found = [pid for pid in own_children() if _wears(pid, mark)]
        empty_listings = 0 if found else empty_listings + 1
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if sum(map(reap, found)) < len(found):
            time.sleep(0.0005)
        if found and time.monotonic() > end:
            return False
    return True


def _wears(pid: int, mark: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
            if line.startswith("Max msgqueue size"):
                return line.split()[3] == str(mark)
    return False
