"""Handlers whose processes die, each in its own way. Used by the tests of what a death is called."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from wakeboard import Context, job

MEGABYTE = 2**20
HELD: list[bytearray] = []
GROW = "import time\nheld = []\nwhile True:\n    held.append(bytearray(b'x' * 2**20))\n    time.sleep(0.002)"


def grow() -> None:
    """Take memory that is really used, about half a gigabyte a second, without end."""
    while True:
        HELD.append(bytearray(b"x" * MEGABYTE))
        time.sleep(0.002)


@job("die", max_attempts=2, backoff="fixed 0.1s", timeout=60)
def die(ctx: Context) -> None:
    """End the process in the way that the payload names."""
    match ctx.payload["way"]:
        case "exit":
            os._exit(0)
        case "exit with an error":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "bus error":
            os.kill(os.getpid(), signal.SIGBUS)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "out of memory":
            Path(ctx.payload["group"], "cgroup.procs").write_text(str(os.getpid()))
            grow()


@job("hungry", max_attempts=2, backoff="fixed 0.1s", timeout=60, memory_mb=100)
def hungry(ctx: Context) -> None:
    """Take more memory than the type may hold, in the way that the payload names."""
    match ctx.payload["way"]:
        case "little by little":
            grow()
        case "in another process":
            subprocess.run([sys.executable, "-c", GROW], check=True)
        case "in one piece":
            HELD.append(bytearray(1024 * MEGABYTE))


@job("modest", memory_mb=100, max_attempts=1)
def modest(ctx: Context) -> int:
    """Hold less than the type may, long enough to be weighed."""
    HELD.append(bytearray(b"x" * (50 * MEGABYTE)))
    time.sleep(1.2)
    return len(HELD.pop())


@job("neighbour", backoff="fixed 0.1s")
def neighbour(ctx: Context) -> None:
    """End at once."""
