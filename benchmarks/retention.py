"""How fast expired runs go, and what a worker's pick-up of new runs feels of it.

A PostgreSQL of its own with default durability holds expired runs, each with its attempt, and kept ones. One
worker runs no-op handlers, which an enqueuer inserts one by one. The duty runs here, where it can be halted:
windows without and with it alternate, because a shared machine is not the same from minute to minute. Then it
goes on to the end. Pick-up is the time from the insert to the handler's start, by the database's rows; claim
is the worker's own claim statement, sent here on an empty type.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep

import psycopg

from benchmarks import bench, programs
from wakeboard.database.db import connect
from wakeboard.maintenance.retention import state
from wakeboard.maintenance.retention.policy import RetentionPolicy
from wakeboard.maintenance.retention.sweep import RUNS, Retention
from wakeboard.queue.engine.claims import FROM_FIRST, claim

EXPIRED_DAYS, KEPT_DAYS = 20, 5
OWNER = "benchmark"
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
WHERE r.id > %s AND r.created_at BETWEEN %s AND %s
"""
SIZES = """
SELECT relname, pg_total_relation_size(relid) / 1048576.0, n_live_tup, n_dead_tup, autovacuum_count
FROM pg_stat_user_tables WHERE relname IN ('job_runs', 'job_attempts') ORDER BY 1 DESC
"""


@dataclass
class WindowTimes:
    """What was measured in the windows of one kind; times are milliseconds."""

    pickups: list[float] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    removed: int = 0
    seconds: float = 0.0


class Sweeper:
    """The retention duty on a thread, which can be halted."""

    def __init__(self, url: str) -> None:
        self.is_on = threading.Event()
        self.removed = 0
        self.is_through = threading.Event()
        self._url = url
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        duty = Retention(RetentionPolicy(14, 90, 365), OWNER)
        with connect(self._url, name="retention") as connection:
            while not self.is_through.is_set():
                self.is_on.wait()
                numbers = duty.step(connection)
                self.removed = numbers.get("removed_runs", self.removed)
                if duty.pause_seconds is None and numbers.get("finished_at"):
                    self.is_through.set()
                sleep(duty.pause_seconds or 0.1)

    def end(self) -> None:
        """Let it finish what it is at, and wait for that."""
        self.is_through.set()
        self.is_on.set()
        self._thread.join()


def enqueue(url: str, per_second: float, stop: threading.Event) -> None:
    """Insert runs one by one."""
    with connect(url, name="enqueuer") as connection:
        while not stop.wait(1 / per_second):
            connection.execute("INSERT INTO wakeboard.job_runs (job_type) VALUES ('noop')")


def clock(connection: psycopg.Connection) -> datetime:
    """Return the database's clock."""
    (now,) = connection.execute("SELECT clock_timestamp()").fetchone() or (None,)
    assert isinstance(now, datetime)
    return now


def measure(
    connection: psycopg.Connection, sweeper: Sweeper, seconds: float, first: int, into: WindowTimes
) -> None:
    """Measure for ``seconds``, and add to ``into``; ``first``: the highest id of the past."""
    cursor = psycopg.RawCursor(connection)
    since, began, removed = clock(connection), monotonic(), sweeper.removed
    while monotonic() - began < seconds and not sweeper.is_through.is_set():
        at = perf_counter()
        cursor.execute(claim(10), (["empty"], "probe", 30.0, *FROM_FIRST), prepare=True).fetchall()
        into.claims.append((perf_counter() - at) * 1000)
        sleep(0.02)
    into.seconds += monotonic() - began
    into.removed += sweeper.removed - removed
    until = clock(connection)
    sleep(0.5)
    into.pickups += [row[0] for row in connection.execute(PICKUPS, (first, since, until))]


def sizes(connection: psycopg.Connection, when: str) -> None:
    """Print how big the tables are and what vacuum has to do."""
    connection.execute("SELECT pg_stat_clear_snapshot()")
    for table, megabytes, live, dead, vacuums in connection.execute(SIZES):
        print(f"{when:24} {table:13} {megabytes:7,.0f} MB  {live:10,} live {dead:10,} dead  "
              f"{vacuums} autovacuums", flush=True)  # fmt: skip


