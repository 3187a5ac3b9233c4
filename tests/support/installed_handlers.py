"""The handlers that the end-to-end tests run: each leaves its trace in files that no database rolls back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from wakeboard import Context, job

GRANDCHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def write_line(file: str, line: object) -> None:
    """Append a line in one write, so that lines of several processes never mix."""
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)


@job("tidy")
def tidy(ctx: Context) -> None:
    """End at once."""


@job("post_letter", max_attempts=8, backoff="1s", timeout=60)
def post_letter(ctx: Context) -> None:
    """Post one letter, once, then take as long as the rest of the work takes."""
    ctx.once("letter", lambda: write_line(ctx.payload["file"], ctx.run_id))
    time.sleep(ctx.payload.get("seconds", 0))


@job("deaf", max_attempts=1, timeout=2)
def deaf(ctx: Context) -> NoReturn:
    """Ignore every request to end, with a grandchild in a session of its own that does so as well."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", GRANDCHILD], start_new_session=True)
    write_line(ctx.payload["file"], os.getpid())
    write_line(ctx.payload["file"], grandchild.pid)
    while True:
        with suppress(BaseException):
            time.sleep(0.01)


@job("charge_with_error", max_attempts=3, backoff="1s")
def charge_with_error(ctx: Context) -> None:
    """The provider refuses the first call and takes the second."""

    def charge() -> None:
        write_line(ctx.payload["file"], ctx.attempt)
        if ctx.attempt == 1:
            raise RuntimeError("The provider is closed.")

    ctx.once("charge", charge)


@job("charge_and_die", max_attempts=3, backoff="1s")
def charge_and_die(ctx: Context) -> None:
    """The provider takes the call, and the process dies before anybody could write that down."""

    def charge() -> None:
        write_line(ctx.payload["file"], ctx.attempt)
        os.kill(os.getpid(), signal.SIGKILL)

    ctx.once("charge", charge)


@job("needs_file", max_attempts=1)
def needs_file(ctx: Context) -> str:
    """Fail until somebody has mended the world: until the file is there."""
    file = Path(ctx.payload["file"])
    if not file.exists():
        raise FileNotFoundError(f"The price list {file.name} has not arrived.")
    return file.read_text()


@job("long", max_attempts=1, timeout=120)
def long(ctx: Context) -> None:
    """Work in small steps for a minute, and stop where it is safe."""
    for step in range(600):
        ctx.check()
        ctx.progress(step, 600)
        time.sleep(0.1)
