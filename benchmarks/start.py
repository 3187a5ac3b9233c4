"""The first 5,000 runs of a fresh worker, over 20 types: how fast they are, beside the later ones.

    benchmarks/run start [--runs 40000] [--rounds 5]

A real ``wakeboard worker`` is there, idle, and has never run anything; then ``--runs`` no-op runs of 20 types
are due at one moment. Rates count by the moments at which runs finished, the first by when the first began.
The later rate is that of the second half. Printed is after how many runs the next 500, and the next 5,000,
came at 0.8 of that. Beside it raw SQL (a new connection, batches of 100) and PgQueuer (a new process; the
moments of its log, which it writes 500 at a time). A result counts only when every run succeeded once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import sleep

from benchmarks import backlogs, bench, programs, raw, throughput
from benchmarks.backlogs import Moments
from benchmarks.peer_programs import PGQUEUER

TYPES = 20
# Rates are printed from one of these numbers of runs to the next; the later rate is of the second half.
STEPS = (0, 500, 1_000, 2_000, 5_000)
LATER, LEAST = "later", 2 * STEPS[-1]
# Nearly the later rate is this share of it, over the next few runs and over very many.
FULL, WINDOWS, EVERY = 0.8, (500, 5_000), 100
# Filling, and starting a worker that finds an empty queue first, fit in.
AHEAD_SECONDS, PATIENCE_SECONDS = 10, 240


def drain_idle_worker(url: str, log: Path, runs: int) -> Moments:
    """Let a worker that has been idle meet runs that are due."""
    with bench.session(url) as connection:
        backlogs.mark_stopped(connection)
        due = f"now() + interval '{AHEAD_SECONDS} seconds'"
        throughput.fill(connection, runs, due, backlogs.type_names(TYPES))
        with programs.running(backlogs.worker_command("worker", TYPES), bench.environment(url), log):
            backlogs.wait_for_worker(connection)
            left = backlogs.seconds_until_due(connection)
            if left < 0:
                raise SystemExit(f"not a result: the worker was ready {-left:.1f} s after the runs were due")
            sleep(left)
            backlogs.wait_until_drained(connection, PATIENCE_SECONDS)
        throughput.rate(connection, runs)
        return backlogs.read_moments(connection)


def drain_by_sql(url: str, log: Path, runs: int) -> Moments:
    """Let a new connection drain."""
    types = backlogs.type_names(TYPES)
    throughput.drain_runs(url, log, runs, 1, raw.command(url, types=types), types)
    with bench.session(url) as connection:
        return backlogs.read_moments(connection)


def drain_pgqueuer(url: str, log: Path, runs: int) -> Moments:
    """Let a new process of PgQueuer drain."""
    throughput.drain_peer(url, log, runs, 1, PGQUEUER, types=TYPES)
    with bench.session(url) as connection:
        return backlogs.read_pgqueuer_moments(connection)


CASES: Mapping[str, Callable[[str, Path, int], Moments]] = {
    "Wakeboard, 1 worker": drain_idle_worker,
    "raw SQL, 1 connection": drain_by_sql,
    "PgQueuer, 1 process": drain_pgqueuer,
}


def rate_between(found: Moments, first: int, last: int) -> float:
    """Return the runs per second from the ``first`` run that finished (0: from the start) to the ``last``."""
    times = [found.began, *found.finished]
    return (last - first) / max(1e-6, times[last] - times[first])


def later_rate(found: Moments) -> float:
    """Return the runs per second of the second half."""
    runs = len(found.finished)
    return rate_between(found, runs // 2, runs)


def full_rate_after(found: Moments) -> int:
    """Return after how many runs the rate was nearly the later one, and stayed so."""
    wanted = FULL * later_rate(found)
    last = len(found.finished) - max(WINDOWS)

    def is_full(run: int) -> bool:
        return all(rate_between(found, run, run + window) >= wanted for window in WINDOWS)

    return next((run for run in range(0, last, EVERY) if is_full(run)), last)


def print_rates(name: str, rounds: Sequence[Moments]) -> None:
    """Print what a case gave, and have its moments kept."""
    rates = {
        f"{first + 1:,} to {last:,}": [rate_between(one, first, last) for one in rounds]
        for first, last in pairwise(STEPS)
    }
    rates[LATER] = [later_rate(one) for one in rounds]
    print(bench.table(f"Start: {name}", rates, "runs/s", beside=LATER))
    counts = [full_rate_after(one) for one in rounds]
    times = [[one.began, *one.finished][count] - one.began for one, count in zip(rounds, counts, strict=True)]
    each = ", ".join(f"{count:,}" for count in counts)
    print(
        f"{name}: {FULL} of its later rate after {median(counts):,.0f} runs ({each}), "
        f"{median(times):.2f} s after its first start.\n"
    )


def main() -> None:
    """Run the rounds and print the tables."""
    chosen = bench.options(__doc__ or "", runs=40_000, rounds=5)
    if chosen.runs < LEAST:
        sys.exit(f"--runs: at least {LEAST:,}, for the first {STEPS[-1]:,} are compared with later ones")
    found: dict[str, list[Moments]] = {name: [] for name in CASES}
    with bench.server() as (url, folder):
        for number in range(chosen.rounds):
            for name, measure in CASES.items():
                found[name].append(measure(url, folder / "log", chosen.runs))
                rate, count = later_rate(found[name][-1]), full_rate_after(found[name][-1])
                bench.say(
                    f"round {number + 1}: {name:30} {rate:12,.0f} runs/s later, near it after {count:,}"
                )
        print(f"{chosen.runs:,} no-op runs of {TYPES} types, {chosen.rounds} rounds.\n")
        for name, rounds in found.items():
            print_rates(name, rounds)
        print(bench.machine(url))


if __name__ == "__main__":
    main()
