"""A program with many threads that all enqueue the same keys at once; it may die before or after its commit.

Usage: URL WAY THREADS KEY…; WAY is calm, before or after. Prints "KEY ID" when a thread knows an id for sure.
"""

from __future__ import annotations

import os
import random
import sys
from threading import Barrier, Thread

import psycopg

from wakeboard.queue import NewRun, enqueue, enqueue_many

DIED = 9


def ids_of(connection: psycopg.Connection[tuple[object, ...]], keys: list[str]) -> list[int]:
    """Enqueue a run for each key: one after the other by half of the threads, all at once by the others."""
    if random.random() < 0.5:
        return enqueue_many(connection, [NewRun("echo", {"key": key}, key=key) for key in keys])
    # In one order, as any program must that takes several locks in one transaction.
    return [enqueue(connection, "echo", {"key": key}, key=key) for key in keys]


def enqueue_all(url: str, way: str, keys: list[str], barrier: Barrier) -> None:
    """Enqueue every key in one transaction, with everybody else, and die at the moment that ``way`` names."""
    with psycopg.connect(url, application_name="wakeboard other") as connection:
        barrier.wait(60)
        ids = ids_of(connection, keys)
        if way == "before":
            os._exit(DIED)
        connection.commit()
        if way == "after":
            os._exit(DIED)
        told = "".join(f"{key} {run_id}\n" for key, run_id in zip(keys, ids, strict=True))
        os.write(1, told.encode())


def main() -> None:
    """Start the threads and wait for them."""
    url, way, count, *keys = sys.argv[1:]
    barrier = Barrier(int(count))
    threads = [Thread(target=enqueue_all, args=(url, way, sorted(keys), barrier)) for _ in range(int(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
