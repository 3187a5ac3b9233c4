"""Handlers for the fault rows. Each tells the truth file when it starts, takes effect and ends."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import NoReturn

from tests.support.faults.truth_file import tell
from wakeboard import Context, Retryable, job

BACKOFF = "fixed 0.2s"


def wait(ctx: Context, seconds: float, *, checks: bool = True) -> None:
    """Work for ``seconds`` in small steps, ready to be cancelled or not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if checks:
            ctx.check()
        time.sleep(0.01)


def stand_before_gate(ctx: Context) -> None:
    """Wait for the file ``gate``, if one is named."""
    while "gate" in ctx.payload and not Path(ctx.payload["gate"]).exists():
        time.sleep(0.005)


@job("note", backoff=BACKOFF, timeout=60)
def note(ctx: Context) -> None:
    """Start and end."""
    tell("start", ctx)


@job("effect", backoff=BACKOFF, timeout=60, max_attempts=50)
def effect(ctx: Context) -> None:
    """Wait for ``seconds`` and for the file ``gate``, make one effect, wait for ``after``."""
    tell("start", ctx)
    wait(ctx, ctx.payload.get("seconds", 0))
    stand_before_gate(ctx)
    ctx.once("effect", lambda: tell("effect", ctx))
    wait(ctx, ctx.payload.get("after", 0))
    tell("end", ctx)


@job("gated", backoff=BACKOFF, timeout=60, max_attempts=50)
def gated(ctx: Context) -> int:
    """Wait for the file ``gate``, then say which attempt this was."""
    tell("start", ctx)
    stand_before_gate(ctx)
    tell("end", ctx)
    return ctx.attempt


@job("slow", backoff=BACKOFF, timeout=300, max_attempts=50)
def slow(ctx: Context) -> None:
    """Work for ``seconds``."""
    tell("start", ctx)
    wait(ctx, ctx.payload["seconds"], checks=False)
    tell("end", ctx)


@job("slow_at_first", backoff=BACKOFF, timeout=300)
def slow_at_first(ctx: Context) -> None:
    """Work for two minutes at the first attempt, and for no time at the second."""
    tell("start", ctx)
    wait(ctx, 120 if ctx.attempt == 1 else 0)
    tell("end", ctx)


@job("unsteady", backoff=BACKOFF, timeout=60, max_attempts=50)
def unsteady(ctx: Context) -> None:
    """Fail at the first ``failures`` attempts, then make one effect."""
    tell("start", ctx)
    if ctx.attempt <= ctx.payload["failures"]:
        raise Retryable("not_yet", "The provider is closed.", after=0.1)
    ctx.once("effect", lambda: tell("effect", ctx))


@job("one_at_a_time", backoff=BACKOFF, timeout=60, max_running=1, max_attempts=50)
def one_at_a_time(ctx: Context) -> None:
    """A type of which one may run."""
    slow(ctx)


@job("two_at_a_time", backoff=BACKOFF, timeout=60, max_running=2, max_attempts=50)
def two_at_a_time(ctx: Context) -> None:
    """A type of which two may run."""
    slow(ctx)


def be_deaf() -> None:
    """Refuse every signal that can be refused."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def never_end() -> NoReturn:
    """Wait for ever, and swallow what is raised."""
    while True:
        try:
            time.sleep(600)
        except BaseException:
            continue


@job("deaf", backoff=BACKOFF, timeout=300, max_attempts=1)
def deaf(ctx: Context) -> NoReturn:
    """Never end of its own will, with a grandchild in a session of its own."""
    tell("start", ctx)
    be_deaf()
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    never_end()


@job("hang", timeout=2, max_attempts=1)
def hang(ctx: Context) -> NoReturn:
    """Hang in the way that the payload names, for ever."""
    tell("start", ctx)
    way = ctx.payload["way"]
    if way == "deaf":
        be_deaf()
    if way == "in C":
        ctypes.PyDLL(None).sleep(600)  # holds the interpreter: no Python signal handler gets a turn
    while True:
        try:
            while way != "stopped":
                pass
            time.sleep(600)
        except BaseException:
            continue


@job("hog", timeout=9, max_attempts=1)
def hog(ctx: Context) -> None:
    """Hold the interpreter in one call, for much longer than the lease."""
    tell("start", ctx)
    if ctx.payload["way"] == "regex":
        re.match(r"(a+)+b", "a" * 60)
    else:
        pow(3, 10**9)


@job("greedy", backoff=BACKOFF, timeout=60, max_attempts=3)
def greedy(ctx: Context) -> None:
    """Take more memory than the group of processes may have that ``group`` names; without one, be killed."""
    tell("start", ctx)
    if ctx.payload["group"]:
        Path(ctx.payload["group"]).write_text(str(os.getpid()))
        held = bytearray(200 * 2**20)
        for place in range(0, len(held), 4096):
            held[place] = 1
    os.kill(os.getpid(), signal.SIGKILL)


@job("parent", timeout=1, max_attempts=1)
def parent(ctx: Context) -> None:
    """Leave a process in a session of its own and one whose parent has gone, then never end."""
    tell("start", ctx)
    file = os.open(ctx.payload["pids"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    apart = subprocess.Popen(["setsid", "sleep", "600"])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            be_deaf()
            os.write(file, f"{os.getpid()} ".encode())
            time.sleep(600)
        os._exit(0)
    os.wait()
    os.write(file, f"{apart.pid} {os.getpid()} ".encode())
    be_deaf()
    never_end()
