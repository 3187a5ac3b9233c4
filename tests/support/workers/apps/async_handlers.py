"""Async handlers as people write them, with clients that a module keeps, for the tests of a child's loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from wakeboard import Context, job
from wakeboard.core.outcome import Cancelled

KEPT: dict[str, Any] = {}


@job("client")
async def client(ctx: Context) -> list[Any]:
    """Ask a server over the connection that the first run opened, as a client with a pool does."""
    if "client" not in KEPT:
        KEPT["client"] = await asyncio.open_connection("127.0.0.1", ctx.payload["port"])
    reader, writer = KEPT["client"]
    writer.write(b"ping\n")
    await writer.drain()
    return [(await asyncio.wait_for(reader.readline(), 10)).decode(), os.getpid()]


@job("plain_loop")
def plain_loop(ctx: Context) -> Any:
    """Use the event loop as an ordinary function did for years."""
    loop = asyncio.get_event_loop()
    found = loop.run_until_complete(asyncio.sleep(0, "worked"))
    if ctx.payload.get("close"):
        loop.close()
    return [found, os.getpid()]


@job("plain_run")
def plain_run(ctx: Context) -> Any:
    """Run a loop of its own."""
    return [asyncio.run(asyncio.sleep(0, "worked")), os.getpid()]


@job("leaves_tasks")
async def leaves_tasks(ctx: Context) -> int:
    """Leave tasks behind, and note when each has ended."""

    async def linger() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.01)
            note(ctx, "ended")

    KEPT["tasks"] = [asyncio.create_task(linger()) for _ in range(3)]
    KEPT["tasks"].append(asyncio.get_running_loop().create_task(asyncio.sleep(600)))
    await asyncio.sleep(0)
    return os.getpid()


@job("tasks_left")
async def tasks_left(ctx: Context) -> list[Any]:
    """What a run finds of the tasks of those before it."""
    return [len(asyncio.all_tasks()), [task.done() for task in KEPT.get("tasks", ())], os.getpid()]


@job("leaves_generator")
async def leaves_generator(ctx: Context) -> None:
    """Stop reading from a generator in the middle."""

    async def numbers() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            note(ctx, "closed")

    async for _ in numbers():
        break


@job("breaks_loop")
async def breaks_loop(ctx: Context) -> int:
    """Break the loop in the way the payload names."""
    loop = asyncio.get_running_loop()
    match ctx.payload["how"]:
        case "stops":
            loop.stop()
            await asyncio.sleep(600)
        case "closes":
            KEPT["loop"] = loop
        case "descriptors":
            os.closerange(3, 100)
    return os.getpid()


@job("closes_loop")
def closes_loop(ctx: Context) -> None:
    """Close the loop that an async run has kept."""
    KEPT["loop"].close()


@job("in_thread")
async def in_thread(ctx: Context) -> list[Any]:
    """Work in a thread."""
    name = await asyncio.to_thread(lambda: threading.current_thread().name)
    return [name.partition("_")[0], os.getpid()]


@job("in_endless_thread")
async def in_endless_thread(ctx: Context) -> None:
    """Wait for a thread that does not end."""
    note(ctx, "begun")
    await asyncio.to_thread(time.sleep, 600)


@job("leaves_as_program")
async def leaves_as_program(ctx: Context) -> None:
    """Exit from a task, or from the handler itself."""

    async def leave() -> None:
        sys.exit(ctx.payload["status"])

    if ctx.payload["task"]:
        async with asyncio.TaskGroup() as group:
            group.create_task(leave())
            group.create_task(asyncio.sleep(600))
    await leave()


@job("stopped")
async def stopped(ctx: Context) -> str:
    """Be in the state that the payload names when a stop comes; note how it was met."""

    async def spin() -> None:
        note(ctx, "begun")
        while True:
            pass

    async def wait() -> None:
        note(ctx, "begun")
        await asyncio.sleep(600)

    try:
        match ctx.payload["how"]:
            case "waits":
                await wait()
            case "spins":
                await spin()
            case "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(600))
                    group.create_task(spin())
            case "background":
                KEPT["spinner"] = asyncio.create_task(spin())
                await asyncio.sleep(600)
            case "callback":
                asyncio.get_running_loop().call_soon(spin_in_callback, ctx)
                await asyncio.sleep(600)
            case "stubborn":
                with contextlib.suppress(asyncio.CancelledError, Cancelled):
                    await wait()
                return "finished anyway"
    finally:
        await asyncio.sleep(0.01)
        note(ctx, "tidied")
    return "not stopped"


def spin_in_callback(ctx: Context) -> None:
    """Hold the loop for a while, in no task."""
    note(ctx, "begun")
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass


@job("forks")
async def forks(ctx: Context) -> int:
    """Fork in the middle of a coroutine; the forked process comes out of it, too."""
    await asyncio.sleep(0)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return os.getpid()


def note(ctx: Context, word: str) -> None:
    """Write a word into the file that the payload names."""
    with Path(ctx.payload["file"]).open("a") as file:
        file.write(f"{word}\n")
