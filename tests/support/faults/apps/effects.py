"""Handlers that die, or whose worker or database dies, while an effect is being made.

The first attempt makes its effect (or is about to) and meets its end; a later attempt finds what is left.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.faults.apps.handlers import BACKOFF, be_deaf, never_end, stand_before_gate
from tests.support.faults.truth_file import PLACE, read, tell
from wakeboard import Context, job

HEAVY_MB = 48


def listen(ctx: Context) -> None:
    """Wait to be told to stop."""
    while True:
        ctx.check()
        time.sleep(0.01)


def sleep_on(_ctx: Context) -> None:
    """Never look whether to stop."""
    while True:
        time.sleep(600)


def be_deaf_for_ever(_ctx: Context) -> None:
    """Refuse every signal that can be refused, and swallow what is raised."""
    be_deaf()
    never_end()


def grow(_ctx: Context) -> None:
    """Take more and more memory, in small pieces."""
    held = []
    while True:
        held.append(b"x" * 4 * 2**20)
        time.sleep(0.02)


DEATHS: dict[str, Callable[[Context], object]] = {
    "listens": listen,
    "sleeps": sleep_on,
    "is deaf": be_deaf_for_ever,
    "os._exit": lambda _: os._exit(0),
    "sys.exit": lambda _: sys.exit("enough"),
    "segfault": lambda _: ctypes.string_at(0),
    "grows": grow,
    "asks for too much": lambda _: bytearray(2**32),
    "waits at the gate": stand_before_gate,
}


@job("delicate", backoff=BACKOFF, timeout=60, max_attempts=50)
@job("delicate_heavy", backoff=BACKOFF, timeout=60, max_attempts=50, memory_mb=HEAVY_MB)
def delicate(ctx: Context) -> dict[str, Any]:
    """Make one effect, ended in its midst in the ``way`` of the payload; return what ``once`` kept of it."""
    tell("start", ctx)
    decision = ctx.payload["decision"]
    try:
        return {
            "kept": ctx.once(
                "effect",
                partial(make, ctx),
                if_unconfirmed=partial(look, ctx) if decision == "look" else decision,
            )
        }
    finally:
        tell("over", ctx)


def make(ctx: Context) -> dict[str, int]:
    """Make the effect; the first attempt meets its end before (``happens`` false) or after that."""
    happens = ctx.attempt > 1 or ctx.payload["happens"]
    if happens:
        tell("made", ctx)
    if ctx.attempt == 1:
        tell("between", ctx)
        DEATHS[ctx.payload["way"]](ctx)
    if not happens:
        tell("made", ctx)
    return {"attempt": ctx.attempt}


def look(ctx: Context, _found: object) -> str | None:
    """Ask the world whether the effect happened, as one asks a provider."""
    made = {line.run_id for line in read(Path(os.environ[PLACE])) if line.word == "made"}
    return "found" if ctx.run_id in made else None


@job("booking", backoff=BACKOFF, timeout=60, max_attempts=50)
def booking(ctx: Context) -> None:
    """Write a row that ends together with the run; the first attempt waits at the gate before its commit."""
    tell("start", ctx)
    try:
        with ctx.transaction() as connection:
            connection.exec_driver_sql(
                "INSERT INTO public.bookings VALUES (%s, %s)", (ctx.run_id, ctx.attempt)
            )
            tell("between", ctx)
            if ctx.attempt == 1:
                stand_before_gate(ctx)
        tell("committed", ctx)
    finally:
        tell("over", ctx)
