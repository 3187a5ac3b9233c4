"""Quick runs beside slow ones, and quick ones while the machine is busy with something else; 20 types.

    benchmarks/run mixed [--runs 400] [--noops 400000] [--rounds 1]

**Quick beside slow.** Nine of ten runs wait 1 ms, the tenth 200 ms, as for an answer from elsewhere (a sleep:
to compute so long would measure how two cores are shared out). First ``--runs`` of them are due at once, and
printed is how many end a second; then as many are enqueued one after the other, so fast that half of the
slots are busy, and printed is how long quick ones wait from their due moment to their start. A worker has its
default slots. Raw SQL is as many connections, each of which claims one run, sleeps and finishes it. PgQueuer
sleeps in as many threads, as it advises for handlers that block; where its handlers await instead, all that
it has in hand wait at once, which no number of slots limits.

**A busy machine.** ``--noops`` no-op runs; 5 s after the first has ended every core is given a busy loop for
3 s, each in a session of its own. Told are the runs that ended in each half second, and after how many
seconds from the end of the loops a half second had 0.9 of the undisturbed rate: the median of the last 2 s
before or, if that is more, of the last 2 s at all. All are stopped then; a result counts only when every run
ended well or has not begun (raw SQL, which knows no stop, apart).
"""

from __future__ import annotations

import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from math import isfinite
from os import cpu_count
from pathlib import Path
from statistics import median
from time import monotonic, sleep, time

import psycopg

from benchmarks import backlogs, bench, programs, raw, throughput
from benchmarks.backlogs import Moments
from benchmarks.latency import print_times
from benchmarks.peer_programs import PGQUEUER, program, run_peer
from tests.support.processes import wait_until
from wakeboard import enqueue

TYPES, SLOTS = 20, backlogs.SLOTS
# Of one run of ten; how many of both kinds the slots can make in a second at best.
MEAN_SECONDS = 0.9 * raw.QUICK_SECONDS + 0.1 * raw.SLOW_SECONDS
MOST = SLOTS / MEAN_SECONDS
# Until all programs are ready; from one run to the next, so that half of the slots are busy.
READY_SECONDS, SPREAD_SECONDS = 3.0, 2 * MEAN_SECONDS / SLOTS
# Of quick runs, in milliseconds, without the one that was there from the first.
WAITS = """SELECT extract(epoch FROM started_at - due_at)::float8 * 1000 FROM wakeboard.job_attempts
WHERE job_type NOT LIKE '%9' AND run_id > (SELECT min(id) FROM wakeboard.job_runs)"""
# Runs of a worker that was stopped as it should be, which did not end well and have begun or are held.
ODD = """SELECT status, attempts, count(*) FROM wakeboard.job_runs
WHERE (status, attempts) NOT IN (('succeeded', 1), ('queued', 0)) GROUP BY 1, 2"""
BEFORE_SECONDS, BUSY_SECONDS, AFTER_SECONDS, STEP = 5.0, 3.0, 5.0, 0.5
# What the old rate is: the median of so many half seconds; what counts as back.
LAST_STEPS, BACK = 4, 0.9
PATIENCE_SECONDS = 120
LOOP = f"from time import monotonic\nuntil = monotonic() + {BUSY_SECONDS}\nwhile monotonic() < until: pass"
OURS, RAW = "Wakeboard, 1 worker", f"raw SQL, {SLOTS} connections"
THREADS, AWAITS = f"PgQueuer, {SLOTS} threads", "PgQueuer, awaiting"


def mixed_cases(url: str, log: Path, runs: int) -> dict[str, Callable[[], float]]:
    """Return who drains quick runs and slow ones."""
    types = backlogs.type_names(TYPES)
    command = backlogs.worker_command("tick", TYPES, app="mixed_app")
    theirs = partial(throughput.drain_peer, url, log, runs, 1, PGQUEUER, types=TYPES)
    return {
        RAW: partial(
            throughput.drain_runs, url, log, runs, SLOTS, raw.command(url, "mixed", 1, types), types
        ),
        OURS: partial(throughput.drain_runs, url, log, runs, 1, command, types),
        THREADS: partial(theirs, threads=SLOTS),
        AWAITS: partial(theirs, threads=-1),
    }


def wait_cases(url: str, log: Path, runs: int) -> dict[str, Callable[[], list[float]]]:
    """Return who is given runs bit by bit; each case returns the milliseconds that quick ones waited."""
    return {
        RAW: partial(raw_waits, url, log, runs),
        OURS: partial(wakeboard_waits, url, log, runs),
        THREADS: partial(pgqueuer_waits, url, log, runs, SLOTS),
        AWAITS: partial(pgqueuer_waits, url, log, runs, -1),
    }


def feed(url: str, runs: int, enqueue_one: Callable[[psycopg.Connection, int], object]) -> None:
    """Enqueue runs one after the other, once all programs are ready."""
    with psycopg.connect(url, autocommit=True) as connection:
        began = monotonic() + READY_SECONDS
        for number in range(runs):
            sleep(max(0.0, began + number * SPREAD_SECONDS - monotonic()))
            enqueue_one(connection, number)


