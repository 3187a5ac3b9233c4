"""Runs per second of one worker and of two at default settings, beside raw SQL and beside peers.

    benchmarks/run throughput [--runs 100000] [--rounds 5]

Worker: real ``wakeboard tick`` processes (killable children, attempts, statistics, leases, log) drain a table
of no-op runs. Raw: the worker's own claim and finish statements in batches of 100, one or two connections,
each in a process of its own with nothing to run in between. Both are timed by the rows: from the first
attempt's start to the last finish. Peers (``peers/``; what each keeps and which settings it has stands at the
head of its program) run their handlers in their own process, and are timed by it: from the first handler's
start to their last write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import psycopg

from benchmarks import bench
from benchmarks.bench import together
from benchmarks.neighbours import PEERS, Peer, ask, fewer
from worker.db import configure
from worker.loop.front import Front
from worker.transitions.engine import claims, endings, planning

BATCH = 100
WORDS = {
    1: ("1 connection", "1 worker", "1 process"),
    2: ("2 connections", "2 workers", "2 processes"),
}


def fill(connection: psycopg.Connection, runs: int, due: str = "now()") -> None:
    """Make a table of ``runs`` no-op runs due at one time, with fresh statistics and nothing else in it."""
    connection.execute("TRUNCATE wakeboard.job_runs, wakeboard.job_attempts, wakeboard.run_output")
    connection.execute("TRUNCATE wakeboard.statistics_deltas, wakeboard.statistics_rollups")
    connection.execute("INSERT INTO wakeboard.job_types (name) VALUES ('noop') ON CONFLICT DO NOTHING")
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, payload, run_at)"
        f" SELECT 'noop', jsonb_build_object('n', n), {due} FROM generate_series(1, %s) AS n".encode(),
        (runs,),
    )
    connection.execute("VACUUM ANALYZE wakeboard.job_runs")
    connection.execute("CHECKPOINT")


def rate(connection: psycopg.Connection, runs: int) -> float:
    """Return runs per second by the rows; a result counts only when every run succeeded once."""
    row = connection.execute(
        """SELECT count(*) FILTER (WHERE status = 'succeeded' AND attempts = 1),
            (SELECT count(*) FROM wakeboard.job_attempts),
            (SELECT sum(runs) FROM (
                SELECT runs FROM wakeboard.statistics_deltas
                UNION ALL
                SELECT runs FROM wakeboard.statistics_rollups
            ) AS kept),
            extract(epoch FROM max(updated_at) - (SELECT min(started_at) FROM wakeboard.job_attempts))::float8
        FROM wakeboard.job_runs"""
    ).fetchone()
    assert row is not None
    done, attempts, counted, seconds = row
    if not done == attempts == runs or counted != runs:
        raise SystemExit(f"not a result: {done} succeeded, {attempts} attempts, {counted} counted of {runs}")
    return runs / float(seconds)


def drain_raw(url: str) -> None:
    """Claim and finish everything on one connection with the worker's statements and settings.

    Printed are the seconds of CPU that the server's process of this session had meanwhile.
    """
    with bench.session(url) as connection:
        configure(connection, planning.PLANNING)
        cursor = psycopg.RawCursor(connection)
        claim, finish = claims.claim(BATCH), endings.SUCCEED
        me, front = f"raw {connection.info.backend_pid}", Front()

        def claimed() -> list[tuple[int, int]]:
            for places in front.tries(["noop"], BATCH):
                values = (["noop"], me, 30.0, *map(list, places))
                rows = cursor.execute(claim, values, prepare=True).fetchall()
                front.took(rows, BATCH)
                if rows:
                    return [row[:2] for row in rows]
            rows = cursor.execute(claims.claim_past_locks(BATCH), (["noop"], me, 30.0), prepare=True)
            return [row[:2] for row in rows]

        while held := claimed():
            while held:
                n = len(held)
                took, texts, most, timeouts = [0.0] * n, [None] * n, [10] * n, [300.0] * n
                ids, epochs = [run_id for run_id, _ in held], [epoch for _, epoch in held]
                values = (me, ids, epochs, took, took, texts, texts, texts, most, timeouts)
                done = {row[0] for row in cursor.execute(finish, values, prepare=True)}
                # What the other's claim has locked for a moment is left out, and sent again.
                held = [row for row in held if row[0] not in done]
        print(bench.cpu_seconds([connection.info.backend_pid]))


def ours(url: str, log: Path, runs: int, how_many: int, command: Sequence[str]) -> float:
    """Drain our table with ``how_many`` processes of ``command``."""
    with bench.session(url) as connection:
        fill(connection, runs)
        together([command] * how_many, url, log)
        return rate(connection, runs)


def theirs(url: str, log: Path, runs: int, how_many: int, peer: Peer) -> float:
    """Drain a peer's table with ``how_many`` of its processes."""
    ask(peer, url, log, "prepare", runs)
    with bench.session(url) as connection:
        connection.execute("CHECKPOINT")
    found = ask(peer, url, log, "drain", peer.ahead, how_many)
    done = sum(one["runs"] for one in found)
    if done != runs:
        raise SystemExit(f"not a result: {peer.title} ran {done} of {runs}")
    busy = [one for one in found if one["runs"]]
    seconds = (max(one["last_ns"] for one in busy) - min(one["first_ns"] for one in busy)) / 1e9
    return float(runs / seconds)


def cases(url: str, log: Path, runs: int, how_many: int) -> dict[str, Callable[[], float]]:
    """Return what is measured with ``how_many`` processes each."""
    connections, worker, processes = WORDS[how_many]
    raw = [sys.executable, "-m", "benchmarks.throughput", "raw", url]
    tick = [sys.executable, "-m", "worker", "tick", "--app", "noop_app"]
    peers = {
        f"{peer.title}, {processes}": partial(theirs, url, log, runs // peer.fewer, how_many, peer)
        for peer in PEERS
    }
    return {
        f"raw SQL, {connections}": partial(ours, url, log, runs, how_many, raw),
        f"Wakeboard, {worker}": partial(ours, url, log, runs, how_many, tick),
        **peers,
    }


def _beside_the_quickest_peer(rates: Mapping[str, Sequence[float]]) -> str:
    _raw, our, *peers = rates
    quickest = max(peers, key=lambda name: median(rates[name]))
    of_medians, by_rounds = bench.shares(rates[our], rates[quickest])
    return f"{our}, of {quickest}: {of_medians:.2f}; round by round {by_rounds:.2f}.\n"


def main() -> None:
    """Run the rounds and print the tables."""
    if sys.argv[1:2] == ["raw"]:
        drain_raw(sys.argv[2])
        return
    chosen = bench.options(__doc__ or "", runs=100_000, rounds=5)
    with bench.server() as (url, folder):
        one, two = (cases(url, folder / "log", chosen.runs, how_many) for how_many in (1, 2))
        found = bench.take_turns(chosen.rounds, one | two, "runs/s")
        for words, each in (("one", one), ("two", two)):
            rates = {name: found[name] for name in each}
            title = f"Throughput, no-op runs ({chosen.runs:,} a round, {chosen.rounds} rounds): {words}"
            print(bench.table(title, rates, "runs/s", beside=next(iter(rates))))
            print(_beside_the_quickest_peer(rates))
        print(f"{fewer(chosen.runs)}\n\n{bench.machine(url)}")
        bench.keep("throughput", url)


if __name__ == "__main__":
    main()
