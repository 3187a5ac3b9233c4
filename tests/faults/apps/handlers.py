"""Handlers for the fault rows. Each tells the truth file when it starts, takes effect and ends."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import NoReturn

from tests.faults.truth import tell
from worker import Context, Retryable, job

BACKOFF = "fixed 0.2s"


def wait(ctx: Context, seconds: float, *, checks: bool = True) -> None:
    """Work for ``seconds`` in small steps, ready to be cancelled or not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if checks:
            ctx.check()
        time.sleep(0.01)


@job("note", backoff=BACKOFF, timeout=60)
def note(ctx: Context) -> None:
    """Start and end."""
    tell("start", ctx)


@job("effect", backoff=BACKOFF, timeout=60, max_attempts=50)
def effect(ctx: Context) -> None:
    """Wait for ``seconds`` and for the file ``gate``, make one effect, wait for ``after``."""
    tell("start", ctx)
    wait(ctx, ctx.payload.get("seconds", 0))
    while "gate" in ctx.payload and not Path(ctx.payload["gate"]).exists():
        ctx.check()
        time.sleep(0.005)
    ctx.once("effect", lambda: tell("effect", ctx))
    wait(ctx, ctx.payload.get("after", 0))
    tell("end", ctx)


@job("slow", backoff=BACKOFF, timeout=300, max_attempts=50)
def slow(ctx: Context) -> None:
    """Work for ``seconds``."""
    tell("start", ctx)
    wait(ctx, ctx.payload["seconds"], checks=False)
    tell("end", ctx)


@job("unsteady", backoff=BACKOFF, timeout=60, max_attempts=50)
def unsteady(ctx: Context) -> None:
    """Fail ``failures`` times, then make one effect."""
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


@job("slow_then_quick", backoff=BACKOFF, timeout=60)
def slow_then_quick(ctx: Context) -> None:
    """Wait for somebody to kill the first attempt; the second ends at once."""
    tell("start", ctx)
    if ctx.attempt == 1:
        wait(ctx, 60)


def be_deaf() -> None:
    """Refuse every signal that can be refused."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


@job("deaf", backoff=BACKOFF, timeout=300, max_attempts=1)
def deaf(ctx: Context) -> NoReturn:
    """Never end of its own will, with a grandchild in a session of its own."""
    tell("start", ctx)
    be_deaf()
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            continue
