"""Handlers for the tests of the worker's motion: quick, slow, deaf, crashing, limited, lying.

Each start is a line in the truth file ($TRUTH, when set): the only count of starts that the product cannot
embellish.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NoReturn

from wakeboard import Context, Permanent, enqueue, job


def tell(word: str, ctx: Context) -> None:
    """Append a line to the truth file: word, run, attempt, pid, seconds on the clock since boot."""
    path = os.environ.get("TRUTH")
    if not path:
        return
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    line = f"{word} {ctx.run_id} {ctx.attempt} {os.getpid()} {now:.6f}\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def wait(ctx: Context, seconds: float, *, checks: bool) -> None:
    """Wait ``seconds`` in small steps, ready to be cancelled or not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if checks:
            ctx.check()
        time.sleep(0.01)


@job("quick", backoff="fixed 0.1s")
def quick(ctx: Context) -> Any:
    """Return the payload's answer."""
    tell("start", ctx)
    return ctx.payload.get("answer")


@job("swift", backoff="fixed 0.1s")
def swift(ctx: Context) -> None:
    """End at once, or when the file ``gate`` exists if one is named."""
    tell("start", ctx)
    while "gate" in ctx.payload and not Path(ctx.payload["gate"]).exists():
        time.sleep(0.005)


@job("swift_only_try", max_attempts=1)
def swift_only_try(ctx: Context) -> None:
    """The same for a type that may start only once."""
    swift(ctx)


@job("patient", backoff="fixed 0.1s", timeout=60)
def patient(ctx: Context) -> str:
    """Wait ``seconds`` and look now and then whether to stop."""
    tell("start", ctx)
    print("waiting")
    wait(ctx, ctx.payload.get("seconds", 30), checks=True)
    tell("end", ctx)
    return "waited"


@job("only_try", max_attempts=1)
def only_try(ctx: Context) -> None:
    """A quick type that may start only once."""
    tell("start", ctx)


@job("gated", backoff="fixed 0.1s", timeout=60)
def gated(ctx: Context) -> str:
    """Wait for the file ``gate``, looking whether to stop."""
    tell("start", ctx)
    while not Path(ctx.payload["gate"]).exists():
        ctx.check()
        time.sleep(0.005)
    tell("end", ctx)
    return "let through"


@job("deaf", timeout=2, max_attempts=1)
def deaf(ctx: Context) -> NoReturn:
    """Ignore every polite word, with a grandchild in a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(ctx.payload["pids"]).write_text(f"{os.getpid()} {grandchild.pid}")
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue


@job("deaf_for_long", timeout=60, max_attempts=1)
def deaf_for_long(ctx: Context) -> None:
    """The same with a timeout that no test waits for."""
    deaf(ctx)


@job("effect", backoff="fixed 0.1s", timeout=30)
def effect(ctx: Context) -> None:
    """Make one effect, then take a little longer."""
    tell("start", ctx)

    def land() -> int:
        tell("effect", ctx)
        return ctx.attempt

    ctx.once("land", land, if_unconfirmed="redo")
    wait(ctx, ctx.payload.get("seconds", 0.2), checks=False)


@job("crash", max_attempts=1)
def crash(ctx: Context) -> None:
    """Die in the way that the payload names."""
    way = ctx.payload["way"]
    if way == "exit":
        os._exit(0)
    elif way == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif way == "abort":
        os.abort()
    elif way == "sys.exit":
        raise SystemExit(3)


class Liar(Exception):
    """An exception whose text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@job("lie", max_attempts=1)
def lie(ctx: Context) -> Any:
    """Fail, or answer, in a way that is hard to write down."""
    way = ctx.payload["way"]
    if way == "nul in message":
        raise ValueError("a\x00b\ud800c")
    if way == "text raises":
        raise Liar
    if way == "huge message":
        raise ValueError("x" * 20_000_000)
    if way == "odd code":
        raise Permanent("c\x00\r\n" * 100, "'; DROP TABLE wakeboard.job_runs; --")
    if way == "circle":
        error = ValueError("round")
        error.__cause__ = KeyError("and round")
        error.__cause__.__cause__ = error
        raise error
    return {
        "nul in result": {"text": "a\x00b"},
        "escaped nul in result": {"text": "a\\u0000b"},
        "huge result": "x" * 100_000,
        "no json": object(),
        "odd output": print("\x00\x1b[31m\udcff{NULL}\\\"'", end="") or "printed",
    }[way]


@job("chain", backoff="fixed 0.1s")
def chain(ctx: Context) -> None:
    """Enqueue the next link in the transaction that finishes this one."""
    left = ctx.payload["links"]
    with ctx.transaction():
        if left:
            enqueue(None, "chain", {"links": left - 1})


@job("one_at_a_time", max_running=1, backoff="fixed 0.1s")
def one_at_a_time(ctx: Context) -> None:
    """A type of which one may run."""
    tell("start", ctx)
    wait(ctx, ctx.payload.get("seconds", 0.05), checks=True)
    tell("end", ctx)


@job("four_at_a_time", max_running=4, backoff="fixed 0.1s")
def four_at_a_time(ctx: Context) -> None:
    """A type of which four may run."""
    one_at_a_time(ctx)


@job("stubborn_failure", backoff="fixed 0.1s", max_attempts=3)
def stubborn_failure(ctx: Context) -> NoReturn:
    """Fail each time."""
    raise ConnectionError("the mail server did not answer")


@job("fails_after_commit")
def fails_after_commit(ctx: Context) -> None:
    """Commit the end of the run, then ask for more."""
    with ctx.transaction():
        pass
    ctx.once("mail", lambda: "sent")


@job("long_transaction", timeout=30, max_attempts=1)
def long_transaction(ctx: Context) -> None:
    """Work for ``seconds`` inside the transaction that finishes the run."""
    with ctx.transaction():
        wait(ctx, ctx.payload["seconds"], checks=False)


@job("long_after_commit", timeout=30)
def long_after_commit(ctx: Context) -> None:
    """Commit the end of the run, then go on for longer than the lease."""
    with ctx.transaction():
        pass
    wait(ctx, ctx.payload["seconds"], checks=False)
    Path(ctx.payload["file"]).touch()
