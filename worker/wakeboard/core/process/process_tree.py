"""Family relations of processes: who adopts orphans, who dies with whom, who is whose child, and how a family
ends.

The only place that calls prctl and sends signals by pidfd. It knows nothing of runs, slots or sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"
# Listing more would hold up the caller; whoever adopts the rest ends them.
_MOST_KILLED = 200
# Its calls keep the interpreter's lock, so they must not wait.
_libc = ctypes.PyDLL(None)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed: {os.strerror(ctypes.get_errno())}")


def become_subreaper() -> None:
    """Make this process adopt the orphans among its descendants (setsid and double fork included). Linux
    only; else nothing."""
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Ask for the signal `by` when the parent's thread that forked us ends, and exit at once when `parent` is
    already gone."""
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(0)


def outlive_parent() -> None:
    """Take `die_with_parent` back: from here on this process cleans up itself when its parent is gone.

    One that was stopped then goes on, to do so.
    """
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def own_children() -> list[int]:
    """Process ids of this process's children of all its threads, zombies included."""
    return list(_children("self")) if _LINUX else []


def descendants(pid: int, most: int) -> list[int]:
    """Process ids below `pid`, zombies included; the search ends at `most`. Linux only; else none."""
    found: list[int] = []
    unseen = [pid]
    while unseen and len(found) < most:
        below: list[int] = []
        with contextlib.suppress(OSError):
            below += _children(unseen.pop())
        found += below
        unseen += below
    return found


def _children(pid: int | str) -> Iterator[int]:
    """Give the children of each thread of `pid`; one that ends meanwhile has none. OSError when `pid` is
    gone."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (thread / "children").read_bytes().split())


def open_pidfd(pid: int) -> int | None:
    """A descriptor that means this process alone, whatever its id means later; None where there is none."""
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
    """Kill process `pid`, which is the one behind `pidfd`, and what is seen below it. Never waits.

    It is stopped first, so it starts nothing meanwhile. What a descendant starts at that moment is left to
    whoever adopts it.
    """
    if not send_signal(pidfd, signal.SIGSTOP):
        return
    opened = {each: open_pidfd(each) for each in descendants(pid, _MOST_KILLED)}
    # An id that is still listed was not given to a stranger before it was opened.
    still = set(descendants(pid, _MOST_KILLED))
    is_ours = send_signal(pidfd, signal.SIGKILL)
    for each, fd in opened.items():
        if fd is not None:
            if is_ours and each in still:
                send_signal(fd, signal.SIGKILL)
            os.close(fd)


def reap(pid: int) -> bool:
    """True when child `pid` is gone: reaped now, or not a child of ours."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def has_children() -> bool:
    """True when this process has a child, running or a zombie; one zombie is reaped by the look.

    Asked after most runs: `os.waitpid` would tell the usual answer, no, by an exception, which is dearer.
    """
    return bool(_libc.waitpid(-1, None, os.WNOHANG) >= 0)


def kill_children(spare: Collection[int], seconds: float) -> bool:
    """Kill and reap every child but those in `spare`, and what their death re-parents to us, until none is
    left.

    `seconds` bounds the work (a process in uninterruptible sleep cannot be killed). False when something was
    left. The kernel's listing may skip an entry while another one exits, so only a second empty one counts.
    """
    end = time.monotonic() + seconds
    empty_listings = 0
    while empty_listings < 2:
        others = [pid for pid in own_children() if pid not in spare]
        empty_listings = 0 if others else empty_listings + 1
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if sum(map(reap, others)) < len(others):
            time.sleep(0.0005)
        if others and time.monotonic() > end:
            return False
    return True
