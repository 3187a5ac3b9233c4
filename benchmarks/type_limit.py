"""Runs per second of a type of which four may run at once: one worker, raw SQL and PgQueuer.

    benchmarks/run type_limit [--runs 2000] [--rounds 3]

No-op runs of one type with ``max_running=4``. A worker with its default slots and one with four. Raw SQL is
the worker's own statements on one connection: lock the type, count and claim four in one transaction, finish
them in another; joined, each finish and the claim that follows are one. PgQueuer has an entrypoint with
``concurrency_limit=4``; it has four in hand at once, for what is more waits for the tenth of a second after
which it writes what ended (of 1, 2, 4, 20 and 500 four is quickest).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import backlogs, bench, raw, throughput
from benchmarks.peer_programs import PGQUEUER

LIMIT = 4
# For raw SQL, which registers nothing.
SET_LIMIT = "INSERT INTO wakeboard.job_types (name, max_running) VALUES (%s, %s)"
BESIDE = f"raw SQL, {LIMIT} at a time"


def cases(url: str, log: Path, runs: int) -> dict[str, Callable[[], float]]:
    """Return what is measured."""
    types = backlogs.type_names(1)

    def ours(command: list[str]) -> Callable[[], float]:
        return partial(throughput.drain_runs, url, log, runs, 1, command, types)

    policy = {"max_running": LIMIT}
    return {
        BESIDE: ours(raw.command(url, "limited", LIMIT, types)),
        f"{BESIDE}, joined": ours(raw.command(url, "limited_joined", LIMIT, types)),
        f"Wakeboard, 1 worker, {backlogs.SLOTS} slots (default)": ours(
            backlogs.worker_command("tick", 1, policy)
        ),
        f"Wakeboard, 1 worker, {LIMIT} slots": ours(backlogs.worker_command("tick", 1, policy, slots=LIMIT)),
        "PgQueuer, 1 process": partial(
            throughput.drain_peer, url, log, runs, 1, PGQUEUER, ahead=LIMIT, types=1, limit=LIMIT
        ),
    }


def main() -> None:
    """Run the rounds and print the table."""
    chosen = bench.options(__doc__ or "", runs=2_000, rounds=3)
    with bench.server() as (url, folder):
        with bench.session(url) as connection:
            connection.execute(SET_LIMIT, (backlogs.type_names(1)[0], LIMIT))
        found = bench.take_turns(chosen.rounds, cases(url, folder / "log", chosen.runs), "runs/s")
        title = (
            f"A type of which {LIMIT} may run at once ({chosen.runs:,} no-op runs, {chosen.rounds} rounds)"
        )
        print(bench.table(title, found, "runs/s", beside=BESIDE))
        print(bench.machine(url))


if __name__ == "__main__":
    main()
