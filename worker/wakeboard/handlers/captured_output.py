"""The captured output of the run that this process is in. Reads standard output, writes nothing."""

from __future__ import annotations

import contextlib
import os
import stat
import sys

from wakeboard.core.process.output_file import read_output, read_tail, written_bytes
from wakeboard.core.text import sanitize

# A progress bar writes its line a thousand times.
_TAIL_BYTES = 32 * 1024


def captured_bytes() -> int | None:
    """Return how much this process has written so far, None where standard output is not a file."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        if stat.S_ISREG(os.fstat(1).st_mode):
            return written_bytes(1)
    return None


def captured_output(limit: int) -> str:
    """Return what was written, both ends of it where it is longer than ``limit`` bytes; perhaps empty."""
    if not captured_bytes():
        return ""
    with contextlib.suppress(OSError):
        return read_output(1, limit)
    return ""


def last_output_line(limit: int, since: int = 0) -> str:
    """Return the last line that is not blank after byte ``since``, at most ``limit`` characters of it."""
    tail = ""
    if (captured_bytes() or 0) > since:
        with contextlib.suppress(OSError):
            tail = read_tail(1, _TAIL_BYTES, since)
    return sanitize.last_line(tail)[-limit:]
