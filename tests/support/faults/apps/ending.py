"""Handlers whose process has something to do at its end, or cannot come to one."""

from __future__ import annotations

import atexit
import ctypes
import threading
import time

from tests.support.faults.truth_file import tell
from tests.support.workers.background_shipper import shipper
from wakeboard import Context, job, on_child_exit

BACKOFF = "fixed 0.2s"
EVENTS = 5


@job("report", backoff=BACKOFF, timeout=60)
def report(ctx: Context) -> None:
    """Report by the thread of a library, or leave it to the end of the process; wait at the first attempt if
    told to."""
    tell("start", ctx)
    for number in range(EVENTS):
        getattr(shipper, ctx.payload["how"])(f"{ctx.run_id} {ctx.attempt} {number}")
    while ctx.payload.get("wait") and ctx.attempt == 1:
        time.sleep(0.01)
    tell("end", ctx)


@job("endless", backoff=BACKOFF, timeout=60)
def endless(ctx: Context) -> None:
    """End well, and leave to the process's end what never ends."""
    tell("start", ctx)
    match ctx.payload["way"]:
        case "thread":
            threading.Thread(target=time.sleep, args=(600,)).start()
        case "atexit":
            atexit.register(time.sleep, 600)
        case "in C":
            atexit.register(ctypes.PyDLL(None).sleep, 600)
        case "hook":
            on_child_exit(sleep_long)
    tell("end", ctx)


def sleep_long() -> None:
    """Hold the end up."""
    time.sleep(600)
