"""Runs per second that leave something beside themselves: an effect, a row, a failure; four at once.

    benchmarks/run effects [--runs 3000] [--rounds 3]

A worker with four slots, and runs of one type at a time. ``once()``: an effect that costs nothing, so two
rows of the ledger are written, each with its commit. ``transaction()``: a row of the author's, in one commit
with the run's finish. Failures: permanent ones, with code, message, trace and group. Beside each the same
commits by raw SQL on four connections, each in a process of its own: claims and finishes 100 at a time where
the engine may do so, the rest run by run, nothing to run in between. Wanted is 0.6 of that.

PgQueuer, one process: its jobs write the same row, on one of four connections, but in a commit before their
finish; and fail by an exception. It has nothing like ``once()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import backlogs, bench, raw, throughput
from benchmarks.peer_programs import PGQUEUER

SLOTS = 4
BESIDE, OURS, THEIRS = (
    f"raw SQL, {SLOTS} connections",
    f"Wakeboard, 1 worker, {SLOTS} slots",
    "PgQueuer, 1 process",
)
TABLE = "CREATE TABLE public.written (run_id bigint NOT NULL)"


class Kind(NamedTuple):
    """What runs leave: its title, how they end, the options of the peer, and the statement that counts it."""

    title: str
    status: str
    peer: Mapping[str, int]
    left: str


KINDS = {
    "once": Kind("once()", "succeeded", {}, "SELECT count(*) FROM wakeboard.effects WHERE status = 'done'"),
    "transaction": Kind(
        "transaction()", "succeeded", {"writes": SLOTS}, "SELECT count(*) FROM public.written"
    ),
    "failure": Kind(
        "permanent failures", "dead", {"fails": 1},
        "SELECT count(*) FROM wakeboard.job_attempts WHERE outcome = 'failed' AND traceback IS NOT NULL",
    ),
}  # fmt: skip


def drain_kind(url: str, log: Path, runs: int, job_type: str, how_many: int, command: list[str]) -> float:
    """Return the runs per second. Raises SystemExit unless each has left what it should."""
    kind = KINDS[job_type]
    with bench.session(url) as connection:
        connection.execute("TRUNCATE public.written")
        rate = throughput.drain_runs(url, log, runs, how_many, command, [job_type], kind.status)
        (left,) = connection.execute(kind.left.encode()).fetchone() or (0,)
    if left != runs:
        raise SystemExit(f"not a result: {left} of {runs} have left {kind.title}")
    return rate


def cases(url: str, log: Path, runs: int, job_type: str) -> dict[str, Callable[[], float]]:
    """Return what is measured of one type."""
    by_sql = raw.command(url, job_type, types=[job_type])
    worker = backlogs.worker_command("tick", 0, app="effects_app", slots=SLOTS)
    found: dict[str, Callable[[], float]] = {
        BESIDE: partial(drain_kind, url, log, runs, job_type, SLOTS, by_sql),
        OURS: partial(drain_kind, url, log, runs, job_type, 1, worker),
    }
    if how := KINDS[job_type].peer:
        found[THEIRS] = partial(throughput.drain_peer, url, log, runs, 1, PGQUEUER, **how)
    return found


def main() -> None:
    """Run the rounds and print the tables."""
    chosen = bench.options(__doc__ or "", runs=3_000, rounds=3)
    with bench.server() as (url, folder):
        with bench.session(url) as connection:
            connection.execute(TABLE)
        for job_type, kind in KINDS.items():
            found = bench.take_turns(
                chosen.rounds, cases(url, folder / "log", chosen.runs, job_type), "runs/s"
            )
            title = f"Effects: {kind.title} ({chosen.runs:,} runs, {chosen.rounds} rounds)"
            print(bench.table(title, found, "runs/s", beside=BESIDE))
        print(bench.machine(url))


if __name__ == "__main__":
    main()
