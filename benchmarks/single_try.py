"""Runs per second of a type that has one try: one worker, raw SQL and PgQueuer.

    benchmarks/run single_try [--runs 5000] [--rounds 3]

No-op runs of one type with ``max_attempts=1``: a start that is lost with its process is the run's end. Raw
SQL is the worker's own claim of as many as a worker has slots and their finish, on one connection, a commit
each; joined, each finish and the claim that follows are one. PgQueuer runs as in ``throughput``: by itself it
tries nothing twice, and has 500 in hand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import backlogs, bench, raw, throughput
from benchmarks.peer_programs import PGQUEUER

BESIDE = f"raw SQL, {backlogs.SLOTS} at a time"


def cases(url: str, log: Path, runs: int) -> dict[str, Callable[[], float]]:
    """Return what is measured."""
    types = backlogs.type_names(1)

    def ours(command: list[str]) -> Callable[[], float]:
        return partial(throughput.drain_runs, url, log, runs, 1, command, types)

    return {
        BESIDE: ours(raw.command(url, "plain", backlogs.SLOTS, types)),
        f"{BESIDE}, joined": ours(raw.command(url, "joined", backlogs.SLOTS, types)),
        "Wakeboard, 1 worker": ours(backlogs.worker_command("tick", 1, {"max_attempts": 1})),
        "PgQueuer, 1 process": partial(throughput.drain_peer, url, log, runs, 1, PGQUEUER, types=1),
    }


def main() -> None:
    """Run the rounds and print the table."""
    chosen = bench.options(__doc__ or "", runs=5_000, rounds=3)
    with bench.server() as (url, folder):
        found = bench.take_turns(chosen.rounds, cases(url, folder / "log", chosen.runs), "runs/s")
        title = f"A type that has one try ({chosen.runs:,} no-op runs, {chosen.rounds} rounds)"
        print(bench.table(title, found, "runs/s", beside=BESIDE))
        print(bench.machine(url))


if __name__ == "__main__":
    main()
