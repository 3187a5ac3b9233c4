"""A slot's output file: memory to which the child's standard output and error append. It survives the child.

The file begins with a marker line, so its length alone tells the child two things: nothing was written, and
standard output is still this file. A handler that truncates the file (`> /dev/stderr` in a shell) removes the
marker, and the text begins at the first byte.
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
_TAIL_BYTES = 64 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MARKER = b"The output of a run of Wakeboard:\n"
_MARKER_BYTES = len(_MARKER)
# At the beginning of a cut text: the rest of a line, if it is short; else the rest of a character.
_PARTIAL_START = re.compile(rb"[^\r\n]{0,1024}[\r\n]+|[\x80-\xbf]{1,3}")


def create_output(slot: int) -> int:
    """Return a descriptor of a new output file with only its marker; every write through it appends."""
    fd = create_memory(f"wakeboard-output-{slot}")
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    os.write(fd, _MARKER)
    return fd


def has_marker_length(fd: int) -> bool:
    """Return whether `fd` is as long as an output file to which nothing was written.

    Another file may have the same length; this costs a quarter of `os.fstat`. OSError when `fd` is no file.
    """
    return os.lseek(fd, 0, os.SEEK_END) == _MARKER_BYTES


def is_empty(fd: int) -> bool:
    """Return whether the output file `fd` is its marker and nothing else."""
    return has_marker_length(fd) and _text_offset(fd) == _MARKER_BYTES


def written_bytes(fd: int) -> int:
    """Return how many bytes were written to the output file `fd`."""
    return os.fstat(fd).st_size - _text_offset(fd)


def read_output(fd: int, limit: int) -> str:
    """Return the text of the output file `fd`, safe for a screen.

    Of more than `limit` bytes: both ends, and between them how much is left out.
    """
    begin, end = _text_offset(fd), os.fstat(fd).st_size
    if end <= _PAGE_BYTES + _TAIL_BYTES:
        text = safe_text(_decode(os.pread(fd, end - begin, begin)))
        whole = text.encode()
        return text if len(whole) <= limit else head_and_tail(whole, whole, len(whole), limit)
    head = safe_text(_decode(os.pread(fd, _PAGE_BYTES - begin, begin))).encode()
    last = _read_end(fd, _PAGE_BYTES, end, _TAIL_BYTES)
    tail = safe_text(_decode(last)).encode()
    unread = end - _PAGE_BYTES - len(last)
    return head_and_tail(head, tail, len(head) + unread + len(tail), limit)


def read_tail(fd: int, limit: int, since: int = 0) -> str:
    """Return the last `limit` bytes of text of the output file `fd` after byte `since`, safe for a screen.

    Of more than `limit` bytes the result begins with a line, if one begins soon.
    """
    return safe_text(_decode(_read_end(fd, _text_offset(fd) + since, os.fstat(fd).st_size, limit)))


def _read_end(fd: int, begin: int, end: int, limit: int) -> bytes:
    """Return the last `limit` of the bytes from `begin` to `end`, without a partial line at the start."""
    first = max(begin, end - limit)
    data = os.pread(fd, max(end - first, 0), first)
    if first > begin and (partial := _PARTIAL_START.match(data)):
        return data[partial.end() :]
    return data


def _decode(data: bytes) -> str:
    # The incremental decoder leaves out half a character at the end.
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def trim(fd: int) -> None:
    """Free the memory of all but the first page and the last 64 kB when the file holds more than 1 MB.

    The file's length stays.
    """
    state = os.fstat(fd)
    if state.st_blocks * 512 <= _LARGEST_BYTES:
        return
    end = max(state.st_size - _TAIL_BYTES, 0) // _PAGE_BYTES * _PAGE_BYTES
    if sys.platform == "linux" and end > _PAGE_BYTES:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate(
            fd, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_int64(_PAGE_BYTES), ctypes.c_int64(end - _PAGE_BYTES)
        )


def clear_output(fd: int) -> None:
    """Reset the file to its marker."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.write(fd, _MARKER)


def _text_offset(fd: int) -> int:
    """Return where the text begins in the output file `fd`."""
    return _MARKER_BYTES if os.pread(fd, _MARKER_BYTES, 0) == _MARKER else 0