def last_due_seconds(runs: int) -> int:
    """Return in how many seconds the last run is due: it is there from the first, and keeps loops waiting."""
    return round(READY_SECONDS + runs * SPREAD_SECONDS + 2)


def measure_waits(url: str, runs: int, drain: Callable[[psycopg.Connection], None]) -> list[float]:
    """Call ``drain`` on a table in which the last run waits; return how long quick runs waited."""
    with bench.session(url) as connection:
        due = f"now() + interval '{last_due_seconds(runs)} s'"
        throughput.fill(connection, 1, due, backlogs.type_names(TYPES))
        drain(connection)
        throughput.rate(connection, runs + 1)
        return [wait for (wait,) in connection.execute(WAITS)]


def feed_runs(url: str, runs: int) -> None:
    """Enqueue runs as a program does."""
    types = backlogs.type_names(TYPES)
    feed(url, runs, lambda connection, n: enqueue(connection, types[n % TYPES], {"n": n}))


def wakeboard_waits(url: str, log: Path, runs: int) -> list[float]:
    """Feed a worker of ours."""

    def drain(connection: psycopg.Connection) -> None:
        command = backlogs.worker_command("worker", TYPES, app="mixed_app")
        with programs.running(command, bench.environment(url), log):
            feed_runs(url, runs)
            backlogs.wait_until_drained(connection, PATIENCE_SECONDS)

    return measure_waits(url, runs, drain)


def raw_waits(url: str, log: Path, runs: int) -> list[float]:
    """Feed plain loops."""
    loops = [raw.command(url, "mixed", 1, backlogs.type_names(TYPES))] * SLOTS

    def drain(_connection: psycopg.Connection) -> None:
        with ThreadPoolExecutor(1) as beside:
            ended = beside.submit(bench.run_together, loops, url, log)
            feed_runs(url, runs)
            ended.result()

    return measure_waits(url, runs, drain)


def pgqueuer_waits(url: str, log: Path, runs: int, threads: int) -> list[float]:
    """Feed PgQueuer."""
    types = backlogs.type_names(TYPES)
    (prepared,) = run_peer(PGQUEUER, url, log, "prepare", 1, types=TYPES, lead=1000 * last_due_seconds(runs))

    def enqueue_one(connection: psycopg.Connection, number: int) -> None:
        connection.execute(prepared["enqueue"].replace("'noop'", f"'{types[number % TYPES]}'").encode())

    with ThreadPoolExecutor(1) as beside:
        how = {"types": TYPES, "threads": threads}
        drained = beside.submit(run_peer, PGQUEUER, url, log, "drain", PGQUEUER.ahead, **how)
        feed(url, runs, enqueue_one)
        found = drained.result()
    throughput.peer_rate(PGQUEUER, runs + 1, found)
    return list(found[0]["waits"][:-1])


def keep_cores_busy() -> None:
    """Let every core be busy with something else for a while, and wait for the end of that."""
    command = [sys.executable, "-c", LOOP]
    for loop in [subprocess.Popen(command, start_new_session=True) for _ in range(cpu_count() or 1)]:
        loop.wait()


def disturb(connection: psycopg.Connection, under_way: str) -> float:
    """Wait until ``under_way`` selects something, disturb, and wait; return when it began, in Unix time."""
    wait_until(lambda: connection.execute(under_way.encode()).fetchone(), PATIENCE_SECONDS)
    sleep(BEFORE_SECONDS)
    began = time()
    keep_cores_busy()
    sleep(AFTER_SECONDS)
    return began


def by_steps(found: Moments, began: float, runs: int) -> list[int]:
    """Return how many of ``runs`` finished in each half second around what ``began`` then."""
    if len(found.finished) == runs:
        raise SystemExit("not a result: all was done before the end; give it more --noops")
    steps = range(int(-BEFORE_SECONDS / STEP), int((BUSY_SECONDS + AFTER_SECONDS) / STEP) + 1)
    edges = [bisect_left(found.finished, began + step * STEP) for step in steps]
    return [last - first for first, last in pairwise(edges)]


def disturb_runs(url: str, log: Path, noops: int, command: Sequence[str]) -> list[int]:
    """Disturb what drains our table."""
    with bench.session(url) as connection:
        throughput.fill(connection, noops, types=backlogs.type_names(TYPES))
        with programs.running(command, bench.environment(url), log):
            began = disturb(connection, "SELECT 1 FROM wakeboard.job_attempts LIMIT 1")
        return by_steps(backlogs.read_moments(connection), began, noops)


def disturb_worker(url: str, log: Path, noops: int) -> list[int]:
    """Disturb a worker of ours."""
    counts = disturb_runs(url, log, noops, backlogs.worker_command("worker", TYPES))
    with bench.session(url) as connection:
        if odd := connection.execute(ODD).fetchall():
            raise SystemExit(f"not a result: some runs are {odd}")
    return counts


