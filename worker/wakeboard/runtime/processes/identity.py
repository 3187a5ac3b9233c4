"""Who a process is and where it stands, which no run can put back: user, groups, root folder, niceness."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


class Identity:
    """The identity of a process that has not run anything yet; `user`: for whom it acts."""

    def __init__(self) -> None:
        self.user = os.geteuid()
        self._whole = _whole()
        self._processors = _processors()

    def changed(self) -> str | None:
        """Say what has changed for good; None when nothing has. The processors that it may use are put
        back."""
        now = _whole()
        if now != self._whole:
            return "it changed its user, groups, root folder or niceness"
        if _processors() != self._processors:
            try:
                os.sched_setaffinity(0, self._processors)
            except OSError as error:
                return f"it changed the processors that it may use: {error}"
        return None


def _whole() -> tuple[Any, ...]:
    users: tuple[Any, ...] = (os.getuid(), os.geteuid(), os.getgid(), os.getegid())
    if sys.platform == "linux":
        users = (*os.getresuid(), *os.getresgid())
    root: Any = None
    with contextlib.suppress(OSError):
        found = os.stat("/")  # noqa: PTH116 - a path object costs as much again
        root = (found.st_dev, found.st_ino)
    return (*users, sorted(os.getgroups()), os.getpriority(os.PRIO_PROCESS, 0), root)


def _processors() -> Any:
    return os.sched_getaffinity(0) if sys.platform == "linux" else None
