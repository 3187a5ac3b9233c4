"""Runs per second with 1, 20, 200 and 1,000 types in the backlog, one worker and two, at default settings.

    benchmarks/run many_types [--runs 60000] [--rounds 2] [--types 0]

``--types``: so many and one alone, 0 for all four. The runs are no-ops of one priority, one of each type in
turns, so each type has its part of ``--runs``; a worker knows as many types as the backlog has. Raw SQL is
the worker's own claim and finish in batches of 100, on one connection and on two, as in ``throughput``: what
it makes is what the claim allows. PgQueuer has as many entrypoints. A result counts only when every run
succeeded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import backlogs, bench, raw, throughput
from benchmarks.peer_programs import PGQUEUER

NUMBERS = (1, 20, 200, 1_000)
SUBJECTS = RAW, OURS, THEIRS = "raw SQL", "Wakeboard", "PgQueuer"
WORDS = {
    1: dict(zip(SUBJECTS, ("1 connection", "1 worker", "1 process"), strict=True)),
    2: dict(zip(SUBJECTS, ("2 connections", "2 workers", "2 processes"), strict=True)),
}
# Of all runs, how many the worker had that had least: by case, one for each round.
Shares = dict[str, list[float]]


def case(subject: str, count: int, workers: int) -> str:
    """Return how a case is called while it is measured."""
    return f"{subject}, {WORDS[workers][subject]}, {types(count)}"


def types(count: int) -> str:
    """Return a number of types in words."""
    return f"{count:,} type{'s' if count > 1 else ''}"


def drain_shared(
    url: str, log: Path, runs: int, count: int, workers: int, command: Sequence[str], shares: list[float]
) -> float:
    """Return the runs per second; ``shares`` gains that of the worker that had least."""
    rate = throughput.drain_runs(url, log, runs, workers, command, backlogs.type_names(count))
    with bench.session(url) as connection:
        shares.append(backlogs.least_share(connection, workers))
    return rate


def cases(
    url: str, log: Path, runs: int, count: int, workers: int, shares: Shares
) -> dict[str, Callable[[], float]]:
    """Return what is measured with ``count`` types and so many workers; see ``ours`` for ``shares``."""
    commands = {
        RAW: raw.command(url, types=backlogs.type_names(count)),
        OURS: backlogs.worker_command("tick", count),
    }
    found: dict[str, Callable[[], float]] = {}
    for subject, command in commands.items():
        name = case(subject, count, workers)
        found[name] = partial(
            drain_shared, url, log, runs, count, workers, command, shares.setdefault(name, [])
        )
    theirs = partial(throughput.drain_peer, url, log, runs, workers, PGQUEUER, types=count)
    return {**found, case(THEIRS, count, workers): theirs}


def print_tables(
    found: Mapping[str, Sequence[float]], shares: Shares, numbers: Sequence[int], workers: int
) -> None:
    """Print a table of each subject, and how ours stands beside the others."""
    for subject in SUBJECTS:
        rates = {types(count): found[case(subject, count, workers)] for count in numbers}
        title = f"Many types: {subject}, {WORDS[workers][subject]}"
        print(bench.table(title, rates, "runs/s", beside=types(numbers[0])))

    def beside(subject: str, other_count: int | None = None) -> list[float]:
        return [
            bench.shares(
                found[case(OURS, count, workers)], found[case(subject, other_count or count, workers)]
            )[0]
            for count in numbers
        ]

    lines = {
        "of its rate with one type (targets 0.9 with 20, 0.8 with 200)": beside(OURS, numbers[0]),
        "of raw SQL": beside(RAW),
        "of PgQueuer (target 1.2)": beside(THEIRS),
    }
    if workers > 1:
        least_of = {OURS: "a worker (target 0.33)", RAW: "a raw connection"}
        for subject in least_of:
            least = [median(shares[case(subject, count, workers)]) for count in numbers]
            lines[f"least share of {least_of[subject]}"] = least
    print(f"| Wakeboard, {WORDS[workers][OURS]} | {' | '.join(types(count) for count in numbers)} |")
    print(f"|---{'|--:' * len(numbers)}|")
    for words, values in lines.items():
        print(f"| {words} | {' | '.join(f'{value:.2f}' for value in values)} |")
    print()


def main() -> None:
    """Run the rounds and print the tables."""
    chosen = bench.options(__doc__ or "", runs=60_000, rounds=2, types=0)
    numbers = sorted({1, chosen.types}) if chosen.types else NUMBERS
    shares: Shares = {}
    with bench.server() as (url, folder):
        all_: dict[str, Callable[[], float]] = {}
        for workers in (1, 2):
            for count in numbers:
                all_ |= cases(url, folder / "log", chosen.runs, count, workers, shares)
        found = bench.take_turns(chosen.rounds, all_, "runs/s")
        print(f"{chosen.runs:,} no-op runs a round, {chosen.rounds} rounds.\n")
        for workers in (1, 2):
            print_tables(found, shares, numbers, workers)
        print(bench.machine(url))


if __name__ == "__main__":
    main()
