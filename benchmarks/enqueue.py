"""Runs enqueued per second: one by one by 1 and by 8 clients, and in bulk with keys; beside raw SQL.

    benchmarks/run enqueue [--seconds 5] [--rounds 5] [--rows 50000]

One by one: ``enqueue()`` and a commit each, no worker idle, beside the same INSERT without the trigger. Each
client is a process. In bulk: ``enqueue_many`` of rows with idempotency keys in one transaction, beside
an ``INSERT … SELECT FROM unnest`` of the same columns and beside COPY, which knows no ON CONFLICT. Peers
(``peers/``) enqueue by their own library, each with its own kind of key in bulk, 5,000 to a call.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from time import perf_counter

import psycopg

from benchmarks import bench
from benchmarks.peer_programs import PEERS, Peer, fewer_jobs_line, run_peer
from wakeboard import enqueue, enqueue_many
from wakeboard.core.run_spec import NewRun

PLAIN = "INSERT INTO wakeboard.job_runs (job_type, payload) VALUES ('mail', %s::jsonb)"
UNNEST = """INSERT INTO wakeboard.job_runs (job_type, payload, idempotency_key)
SELECT 'mail', payload::jsonb, key FROM unnest(%s::text[], %s::text[]) AS row (payload, key)"""
COPY = "COPY wakeboard.job_runs (job_type, payload, idempotency_key) FROM STDIN"
AT_ONCE = 1_000


def client(url: str, how: str, seconds: float) -> int:
    """Enqueue one by one for so long; return how many."""
    with bench.session(url) as connection:
        began, count = perf_counter(), 0
        while perf_counter() - began < seconds:
            if how == "raw":
                connection.execute(PLAIN, (f'{{"n": {count}}}',))
            else:
                enqueue(connection, "mail", {"n": count})
            count += 1
    return count


def clients(url: str, how: str, number: int, seconds: int) -> float:
    """Return the runs per second of ``number`` clients together."""
    empty(url)
    command = [sys.executable, "-m", "benchmarks.enqueue", "client", url, how, str(seconds)]
    with bench.without_triggers(url) if how == "raw" else nullcontext():
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
            for _ in range(number)
        ]
        return sum(int(process.communicate()[0]) for process in started) / seconds


def empty(url: str) -> None:
    """Start each measurement from an empty table."""
    with bench.session(url) as connection:
        connection.execute("TRUNCATE wakeboard.job_runs, wakeboard.run_output")
        connection.execute("CHECKPOINT")


def bulk(url: str, rows: int, write: Callable[[psycopg.Connection, int], None]) -> float:
    """Return the rows per second of ``write``, its commit among them."""
    empty(url)
    with bench.session(url) as connection:
        began = perf_counter()
        with connection.transaction():
            write(connection, rows)
        return rows / (perf_counter() - began)


def by_enqueue_many(connection: psycopg.Connection, rows: int) -> None:
    """Enqueue with keys, as a program does."""
    enqueue_many(connection, [NewRun("mail", {"n": n}, key=f"mail:{n}") for n in range(rows)])


def by_unnest(connection: psycopg.Connection, rows: int) -> None:
    """Insert the same rows a thousand at a time."""
    for first in range(0, rows, AT_ONCE):
        part = range(first, min(first + AT_ONCE, rows))
        connection.execute(UNNEST, ([f'{{"n": {n}}}' for n in part], [f"mail:{n}" for n in part]))


def by_copy(connection: psycopg.Connection, rows: int) -> None:
    """Copy the same rows; a key that is there already would refuse them all."""
    with connection.cursor().copy(COPY) as copy:
        for n in range(rows):
            copy.write_row(("mail", f'{{"n": {n}}}', f"mail:{n}"))


def peer_clients(url: str, log: Path, seconds: int, number: int, peer: Peer) -> float:
    """Return the jobs per second of ``number`` clients of a peer's together."""
    run_peer(peer, url, log, "prepare", 0)
    found = run_peer(peer, url, log, "singly", seconds, number)
    return float(sum(one["runs"] for one in found) / seconds)


def peer_bulk(url: str, log: Path, rows: int, peer: Peer) -> float:
    """Return the jobs per second of a peer's quickest way."""
    run_peer(peer, url, log, "prepare", 0)
    (found,) = run_peer(peer, url, log, "bulk", rows)
    return float(rows / found["seconds"])


def one_by_one(url: str, log: Path, number: int, seconds: int, rounds: int) -> None:
    """Print what ``number`` clients reach."""
    cases: dict[str, Callable[[], float]] = {
        "raw INSERT": partial(clients, url, "raw", number, seconds),
        "enqueue()": partial(clients, url, "ours", number, seconds),
        **{peer.title: partial(peer_clients, url, log, seconds, number, peer) for peer in PEERS},
    }
    title = f"Enqueue one by one, {number} client{'s' if number > 1 else ''}"
    print(bench.table(title, bench.take_turns(rounds, cases, "runs/s"), "runs/s", beside="raw INSERT"))


def at_once(url: str, log: Path, rows: int, rounds: int) -> None:
    """Print what one client reaches in bulk."""
    ways = {"raw unnest": by_unnest, "enqueue_many() with keys": by_enqueue_many, "raw COPY": by_copy}
    cases: dict[str, Callable[[], float]] = {
        **{name: partial(bulk, url, rows, way) for name, way in ways.items()},
        **{
            f"{peer.title}, with keys": partial(peer_bulk, url, log, rows // peer.divisor, peer)
            for peer in PEERS
        },
    }
    found = bench.take_turns(rounds, cases, "rows/s")
    print(bench.table(f"Enqueue {rows:,} at once", found, "rows/s", beside="raw unnest"))
    print(f"{fewer_jobs_line(rows)}\n")


def main() -> None:
    """Run the rounds and print the tables."""
    if sys.argv[1:2] == ["client"]:
        print(client(sys.argv[2], sys.argv[3], float(sys.argv[4])))
        return
    chosen = bench.options(__doc__ or "", seconds=5, rounds=5, rows=50_000)
    with bench.server() as (url, folder):
        for number in (1, 8):
            one_by_one(url, folder / "log", number, chosen.seconds, chosen.rounds)
        at_once(url, folder / "log", chosen.rows, chosen.rounds)
        print(f"{bench.machine(url)}\n")


if __name__ == "__main__":
    main()
