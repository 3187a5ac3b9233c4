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

from benchmarks import bench, raw
from benchmarks.bench import run_together
from benchmarks.peer_programs import PEERS, Answer, Peer, fewer_jobs_line, run_peer

WORDS = {
    1: ("1 connection", "1 worker", "1 process"),
    2: ("2 connections", "2 workers", "2 processes"),
}


def fill(
    connection: psycopg.Connection, runs: int, due: str = "now()", types: Sequence[str] = raw.NOOP
) -> None:
    """Make a table of ``runs`` runs, one of each type in turns, with fresh statistics and nothing else in it.

    ``due`` is SQL, in which ``n`` is a run's number, from 1.
    """
    connection.execute("TRUNCATE wakeboard.job_runs, wakeboard.job_attempts, wakeboard.run_output")
    connection.execute("TRUNCATE wakeboard.statistics_deltas, wakeboard.statistics_rollups")
    connection.execute("TRUNCATE wakeboard.effects")
    names = list(types)
    connection.execute("DELETE FROM wakeboard.job_types WHERE name <> ALL(%s)", (names,))
    connection.execute(
        "INSERT INTO wakeboard.job_types (name) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING", (names,)
    )
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, payload, run_at)"
        f" SELECT (%s::text[])[1 + (n - 1) %% %s], jsonb_build_object('n', n), {due}"
        " FROM generate_series(1, %s) AS n".encode(),
        (names, len(names), runs),
    )
    connection.execute("VACUUM ANALYZE wakeboard.job_runs, wakeboard.job_types")
    connection.execute("CHECKPOINT")


def rate(connection: psycopg.Connection, runs: int, status: str = "succeeded") -> float:
    """Return runs per second by the rows; a result counts only when every run ended so, at its first try."""
    row = connection.execute(
        """SELECT count(*) FILTER (WHERE status = %s AND attempts = 1),
            (SELECT count(*) FROM wakeboard.job_attempts),
            (SELECT sum(runs) FROM (
                SELECT runs FROM wakeboard.statistics_deltas
                UNION ALL
                SELECT runs FROM wakeboard.statistics_rollups
            ) AS kept),
            extract(epoch FROM max(updated_at) - (SELECT min(started_at) FROM wakeboard.job_attempts))::float8
        FROM wakeboard.job_runs""",
        (status,),
    ).fetchone()
    assert row is not None
    done, attempts, counted, seconds = row
    if not done == attempts == runs or counted != runs:
        raise SystemExit(f"not a result: {done} {status}, {attempts} attempts, {counted} counted of {runs}")
    return runs / float(seconds)


def drain_runs(
    url: str,
    log: Path,
    runs: int,
    how_many: int,
    command: Sequence[str],
    types: Sequence[str] = raw.NOOP,
    status: str = "succeeded",
) -> float:
    """Drain our table of runs of ``types`` with ``how_many`` processes of ``command``."""
    with bench.session(url) as connection:
        fill(connection, runs, types=types)
        run_together([command] * how_many, url, log)
        return rate(connection, runs, status)


def drain_peer(
    url: str, log: Path, runs: int, how_many: int, peer: Peer, ahead: int = 0, **how: int
) -> float:
    """Drain a peer's table with ``how_many`` of its processes.

    ``ahead``: so many in hand at once, 0 as many as where it is quickest; ``how``: see ``peers/command.py``.
    """
    run_peer(peer, url, log, "prepare", runs, **how)
    with bench.session(url) as connection:
        connection.execute("CHECKPOINT")
    found = run_peer(peer, url, log, "drain", ahead or peer.ahead, how_many, **how)
    return peer_rate(peer, runs, found)


def peer_rate(peer: Peer, runs: int, found: Sequence[Answer]) -> float:
    """Return a peer's jobs per second by what its processes answered. Raises SystemExit unless all ran."""
    done = sum(one["runs"] for one in found)
    if done != runs:
        raise SystemExit(f"not a result: {peer.title} ran {done} of {runs}")
    busy = [one for one in found if one["runs"]]
    seconds = (max(one["last_ns"] for one in busy) - min(one["first_ns"] for one in busy)) / 1e9
    return float(runs / seconds)


def cases(url: str, log: Path, runs: int, how_many: int) -> dict[str, Callable[[], float]]:
    """Return what is measured with ``how_many`` processes each."""
    connections, worker, processes = WORDS[how_many]
    tick = [sys.executable, "-m", "wakeboard", "tick", "--app", "noop_app"]
    peers = {
        f"{peer.title}, {processes}": partial(drain_peer, url, log, runs // peer.divisor, how_many, peer)
        for peer in PEERS
    }
    return {
        f"raw SQL, {connections}": partial(drain_runs, url, log, runs, how_many, raw.command(url)),
        f"Wakeboard, {worker}": partial(drain_runs, url, log, runs, how_many, tick),
        **peers,
    }


def _quickest_peer_line(rates: Mapping[str, Sequence[float]]) -> str:
    _raw, our, *peers = rates
    quickest = max(peers, key=lambda name: median(rates[name]))
    of_medians, by_rounds = bench.shares(rates[our], rates[quickest])
    return f"{our}, of {quickest}: {of_medians:.2f}; round by round {by_rounds:.2f}.\n"


def main() -> None:
    """Run the rounds and print the tables."""
    if sys.argv[1:2] == ["raw"]:
        raw.main(*sys.argv[2:])
        return
    chosen = bench.options(__doc__ or "", runs=100_000, rounds=5)
    with bench.server() as (url, folder):
        one, two = (cases(url, folder / "log", chosen.runs, how_many) for how_many in (1, 2))
        found = bench.take_turns(chosen.rounds, one | two, "runs/s")
        for words, each in (("one", one), ("two", two)):
            rates = {name: found[name] for name in each}
            title = f"Throughput, no-op runs ({chosen.runs:,} a round, {chosen.rounds} rounds): {words}"
            print(bench.table(title, rates, "runs/s", beside=next(iter(rates))))
            print(_quickest_peer_line(rates))
        print(f"{fewer_jobs_line(chosen.runs)}\n\n{bench.machine(url)}")


if __name__ == "__main__":
    main()
