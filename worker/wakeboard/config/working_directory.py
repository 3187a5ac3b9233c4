"""The folder that a process works in, whether it is still there, and the way back to it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_FD_FROM = 200
NOWHERE = "/"


def current() -> str | None:
    """The name of the folder that this process is in; None when it was removed or cannot be told."""
    try:
        return os.getcwd()  # noqa: PTH109 - compared as text
    except OSError:
        return None


def place() -> str:
    """Where a new process of ours can work: the folder that this one is in, or `/` when that is gone."""
    return current() or NOWHERE


GONE = "The folder in which this was started is gone. Change into one that is there (cd) and start it again."


class WorkingDirectory:
    """The folder that the process is in when this is made; where that was removed, it goes to `/`."""

    def __init__(self) -> None:
        name = current()
        if name is None:
            os.chdir(NOWHERE)
        self._name = name or NOWHERE
        self._fd = _opened()

    def return_to(self) -> None:
        """Go back without a look at where the process is, or what has that name now. OSError when the folder
        can be reached in no way."""
        try:
            os.fchdir(self._fd)
        except (OSError, ValueError):  # The second of -1.
            self.return_by_name()

    def return_by_name(self) -> None:
        """Go to what has the folder's name now, where that is another. OSError when it cannot be entered."""
        if current() == self._name:
            return
        os.chdir(self._name)
        if not _is_here(self._fd):
            # What was open is left open: its number may be a handler's by now.
            self._fd = _opened()


def _opened() -> int:
    """Descriptor of the current folder, out of the way of a handler that closes the low ones; -1 when it
    cannot be opened: one may be allowed to be in a folder and no more."""
    try:
        low = os.open(".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FD_FROM)
    except OSError:
        return low
    os.close(low)
    return high


def _is_here(fd: int) -> bool:
    """Whether the open folder `fd` is the current one."""
    try:
        return os.path.samestat(os.fstat(fd), Path().stat())
    except OSError:
        return False
