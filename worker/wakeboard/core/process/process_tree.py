"""Parents and children among processes: subreapers, death signals, descendants, and killing a whole tree.

The only module that calls prctl and sends signals by pidfd. It knows nothing of runs, slots or sockets.

A tree can be marked: each of its processes has the same unusual soft limit on the bytes of POSIX message
queues. The mark survives a new session, an empty environment and an exec, so a subreaper tells the orphans of
a dead process from its other children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"
# Listing more would hold up the caller; their subreaper kills the rest.
_MOST_KILLED = 200
# The default hard limit on the bytes of POSIX message queues.
_MESSAGE_QUEUE_BYTES = 819_200
# Calls through it keep the interpreter's lock, so they must not block.
_libc = ctypes.PyDLL(None)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed: {os.strerror(ctypes.get_errno())}")


def become_subreaper() -> None:
    """Make this process adopt the orphans among its descendants, after setsid and double fork too.

    Does nothing elsewhere than on Linux.
    """
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send the signal `by` when the thread that forked this process ends.

    Exits at once when `parent` is already gone.
    """
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(0)


def outlive_parent() -> None:
    """Undo `die_with_parent`: this process cleans up by itself when its parent is gone.

    The kernel sends SIGCONT instead, so a stopped process cleans up too.
    """
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def own_children() -> list[int]:
    """Return the process ids of the children of all threads of this process, zombies included."""
    return list(_children("self")) if _LINUX else []


def descendants(pid: int, most: int) -> list[int]:
    """Return the process ids below `pid`, zombies included; the search ends at `most`.

    Empty elsewhere than on Linux.
    """
    result: list[int] = []
    unvisited = [pid]
    while unvisited and len(result) < most:
        children: list[int] = []
        with contextlib.suppress(OSError):
            children += _children(unvisited.pop())
        result += children
        unvisited += children
    return result


def _children(pid: int | str) -> Iterator[int]:
    """Yield the children of each thread of `pid`; a thread that ends meanwhile has none.

    Raises OSError when `pid` is gone.
    """
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (thread / "children").read_bytes().split())


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor of this process that stays valid when its id is reused; None where unsupported."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def send_signal(pidfd: int, number: signal.Signals) -> bool:
    """Send a signal to the process behind `pidfd`; False when it is gone or may not be signalled."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    return True


def kill_tree(pid: int, pidfd: int) -> None:
    """Kill process `pid`, which is the one behind `pidfd`, and its descendants. Never waits.

    The process is stopped first, so it starts nothing meanwhile. What a descendant starts at that moment is
    left to its subreaper.
    """
    if not send_signal(pidfd, signal.SIGSTOP):
        return
    pidfds = {each: open_pidfd(each) for each in descendants(pid, _MOST_KILLED)}
    # An id that is still listed was not reused before its pidfd was opened.
    remaining = set(descendants(pid, _MOST_KILLED))
    is_killed = send_signal(pidfd, signal.SIGKILL)
    for each, fd in pidfds.items():
        if fd is not None:
            if is_killed and each in remaining:
                send_signal(fd, signal.SIGKILL)
            os.close(fd)


def reap(pid: int) -> bool:
    """Return whether child `pid` is gone: reaped by this call, or no child of this process."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def has_children() -> bool:
    """Return whether this process has a child, running or a zombie; the call reaps one zombie.

    Called after most runs. `os.waitpid` reports the usual result, no child, by an exception, which is slower.
    """
    return bool(_libc.waitpid(-1, None, os.WNOHANG) >= 0)


def new_mark() -> int:
    """Return a mark for a process tree: a limit in bytes that no other process is likely to have."""
    if not _LINUX:
        return 0
    hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]
    most = _MESSAGE_QUEUE_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MESSAGE_QUEUE_BYTES)
    return random.randrange(most // 2, max(most, 1))


def set_mark(mark: int) -> None:
    """Mark this process and all its future descendants. Does nothing elsewhere than on Linux."""
    if _LINUX:
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (mark, resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]))


def _has_mark(pid: int, mark: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
            if line.startswith("Max msgqueue size"):
                return line.split()[3] == str(mark)
    return False


def kill_children(seconds: float, *, spare: Collection[int] = (), mark: int | None = None) -> bool:
    """Kill and reap the children of this process, and what their deaths re-parent to it, until none is left.

    `spare`: process ids that stay. `mark`: kill only children with this mark; other children, such as a
    database server, stay. `seconds` bounds the work, because a process in uninterruptible sleep cannot be
    killed. Returns False when children are left.
    """
    end = time.monotonic() + seconds
    empty_listings = 0
    # The kernel's listing may skip an entry while another one exits, so only a second empty one counts.
    while empty_listings < 2:
        pids = [pid for pid in own_children() if pid not in spare and (mark is None or _has_mark(pid, mark))]
        empty_listings = 0 if pids else empty_listings + 1
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if sum(map(reap, pids)) < len(pids):
            time.sleep(0.0005)
        if pids and time.monotonic() > end:
            return False
    return True
