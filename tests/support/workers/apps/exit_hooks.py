"""Handlers and a library with something to do at the end of their process, for the tests of that end."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import ctypes
import logging.handlers
import os
import sys
import threading
import time
from typing import Any

from tests.support.workers.background_shipper import shipper, write
from wakeboard import Context, job, on_child_exit

_pool = concurrent.futures.ThreadPoolExecutor(1)
_memory = logging.handlers.MemoryHandler(1000, target=logging.FileHandler(os.environ["SHIPPED"], delay=True))
_state: dict[str, Any] = {"hook": None}


@atexit.register
def at_exit() -> None:
    """What the module registered when it was imported."""
    write("atexit of the import")


@on_child_exit
async def close_client() -> None:
    """A hook that awaits, as to close a client does."""
    await asyncio.sleep(0)
    write(f"async hook {_state.get('loop') in (None, asyncio.get_running_loop())}")


@on_child_exit
def hook() -> None:
    """A hook that does as a run has told it."""
    write("hook")
    match _state["hook"]:
        case "fails":
            raise ValueError("the hook's own")
        case "hangs":
            time.sleep(600)
        case "hangs in C":
            ctypes.PyDLL(None).sleep(600)
        case "exits":
            sys.exit(3)


@job("nothing")
def nothing(ctx: Context) -> int:
    """Do nothing."""
    return os.getpid()


@job("remember_loop")
async def remember_loop(ctx: Context) -> None:
    """Remember the loop that the hook should have."""
    _state["loop"] = asyncio.get_running_loop()


@job("capture")
def capture(ctx: Context) -> int:
    """Report things, in the way of the payload, and end well or fail."""
    for number in range(ctx.payload["events"]):
        getattr(shipper, ctx.payload["how"])(f"event {ctx.run_id} {number}")
    write("captured")
    if ctx.payload.get("fail"):
        raise ValueError("reported")
    while ctx.payload.get("wait"):
        time.sleep(0.01)
    return os.getpid()


@job("register")
def register(ctx: Context) -> None:
    """Register one more function, in a run."""
    atexit.register(write, "atexit of a run")


@job("log")
def log(ctx: Context) -> None:
    """Log a line that stays in memory until the end."""
    _memory.setFormatter(logging.Formatter("%(message)s"))
    _memory.emit(logging.makeLogRecord({"msg": "logged", "levelno": logging.INFO}))


@job("leave_thread")
def leave_thread(ctx: Context) -> None:
    """Leave a thread that writes when it ends, and return or fail."""

    def work() -> None:
        write("begun")
        time.sleep(ctx.payload["seconds"])
        write("thread")

    threading.Thread(target=work, daemon=ctx.payload.get("daemon", False)).start()
    if ctx.payload.get("fail"):
        raise ValueError("with a thread at work")


@job("use_pool")
def use_pool(ctx: Context) -> None:
    """Use the module's pool, and leave a task in it."""
    _pool.submit(time.sleep, 0.5)
    _pool.submit(write, "pooled")


@job("set_hook")
def set_hook(ctx: Context) -> None:
    """Tell the hook what to do."""
    _state["hook"] = ctx.payload["does"]
