"""A slot's output file: memory that its child's standard output and error append to, readable also after the
child's death.

It begins with a mark, so that one look at a length tells the child two things: nothing was written, and
standard output is still this file. Who empties the file itself (`> /dev/stderr` in a shell) takes the mark
with it, and the text begins at its first byte.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import sys

from worker.processes.slotpage import create_memory
from worker.texts import clean_text

_KEEP_SIZE_PUNCH_HOLE = 3
_LARGEST_BYTES = 1024 * 1024
_KEPT_BYTES = 64 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MARK = b"The output of a run of Wakeboard:\n"
_MARK_BYTES = len(_MARK)


def create_output(slot: int) -> int:
    """Descriptor of a new output file with nothing but its mark; every write through it appends."""
    fd = create_memory(f"wakeboard-output-{slot}")
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    os.write(fd, _MARK)
    return fd


def is_silent(fd: int) -> bool:
    """True when `fd` is an output file to which nothing was written. OSError when it cannot be one.

    The length by itself, which a file of the same length has as well: a quarter of what `os.fstat` costs.
    """
    return os.lseek(fd, 0, os.SEEK_END) == _MARK_BYTES


def is_as_new(fd: int) -> bool:
    """True when the output file `fd` is its mark and nothing else."""
    return is_silent(fd) and _begin(fd) == _MARK_BYTES


def written_bytes(fd: int) -> int:
    """How many bytes were written to the output file `fd`."""
    return os.fstat(fd).st_size - _begin(fd)


def read_tail(fd: int, limit: int) -> str:
    """The last `limit` bytes that were written to the output file `fd`, as text that is safe to show."""
    begin = max(os.fstat(fd).st_size - limit, 0)
    if begin < _MARK_BYTES:
        begin = 0
    found = os.pread(fd, limit + _MARK_BYTES, begin)
    written = found if begin else found.removeprefix(_MARK)
    text = written[-limit:].decode("utf-8", "replace")
    return clean_text(text.lstrip("\ufffd") if begin or len(written) > limit else text, limit)


def trim(fd: int) -> None:
    """Give the memory of all but the last 64 kB back when the file holds more than 1 MB; its length stays."""
    state = os.fstat(fd)
    if state.st_blocks * 512 <= _LARGEST_BYTES:
        return
    end = max(state.st_size - _KEPT_BYTES, 0) // _PAGE_BYTES * _PAGE_BYTES
    if sys.platform == "linux" and end:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(end))


def empty(fd: int) -> None:
    """Forget everything written so far."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.write(fd, _MARK)


def _begin(fd: int) -> int:
    """Where the text begins in the output file `fd`."""
    return _MARK_BYTES if os.pread(fd, _MARK_BYTES, 0) == _MARK else 0