def disturb_raw(url: str, log: Path, noops: int) -> list[int]:
    """Disturb a plain loop."""
    return disturb_runs(url, log, noops, raw.command(url, types=backlogs.type_names(TYPES)))


def disturb_pgqueuer(url: str, log: Path, noops: int) -> list[int]:
    """Disturb PgQueuer."""
    run_peer(PGQUEUER, url, log, "prepare", noops, types=TYPES)
    with bench.session(url) as connection:
        connection.execute("CHECKPOINT")
        command = program(PGQUEUER, url, "drain", PGQUEUER.ahead, types=TYPES)
        with programs.running(command, bench.environment(url), log):
            under_way = "SELECT 1 FROM wakeboard.pgqueuer_log WHERE status = 'successful' LIMIT 1"
            began = disturb(connection, under_way)
        return by_steps(backlogs.read_pgqueuer_moments(connection), began, noops)


DISTURBED: Mapping[str, Callable[[str, Path, int], list[int]]] = {
    "Wakeboard, 1 worker": disturb_worker,
    "raw SQL, 1 connection": disturb_raw,
    "PgQueuer, 1 process": disturb_pgqueuer,
}


def old_rate(counts: Sequence[int]) -> float:
    """Return the runs per second undisturbed: just before the loops or, if that is more, at the end.

    A worker that is slow to start may not have reached it before.
    """
    before = int(BEFORE_SECONDS / STEP)
    return max(median(counts[before - LAST_STEPS : before]), median(counts[-LAST_STEPS:])) / STEP


def back_after(counts: Sequence[int]) -> float:
    """Return how many seconds after the loops a half second ended that was as good as before them."""
    end = int((BEFORE_SECONDS + BUSY_SECONDS) / STEP)
    wanted = BACK * old_rate(counts) * STEP
    good = (step for step, count in enumerate(counts[end:], 1) if count >= wanted)
    return STEP * next(good, float("inf"))


def format_back(seconds: float) -> str:
    """Return in words how long it took until the old rate was back."""
    return f"{seconds:.1f}" if isfinite(seconds) else f"more than {AFTER_SECONDS:g}"


def print_disturbed(found: Mapping[str, Sequence[Sequence[int]]], noops: int) -> None:
    """Print the runs of each half second, and when the old rate was back."""
    print(f"### A busy machine: {noops:,} no-op runs of {TYPES} types, runs that ended in each half second\n")
    print(f"| from second | | {' | '.join(found)} |\n|--:|---{'|--:' * len(found)}|")
    middle = {name: [median(step) for step in zip(*rounds, strict=True)] for name, rounds in found.items()}
    for step in range(len(next(iter(middle.values())))):
        second = step * STEP - BEFORE_SECONDS
        when = "before" if second < 0 else "busy" if second < BUSY_SECONDS else "after"
        cells = " | ".join(f"{counts[step]:,.0f}" for counts in middle.values())
        print(f"| {second:.1f} | {when} | {cells} |")
    print("\n| | undisturbed, runs/s | while busy | back within, s (target 2) | round by round |")
    print("|---|--:|--:|--:|---|")
    for name, rounds in found.items():
        first = int(BEFORE_SECONDS / STEP)
        last = first + int(BUSY_SECONDS / STEP)
        meanwhile = median(sum(counts[first:last]) / BUSY_SECONDS for counts in rounds)
        backs = [back_after(counts) for counts in rounds]
        each = ", ".join(map(format_back, backs))
        before = median(map(old_rate, rounds))
        print(f"| {name} | {before:,.0f} | {meanwhile:,.0f} | {format_back(median(backs))} | {each} |")
    print()


def main() -> None:
    """Run the rounds and print the tables."""
    chosen = bench.options(__doc__ or "", runs=400, noops=400_000, rounds=1)
    waits: dict[str, list[float]] = {}
    counts: dict[str, list[list[int]]] = {}
    with bench.server() as (url, folder):
        log = folder / "log"
        rates = bench.take_turns(chosen.rounds, mixed_cases(url, log, chosen.runs), "runs/s")
        for number in range(chosen.rounds):
            for name, measure in wait_cases(url, log, chosen.runs).items():
                found = measure()
                waits.setdefault(name, []).extend(found)
                bench.say(f"round {number + 1}: {name:30} quick runs wait {median(found):.1f} ms")
            for name, disturb_case in DISTURBED.items():
                counts.setdefault(name, []).append(disturb_case(url, log, chosen.noops))
                back = format_back(back_after(counts[name][-1]))
                bench.say(f"round {number + 1}: {name:30} back within {back} s")
        title = f"Quick beside slow: {chosen.runs:,} runs of {TYPES} types, due at once"
        print(bench.table(title, rates, "runs/s", beside=RAW))
        print(f"{SLOTS} slots make {MOST:.1f} runs/s at most.\n")
        print_times(
            f"Quick beside slow: one enqueued every {1000 * SPREAD_SECONDS:.0f} ms, how long quick ones wait",
            waits,
        )
        print()
        print_disturbed(counts, chosen.noops)
        print(bench.machine(url))


if __name__ == "__main__":
    main()
