"""Chancy in its own environment; ``command.py`` says what for.

Its jobs run in its own process (its executor for asyncio, the quickest of four), polling again as soon as one
has ended, with results written each tenth of a second instead of each second and without the plugins that
count and prune. It keeps the job and no row for an attempt. Keys are its ``unique_key``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic_ns, perf_counter

import command
import psycopg
from chancy import Chancy, Job, Queue, Worker

ENQUEUE = """WITH pushed AS (
    INSERT INTO chancy_jobs (id, queue, func) VALUES (gen_random_uuid(), 'default', '__main__.report_start'))
SELECT pg_notify('chancy_events', '{"t": "queue.pushed", "q": "default"}')"""
WRITE_SECONDS = 0.1
# Idle for so long, it has worked everything off; the end is counted from its last write.
IDLE_NS = 5_000_000_000
starts: list[int] = []
send_start: list[Callable[[], object]] = []


async def noop(n: int = 0) -> None:
    """Do nothing."""
    starts.append(monotonic_ns())


async def report_start() -> None:
    """Send the time to whoever measures."""
    send_start[0]()


class Writing(Worker):
    """A worker that knows when it last wrote."""

    last_ns = 0

    async def flush(self) -> None:
        """Write, and note the time."""
        something = bool(self._pending_updates) or not self.outgoing.empty()
        await super().flush()
        if something:
            self.last_ns = monotonic_ns()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Chancy]:
    """Yield an application that logs nothing about each job."""
    log = logging.getLogger("chancy")
    log.setLevel(logging.WARNING)
    async with Chancy(url, log=log, no_default_plugins=True) as chancy:
        yield chancy


def queue(at_once: int) -> Queue:
    """Return the queue that runs so many at once."""
    return Queue(
        "default", concurrency=at_once, executor=Chancy.Executor.Async, eager_polling=True, polling_interval=1
    )


def job(n: int, key: str | None = None) -> Job:
    """Return a no-op job."""
    return Job(func="__main__.noop", kwargs={"n": n}, unique_key=key)


async def prepare(url: str, jobs: int) -> command.Answer:
    """Make its tables with ``jobs`` jobs and nothing else in them."""
    async with (
        opened(url) as chancy,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        await chancy.migrate()
        await connection.execute("TRUNCATE chancy_jobs, chancy_workers")
        for part in command.parts(jobs):
            async for _ in chancy.push_many([job(n) for n in part], batch_size=len(part)):
                pass
        await connection.execute("VACUUM ANALYZE chancy_jobs")
    return {"runs": jobs, "enqueue": ENQUEUE}


async def drain(url: str, ahead: int) -> command.Answer:
    """Work off all that is due, ``ahead`` at once."""
    async with opened(url) as chancy:
        await chancy.declare(queue(ahead), upsert=True)
        worker = Writing(chancy)
        worker.send_outgoing_interval = WRITE_SECONDS  # type: ignore[assignment]
        async with worker:
            begun_ns = monotonic_ns()
            while monotonic_ns() - (starts[-1] if starts else begun_ns) < IDLE_NS:
                await asyncio.sleep(0.1)
        return command.drained(starts) | {"last_ns": worker.last_ns}


async def serve(url: str, address: str) -> command.Answer:
    """Stay and work, until killed."""
    send_start.append(command.start_sender(address))
    async with opened(url) as chancy:
        await chancy.declare(queue(2), upsert=True)
        async with Worker(chancy) as worker:
            await worker.wait_for_shutdown()
    return {}


async def singly(url: str, seconds: int) -> command.Answer:
    """Enqueue one by one."""
    async with opened(url) as chancy:
        return await command.one_by_one(seconds, lambda n: chancy.push(job(n)))


async def bulk(url: str, jobs: int) -> command.Answer:
    """Enqueue many in as few calls as it takes."""
    async with opened(url) as chancy:
        began = perf_counter()
        made = [job(n, f"mail:{n}") for n in range(jobs)]
        async for _ in chancy.push_many(made, batch_size=command.AT_ONCE):
            pass
        return {"runs": jobs, "seconds": perf_counter() - began}


if __name__ == "__main__":
    command.answer(prepare, drain, serve, singly, bulk)
