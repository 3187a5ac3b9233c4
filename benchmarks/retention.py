"""How fast expired runs go, and what a worker's pick-up of new runs feels of it.

A PostgreSQL of its own with default durability holds expired runs, each with its attempt, and kept ones. One
worker runs no-op handlers, which an enqueuer inserts one by one; retention is that worker's own duty. Three
windows: before the pass, while it lasts, after it. Pick-up is the time from the insert to the handler's
start, by the database's rows; claim is the worker's own claim statement, sent here on an empty type.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter, sleep

import psycopg

from worker import embedded
from worker.db import connect, migrate
from worker.retention import state
from worker.transitions import engine

HERE = Path(__file__).resolve().parent
EXPIRED_DAYS, KEPT_DAYS = 20, 5
FILL = """
WITH made AS (
    INSERT INTO wakeboard.job_runs (job_type, payload, status, attempts, lease_epoch, started_at, created_at,
        run_at, finished_at)
    SELECT 'noop', jsonb_build_object('n', n), 'succeeded', 1, 1, at, at, at, at
    FROM generate_series(1, %(runs)s) AS n,
        LATERAL (SELECT now() - make_interval(days => %(days)s) + make_interval(secs => n * 0.01) AS at) AS t
    RETURNING id, finished_at
)
INSERT INTO wakeboard.job_attempts (run_id, attempt, lease_epoch, job_type, worker_id, due_at, started_at,
    finished_at, outcome)
SELECT id, 1, 1, 'noop', 'past', finished_at, finished_at, finished_at, 'succeeded' FROM made
"""
PICKUPS = """
SELECT extract(epoch FROM a.started_at - r.created_at)::float8 * 1000
FROM wakeboard.job_runs AS r JOIN wakeboard.job_attempts AS a ON a.run_id = r.id
WHERE r.id > %s AND r.id <= %s
"""
SIZES = """
SELECT relname, pg_total_relation_size(relid) / 1048576.0, n_live_tup, n_dead_tup, autovacuum_count
FROM pg_stat_user_tables WHERE relname IN ('job_runs', 'job_attempts') ORDER BY 1 DESC
"""


@dataclass
class Window:
    """What was measured in one stretch of time."""

    name: str
    seconds: float = 0.0
    pickups: list[float] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)


def newest(connection: psycopg.Connection) -> int:
    """Return the highest id."""
    return connection.execute("SELECT max(id) FROM wakeboard.job_runs").fetchone()[0]


def enqueue(url: str, per_second: float, stop: threading.Event) -> None:
    """Insert runs one by one."""
    with connect(url, name="enqueuer") as connection:
        while not stop.wait(1 / per_second):
            connection.execute("INSERT INTO wakeboard.job_runs (job_type) VALUES ('noop')")


def measure(url: str, name: str, over: Callable[[float], bool]) -> Window:
    """Measure until ``over(seconds so far)`` is true."""
    window, began = Window(name), monotonic()
    with connect(url, name="measure") as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        cursor = psycopg.RawCursor(connection)
        first = newest(connection)
        while not over(monotonic() - began):
            at = perf_counter()
            cursor.execute(engine.claim(10), (["empty"], "probe", 30.0), prepare=True).fetchall()
            window.claims.append((perf_counter() - at) * 1000)
            sleep(0.02)
        window.seconds = monotonic() - began
        last = newest(connection)
        sleep(1)
        window.pickups = [row[0] for row in connection.execute(PICKUPS, (first, last))]
    return window


def percentile(values: list[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie."""
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def sizes(connection: psycopg.Connection, when: str) -> None:
    """Print how big the tables are and what vacuum has to do."""
    connection.execute("SELECT pg_stat_clear_snapshot()")
    for table, megabytes, live, dead, vacuums in connection.execute(SIZES):
        print(f"{when:24} {table:13} {megabytes:7,.0f} MB  {live:10,} live {dead:10,} dead  "
              f"{vacuums} autovacuums", flush=True)  # fmt: skip


def postpone(connection: psycopg.Connection) -> None:
    """Say that a pass has just been made, so that the worker begins none."""
    state.create(connection)
    state.store(connection, state.Pass(owner="nobody", finished_at=1.0))


def numbers(connection: psycopg.Connection) -> state.Pass:
    """Return where the pass stands."""
    return state.read(connection)[0]


def show(window: Window) -> None:
    """Print a line of the table."""
    cells = [percentile(values, share) for values in (window.pickups, window.claims) for share in (0.5, 0.95)]
    print(
        f"{window.name:8} {window.seconds:8.1f} s   pick-up p50 {cells[0]:7.2f}  p95 {cells[1]:7.2f}"
        f"   claim p50 {cells[2]:6.2f}  p95 {cells[3]:6.2f} ms   n={len(window.pickups)}",
        flush=True,
    )


def run(url: str, options: argparse.Namespace, log: Path) -> None:
    """Fill, then measure the three windows."""
    with connect(url, name="benchmark", statement_timeout_seconds=1800) as connection:
        began = monotonic()
        connection.execute("INSERT INTO wakeboard.job_types (name) VALUES ('noop'), ('empty')")
        connection.execute(FILL, {"runs": options.runs, "days": EXPIRED_DAYS})
        connection.execute(FILL, {"runs": options.kept, "days": KEPT_DAYS})
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
        postpone(connection)
        print(f"filled in {monotonic() - began:.0f} s", flush=True)
        sizes(connection, "before")
        environment = os.environ | {"WAKEBOARD_DATABASE_URL": url, "PYTHONPATH": str(HERE)}
        stop = threading.Event()
        producer = threading.Thread(target=enqueue, args=(url, options.rate, stop))
        with log.open("wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "worker", "worker", "--app", "noop_app"],
                env=environment, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            producer.start()
            sleep(10)
            show(measure(url, "before", lambda seconds: seconds > options.seconds))
            connection.execute("UPDATE wakeboard.loops SET last_success_at = now() - interval '3 hours'"
                               " WHERE process_id = %s", (state.PROCESS_ID,))  # fmt: skip
            while numbers(connection).room is None:
                sleep(0.1)
            show(measure(url, "during", lambda _: numbers(connection).room is None))
            done = numbers(connection)
            print(f"removed {done.removed}, work {done.work_seconds:.1f} s", flush=True)
            sizes(connection, "after the pass")
            show(measure(url, "after", lambda seconds: seconds > options.seconds))
            sizes(connection, f"{options.seconds} s later")
        finally:
            stop.set()
            worker.terminate()
            worker.wait(40)
            producer.join()
        connection.execute("VACUUM wakeboard.job_runs, wakeboard.job_attempts")
        sizes(connection, "vacuumed")
        left = connection.execute(
            "SELECT count(*) FROM wakeboard.job_runs WHERE finished_at < now() - interval '14 days'"
        ).fetchone()[0]
        print(f"expired runs left: {left}", flush=True)


def main() -> None:
    """Measure and print a table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=1_000_000, help="expired runs")
    options.add_argument("--kept", type=int, default=100_000, help="ended runs that stay")
    options.add_argument("--rate", type=float, default=50, help="runs enqueued per second")
    options.add_argument("--seconds", type=int, default=40, help="length of the windows before and after")
    chosen = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="wakeboard-bench-", dir="/var/tmp"))
    folder.chmod(0o711)
    server = embedded.start(folder / "d")
    try:
        migrate(server.url)
        run(server.url, chosen, folder / "worker.log")
    finally:
        print(embedded.stop(folder / "d", only_if_unused=False))
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
