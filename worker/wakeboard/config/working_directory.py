"""The folder that a process works in: whether it still exists, and the way back to it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_LOWEST_FD = 200
ROOT = "/"
MISSING_FOLDER = (
    "The folder in which this was started is gone. Change into one that is there (cd) and start it again."
)


def current_folder() -> str | None:
    """Return the name of the current folder; None when it was removed or cannot be read."""
    try:
        return os.getcwd()  # noqa: PTH109 - compared as text
    except OSError:
        return None


class WorkingDirectory:
    """The folder that the process is in when this is made; where that was removed, it moves to ``/``."""

    def __init__(self) -> None:
        name = current_folder()
        if name is None:
            os.chdir(ROOT)
        self._name = name or ROOT
        self._fd = _open_current()

    def return_to(self) -> None:
        """Go back by descriptor, whatever has the folder's name now. Raises OSError when that fails."""
        try:
            os.fchdir(self._fd)
        except (OSError, ValueError):  # The second of -1.
            self.return_by_name()

    def return_by_name(self) -> None:
        """Go to what has the folder's name now, where that is another. Raises OSError when that fails."""
        if current_folder() == self._name:
            return
        os.chdir(self._name)
        if not _is_current(self._fd):
            # The old descriptor stays open: its number may be a handler's by now.
            self._fd = _open_current()


def _open_current() -> int:
    """Return a descriptor of the current folder, a high number because handlers may close the low ones.

    Returns -1 when it cannot be opened: a process may be allowed to enter a folder and not to open it.
    """
    try:
        low = os.open(".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    except OSError:
        return low
    os.close(low)
    return high


def _is_current(fd: int) -> bool:
    """Return whether the open folder ``fd`` is the current one."""
    try:
        return os.path.samestat(os.fstat(fd), Path().stat())
    except OSError:
        return False
