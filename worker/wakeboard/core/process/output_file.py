"""A slot's output file: memory that its child's standard output and error append to, readable also after the
child's death.

It begins with a mark, so that one look at a length tells the child two things: nothing was written, and
standard output is still this file. Who empties the file itself (`> /dev/stderr` in a shell) takes the mark
with it, and the text begins at its first byte.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import fcntl
import os
import re
import sys

from wakeboard.core.process.shared_slot import create_memory
from wakeboard.core.text.sanitize import head_and_tail, safe_text

_KEEP_SIZE_PUNCH_HOLE = 3
_LARGEST_BYTES = 1024 * 1024
_KEPT_BYTES = 64 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MARK = b"The output of a run of Wakeboard:\n"
_MARK_BYTES = len(_MARK)
# What a text that was cut begins with: the rest of a line, if it is short; else that of a character.
_CUT_OFF = re.compile(rb"[^\r\n]{0,1024}[\r\n]+|[\x80-\xbf]{1,3}")


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


def read_output(fd: int, limit: int) -> str:
    """What was written to the output file `fd`, as on a screen: both ends of it where that is more than
    `limit` bytes, and between them how much is left out."""
    begin, end = _begin(fd), os.fstat(fd).st_size
    if end <= _PAGE_BYTES + _KEPT_BYTES:
        text = safe_text(_decoded(os.pread(fd, end - begin, begin)))
        whole = text.encode()
        return text if len(whole) <= limit else head_and_tail(whole, whole, len(whole), limit)
    head = safe_text(_decoded(os.pread(fd, _PAGE_BYTES - begin, begin))).encode()
    written = _end_of(fd, _PAGE_BYTES, end, _KEPT_BYTES)
    tail = safe_text(_decoded(written)).encode()
    unread = end - _PAGE_BYTES - len(written)
    return head_and_tail(head, tail, len(head) + unread + len(tail), limit)


def read_tail(fd: int, limit: int, since: int = 0) -> str:
    """The last `limit` bytes that were written to the output file `fd` after byte `since`, as on a screen.

    Where more was written, they begin with a line, if one begins soon.
    """
    return safe_text(_decoded(_end_of(fd, _begin(fd) + since, os.fstat(fd).st_size, limit)))


def _end_of(fd: int, begin: int, end: int, limit: int) -> bytes:
    """The last `limit` of the bytes from `begin` to `end`, without the rest of a line that was cut."""
    first = max(begin, end - limit)
    written = os.pread(fd, max(end - first, 0), first)
    if first > begin and (cut := _CUT_OFF.match(written)):
        return written[cut.end() :]
    return written


def _decoded(written: bytes) -> str:
    """As text. What is cut at the end may be half a character, which is left out."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(written)


def trim(fd: int) -> None:
    """Give the memory of all but the first page and the last 64 kB back when the file holds more than 1 MB;
    its length stays."""
    state = os.fstat(fd)
    if state.st_blocks * 512 <= _LARGEST_BYTES:
        return
    end = max(state.st_size - _KEPT_BYTES, 0) // _PAGE_BYTES * _PAGE_BYTES
    if sys.platform == "linux" and end > _PAGE_BYTES:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate(
            fd, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_int64(_PAGE_BYTES), ctypes.c_int64(end - _PAGE_BYTES)
        )


def empty(fd: int) -> None:
    """Forget everything written so far."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.write(fd, _MARK)


def _begin(fd: int) -> int:
    """Where the text begins in the output file `fd`."""
    return _MARK_BYTES if os.pread(fd, _MARK_BYTES, 0) == _MARK else 0
