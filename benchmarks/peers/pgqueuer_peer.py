"""PgQueuer in its own environment; ``asked.py`` says what for.

Its handlers run in its own process; it keeps a row of its log for each move, and removes the job. Keys are
its ``dedupe_key``.
"""

from __future__ import annotations

from datetime import timedelta
from time import monotonic_ns, perf_counter

import asked
import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

ENQUEUE = (
    "INSERT INTO pgqueuer (priority, entrypoint, payload, status) VALUES (0, 'noop', '{}'::bytea, 'queued')"
)


async def prepare(url: str, jobs: int) -> asked.Answer:
    """Make its tables with ``jobs`` jobs and nothing else in them."""
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    if await connection.fetchval("SELECT to_regclass('pgqueuer')") is None:
        await queries.install()
    await connection.execute("TRUNCATE pgqueuer, pgqueuer_log")
    for part in asked.parts(jobs):
        payloads = [b'{"n": %d}' % n for n in part]
        await queries.enqueue(["noop"] * len(part), payloads, [0] * len(part))
    await connection.execute("VACUUM ANALYZE pgqueuer")
    return {"runs": jobs, "enqueue": ENQUEUE}


async def drain(url: str, ahead: int) -> asked.Answer:
    """Work off all that is due, ``ahead`` at a time."""
    connection = await asyncpg.connect(url)
    queue = PgQueuer(AsyncpgDriver(connection))
    starts: list[int] = []

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        starts.append(monotonic_ns())

    await queue.run(dequeue_timeout=timedelta(seconds=1), batch_size=ahead, mode=QueueExecutionMode.drain)
    return asked.drained(starts)


async def serve(url: str, address: str) -> asked.Answer:
    """Stay and work, until killed."""
    connection = await asyncpg.connect(url)
    queue = PgQueuer(AsyncpgDriver(connection))
    tell = asked.mouth(address)

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        tell()

    await queue.run(dequeue_timeout=timedelta(seconds=2))
    return {}


async def singly(url: str, seconds: int) -> asked.Answer:
    """Enqueue one by one."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    return await asked.one_by_one(seconds, lambda n: queries.enqueue("noop", b'{"n": %d}' % n, 0))


async def bulk(url: str, jobs: int) -> asked.Answer:
    """Enqueue many in as few calls as it takes."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    began = perf_counter()
    for part in asked.parts(jobs):
        payloads, keys = [b'{"n": %d}' % n for n in part], [f"mail:{n}" for n in part]
        await queries.enqueue(["noop"] * len(part), payloads, [0] * len(part), dedupe_key=keys)
    return {"runs": jobs, "seconds": perf_counter() - began}


if __name__ == "__main__":
    asked.answer(prepare, drain, serve, singly, bulk)
