"""Procrastinate in its own environment; ``command.py`` says what for.

Its handlers run in its own process; it keeps the job, and a row of its events for each move. It claims and
finishes jobs one by one. Keys are its ``queueing_lock``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic_ns, perf_counter

import command
import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.tasks import Task

ENQUEUE = """SELECT procrastinate_defer_jobs_v1(ARRAY[
    ROW('default', 'noop', 0, NULL, NULL, '{}', NULL)]::procrastinate_job_to_defer_v1[])"""
# What a worker has beyond its jobs: one listens, one is for its heart.
SPARE = 2
MOST_CONNECTIONS = 20


@asynccontextmanager
async def opened(url: str, at_once: int = 1) -> AsyncIterator[App]:
    """Yield an application with a connection for each of ``at_once`` jobs, up to a limit."""
    most = min(at_once, MOST_CONNECTIONS) + SPARE
    app = App(connector=PsycopgConnector(conninfo=url, min_size=min(at_once, 4), max_size=most))
    async with app.open_async():
        yield app


def plain(app: App) -> Task:
    """Return the task that enqueues; nobody runs it here."""

    @app.task(name="noop", queue="default")
    async def noop(n: int = 0) -> None:
        pass

    return noop


async def prepare(url: str, jobs: int) -> command.Answer:
    """Make its tables with ``jobs`` jobs and nothing else in them."""
    async with (
        opened(url) as app,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        found = await connection.execute("SELECT to_regclass('procrastinate_jobs') IS NULL")
        if await found.fetchone() == (True,):
            await app.schema_manager.apply_schema_async()
        await connection.execute("TRUNCATE procrastinate_jobs, procrastinate_events CASCADE")
        noop = plain(app)
        for part in command.parts(jobs):
            await noop.batch_defer_async(*({"n": n} for n in part))
        await connection.execute("VACUUM ANALYZE procrastinate_jobs")
    return {"runs": jobs, "enqueue": ENQUEUE}


async def drain(url: str, ahead: int) -> command.Answer:
    """Work off all that is due, ``ahead`` at once."""
    starts: list[int] = []
    async with opened(url, ahead) as app:

        @app.task(name="noop")
        async def noop(n: int = 0) -> None:
            starts.append(monotonic_ns())

        await app.run_worker_async(wait=False, concurrency=ahead, listen_notify=False)
        return command.drained(starts)


async def serve(url: str, address: str) -> command.Answer:
    """Stay and work, until killed."""
    send_start = command.start_sender(address)
    async with opened(url, 2) as app:

        @app.task(name="noop")
        async def noop(n: int = 0) -> None:
            send_start()

        await app.run_worker_async(concurrency=2, fetch_job_polling_interval=2)
    return {}


async def singly(url: str, seconds: int) -> command.Answer:
    """Enqueue one by one."""
    async with opened(url) as app:
        noop = plain(app)
        return await command.one_by_one(seconds, lambda n: noop.defer_async(n=n))


async def bulk(url: str, jobs: int) -> command.Answer:
    """Enqueue many in as few calls as it takes; for a lock each the manager is asked, as a task has one."""
    async with opened(url) as app:
        one = plain(app).configure().job
        began = perf_counter()
        for part in command.parts(jobs):
            made = [one.evolve(queueing_lock=f"mail:{n}", task_kwargs={"n": n}) for n in part]
            await app.job_manager.batch_defer_jobs_async(jobs=made)
        return {"runs": jobs, "seconds": perf_counter() - began}


if __name__ == "__main__":
    command.answer(prepare, drain, serve, singly, bulk)