def take_pass(connection: psycopg.Connection) -> None:
    """Say that the pass is under way here, so that the worker leaves it alone."""
    connection.execute(
        "UPDATE wakeboard.loops SET last_success_at = now() WHERE process_id = %s", (state.PROCESS_ID,)
    )


def print_line(name: str, found: WindowTimes) -> None:
    """Print a line of the table."""
    cells = [measure(values) for values in (found.pickups, found.claims) for measure in (median, bench.p95)]
    print(
        f"{name:8} {found.seconds:6.0f} s  pick-up p50 {cells[0]:7.2f}  p95 {cells[1]:7.2f}"
        f"   claim p50 {cells[2]:6.2f}  p95 {cells[3]:6.2f} ms   {len(found.pickups):6} runs picked up"
        f"  {found.removed / found.seconds:6.0f} removed/s",
        flush=True,
    )


@contextmanager
def running_load(url: str, rate: float, log: Path) -> Iterator[None]:
    """Have a worker run what an enqueuer inserts."""
    stop = threading.Event()
    producer = threading.Thread(target=enqueue, args=(url, rate, stop))
    with programs.running_wakeboard(["worker", "--app", "noop_app"], url, log):
        producer.start()
        try:
            yield
        finally:
            stop.set()
            producer.join()


def fill(connection: psycopg.Connection, runs: int, kept: int) -> int:
    """Write the past; return its highest id."""
    connection.execute("INSERT INTO wakeboard.job_types (name) VALUES ('noop'), ('empty')")
    connection.execute(FILL, {"runs": runs, "days": EXPIRED_DAYS})
    connection.execute(FILL, {"runs": kept, "days": KEPT_DAYS})
    connection.execute("VACUUM ANALYZE")
    connection.execute("CHECKPOINT")
    (last,) = connection.execute("SELECT max(id) FROM wakeboard.job_runs").fetchone() or (0,)
    return int(last)


def run(url: str, options: argparse.Namespace, log: Path) -> None:
    """Fill, alternate, go on to the end."""
    with connect(url, name="benchmark", statement_timeout_seconds=1800) as connection:
        first = fill(connection, options.runs, options.kept)
        connection.execute("SET plan_cache_mode = force_generic_plan")
        state.create(connection)
        state.store(connection, state.RetentionPass(owner=OWNER, phase=RUNS))
        sizes(connection, "filled")
        with running_load(url, options.rate, log):
            sleep(10)
            take_pass(connection)
            sweeper = Sweeper(url)
            without, during = WindowTimes(), WindowTimes()
            for number in range(2 * options.rounds):
                take_pass(connection)
                (sweeper.is_on.set if number % 2 else sweeper.is_on.clear)()
                measure(connection, sweeper, options.seconds, first, during if number % 2 else without)
            print_line("without", without)
            print_line("with", during)
            sweeper.is_on.set()
            began, removed = monotonic(), sweeper.removed
            sweeper.is_through.wait()
            print(f"the other {sweeper.removed - removed:,} in {monotonic() - began:.0f} s", flush=True)
        sizes(connection, "removed")
        connection.execute("VACUUM wakeboard.job_runs, wakeboard.job_attempts")
        sizes(connection, "vacuumed")
        statement = "SELECT count(*) FROM wakeboard.job_runs WHERE finished_at < now() - interval '14 days'"
        (left,) = connection.execute(statement).fetchone() or (None,)
        print(f"expired runs left: {left}", flush=True)


def main() -> None:
    """Measure and print a table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=1_000_000, help="expired runs")
    options.add_argument("--kept", type=int, default=100_000, help="ended runs that stay")
    options.add_argument("--rate", type=float, default=50, help="runs enqueued per second")
    options.add_argument("--seconds", type=int, default=10, help="length of a window")
    options.add_argument("--rounds", type=int, default=10, help="pairs of windows")
    chosen = options.parse_args()
    with bench.server() as (url, folder):
        run(url, chosen, folder / "worker.log")


if __name__ == "__main__":
    main()
