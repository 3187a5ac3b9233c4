"""PgQueuer in its own environment; ``command.py`` says what for.

Its handlers run in its own process; it keeps a row of its log for each move, and removes the job. Keys are
its ``dedupe_key``, kinds of jobs its entrypoints, and a limit is its ``concurrency_limit``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from time import monotonic_ns, perf_counter, sleep

import asyncpg
import command
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

ENQUEUE = (
    "INSERT INTO pgqueuer (priority, entrypoint, payload, status) VALUES (0, 'noop', '{}'::bytea, 'queued')"
)


# What is done in a job, after its start was noted.
Work = Callable[[Job], Awaitable[object]]


async def prepare(url: str, jobs: int, types: int = 0, lead: int = 0, **_: int) -> command.Answer:
    """Make its tables with ``jobs`` jobs and nothing else in them."""
    kinds = command.kinds(types)
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    if await connection.fetchval("SELECT to_regclass('pgqueuer')") is None:
        await queries.install()
    await connection.execute("TRUNCATE pgqueuer, pgqueuer_log")
    for part in command.parts(jobs):
        payloads = [b'{"n": %d}' % n for n in part]
        names = [kinds[n % len(kinds)] for n in part]
        due = [timedelta(milliseconds=lead)] * len(part) if lead else None
        await queries.enqueue(names, payloads, [0] * len(part), due)
    await connection.execute("VACUUM ANALYZE pgqueuer")
    return {"runs": jobs, "enqueue": ENQUEUE}


async def drain(url: str, ahead: int, types: int = 0, limit: int = 0, **how: int) -> command.Answer:
    """Work off all that there is, ``ahead`` at a time."""
    connection = await asyncpg.connect(url)
    queue = PgQueuer(AsyncpgDriver(connection))
    starts: list[int] = []
    waits: list[float] = []
    work = await working(url, waits, **how)

    async def noop(job: Job) -> None:
        starts.append(monotonic_ns())

    async def handler(job: Job) -> None:
        starts.append(monotonic_ns())
        await work(job)

    for kind in command.kinds(types):
        queue.entrypoint(kind, concurrency_limit=limit)(handler if how else noop)
    await queue.run(dequeue_timeout=timedelta(seconds=1), batch_size=ahead, mode=QueueExecutionMode.drain)
    return command.drained(starts, waits)


async def working(
    url: str, waits: list[float], threads: int = 0, writes: int = 0, fails: int = 0, **_: int
) -> Work:
    """Return what a job does (see ``command.py``); quick ones of a mix add their wait to ``waits``."""
    pool = ThreadPoolExecutor(max(1, threads))
    connections = await asyncpg.create_pool(url, min_size=writes, max_size=writes) if writes else None

    def begun(job: Job) -> float:
        if command.is_slow(job.entrypoint):
            return command.SLOW_SECONDS
        waits.append((datetime.now(UTC) - job.execute_after).total_seconds() * 1000)
        return command.QUICK_SECONDS

    async def work(job: Job) -> None:
        if fails:
            raise ValueError("The card was refused.")
        if connections:
            await connections.execute("INSERT INTO public.written (run_id) VALUES ($1)", job.id)
        if threads > 0:
            await asyncio.get_running_loop().run_in_executor(pool, lambda: sleep(begun(job)))
        if threads < 0:
            await asyncio.sleep(begun(job))

    return work


async def serve(url: str, address: str) -> command.Answer:
    """Stay and work, until killed."""
    connection = await asyncpg.connect(url)
    queue = PgQueuer(AsyncpgDriver(connection))
    send_start = command.start_sender(address)

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        send_start()

    await queue.run(dequeue_timeout=timedelta(seconds=2))
    return {}


async def singly(url: str, seconds: int) -> command.Answer:
    """Enqueue one by one."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    return await command.one_by_one(seconds, lambda n: queries.enqueue("noop", b'{"n": %d}' % n, 0))


async def bulk(url: str, jobs: int) -> command.Answer:
    """Enqueue many in as few calls as it takes."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    began = perf_counter()
    for part in command.parts(jobs):
        payloads, keys = [b'{"n": %d}' % n for n in part], [f"mail:{n}" for n in part]
        await queries.enqueue(["noop"] * len(part), payloads, [0] * len(part), dedupe_key=keys)
    return {"runs": jobs, "seconds": perf_counter() - began}


if __name__ == "__main__":
    command.answer(prepare, drain, serve, singly, bulk)
