"""The folder that a child works in, and the way back to it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_FD_FROM = 200


class Folder:
    """The folder that the process is in when this is made."""

    def __init__(self) -> None:
        self._name = os.getcwd()  # noqa: PTH109 - compared as text
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
        try:
            here = os.getcwd()  # noqa: PTH109
        except OSError:
            here = ""
        if here == self._name:
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
