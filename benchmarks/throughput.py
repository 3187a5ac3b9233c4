"""Runs per second of one worker at its default settings, beside the same SQL driven raw, in one sitting.

    python benchmarks/throughput.py [--runs 20000] [--rounds 3]

Starts a PostgreSQL of its own with default durability. Worker: a real `wakeboard tick` (killable children,
attempts, statistics, leases, log) drains a table of no-op runs; the clock is the database's, from the first
attempt's start to the last one's end. Raw: one connection in this process sends the worker's own claim and
finish statements in batches of 100, with nothing to run in between. Rounds alternate; medians and the
smallest and largest value are printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import psycopg

from worker import embedded
from worker.db import connect, migrate
from worker.transitions import engine

HERE = Path(__file__).resolve().parent
BATCH = 100


def fill(connection: psycopg.Connection, runs: int) -> None:
    """Make a table of `runs` due no-op runs, with fresh statistics and nothing else in it."""
    connection.execute("TRUNCATE wakeboard.job_runs, wakeboard.job_attempts, wakeboard.run_output")
    connection.execute("TRUNCATE wakeboard.statistics_deltas, wakeboard.statistics_rollups")
    connection.execute("INSERT INTO wakeboard.job_types (name) VALUES ('noop') ON CONFLICT DO NOTHING")
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, payload)"
        " SELECT 'noop', jsonb_build_object('n', n) FROM generate_series(1, %s) AS n",
        (runs,),
    )
    connection.execute("VACUUM ANALYZE wakeboard.job_runs")
    connection.execute("CHECKPOINT")


def check(connection: psycopg.Connection, runs: int) -> None:
    """A result counts only when every run succeeded once and has its attempt."""
    done = connection.execute(
        "SELECT count(*) FROM wakeboard.job_runs WHERE status = 'succeeded' AND attempts = 1"
    ).fetchone()[0]
    written = connection.execute("SELECT count(*) FROM wakeboard.job_attempts").fetchone()[0]
    counted = connection.execute("SELECT sum(runs) FROM wakeboard.statistics_deltas").fetchone()[0]
    if not done == written == runs or counted is None:
        raise SystemExit(f"not a result: {done} succeeded, {written} attempts of {runs} runs")


def raw(connection: psycopg.Connection, runs: int) -> float:
    """Claim and finish everything on one connection; return runs per second."""
    cursor = psycopg.RawCursor(connection)
    claim, finish = engine.claim(BATCH), engine.SUCCEED
    none, most, timeout = [None] * BATCH, [10] * BATCH, [300.0] * BATCH
    began = perf_counter()
    while rows := cursor.execute(claim, (["noop"], "raw", 30.0), prepare=True).fetchall():
        n = len(rows)
        zeros = [0.0] * n
        ids, epochs = [row[0] for row in rows], [row[1] for row in rows]
        values = ("raw", ids, epochs, zeros, zeros, none[:n], none[:n], none[:n], most[:n], timeout[:n])
        cursor.execute(finish, values, prepare=True)
    return runs / (perf_counter() - began)


def worker(connection: psycopg.Connection, url: str, runs: int, log: Path) -> float:
    """Let a worker drain the table; return runs per second by the attempts' own times."""
    environment = os.environ | {"WAKEBOARD_DATABASE_URL": url, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-m", "worker", "tick", "--app", "noop_app"]
    with log.open("wb") as output:
        subprocess.run(command, env=environment, stdout=output, stderr=output, check=True, timeout=600)
    seconds = connection.execute(
        "SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM wakeboard.job_attempts"
    ).fetchone()[0]
    return runs / seconds


def main() -> None:
    """Run the rounds and print what they gave."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=20_000)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="wakeboard-bench-", dir="/var/tmp"))
    folder.chmod(0o711)
    server = embedded.start(folder / "d")
    rates: dict[str, list[float]] = {"raw": [], "worker": []}
    try:
        migrate(server.url)
        with connect(server.url, name="benchmark", statement_timeout_seconds=600) as connection:
            connection.execute("SET plan_cache_mode = force_generic_plan")
            for number in range(chosen.rounds):
                for name, rate in rates.items():
                    fill(connection, chosen.runs)
                    if name == "raw":
                        rate.append(raw(connection, chosen.runs))
                    else:
                        rate.append(worker(connection, server.url, chosen.runs, folder / "worker.log"))
                    check(connection, chosen.runs)
                    print(f"round {number + 1}: {name:7} {rate[-1]:8,.0f} runs/s", flush=True)
    finally:
        print(embedded.stop(folder / "d", only_if_unused=False))
        shutil.rmtree(folder, ignore_errors=True)
    for name, rate in rates.items():
        print(
            f"{name:7} median {statistics.median(rate):8,.0f}  ({min(rate):,.0f} to {max(rate):,.0f}) runs/s"
        )
    print(f"worker / raw: {statistics.median(rates['worker']) / statistics.median(rates['raw']):.2f}")


if __name__ == "__main__":
    main()
