"""What an idle installation costs (CPU, statements, memory of worker and dashboard), and quick starts.

    benchmarks/run idle [--seconds 60] [--rounds 3]

CPU is what the processes have used between two looks; transactions are what PostgreSQL counted, less those of
the looking itself; statements are those that its log has in a time of its own, without BEGIN and the like;
memory is the proportional set size (shared pages divided by those who share them). The dashboard has answered
its pages once. A start is from the command to the first page, of an installation that was there before.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

from benchmarks import bench, programs, statement_log
from tests.support.processes import free_port, wait_until
from wakeboard_dashboard.pages.navigation import PAGES

SETTLE_SECONDS = 10


def transactions(url: str) -> int:
    """Return how many transactions the database has ended."""
    with bench.session(url) as connection:
        row = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


@dataclass(frozen=True, slots=True)
class IdleCosts:
    """The costs of an idle program: percent of a core, transactions and statements a second, megabytes."""

    cpu: float
    transactions: float
    statements: float
    megabytes: float


def measure_idle(pid: int, url: str, folder: Path, seconds: int) -> IdleCosts:
    """Measure the process ``pid`` and all below it while nothing is to be done."""
    sleep(SETTLE_SECONDS)
    pids = programs.family(pid)
    cpu, ended = bench.cpu_seconds(pids), transactions(url)
    sleep(seconds)
    used, count = bench.cpu_seconds(pids) - cpu, transactions(url) - ended - 1
    memory = programs.megabytes(pids)
    sent = statement_log.statement_rates(folder, seconds)
    return IdleCosts(100 * used / seconds, count / seconds, sum(each[1] for each in sent.values()), memory)


def measure_idle_worker(url: str, folder: Path, seconds: int, slots: int) -> IdleCosts:
    """Measure a worker whose children have run once."""
    log = folder / "log"
    with programs.running_wakeboard(
        ["worker", "--app", "noop_app", "--concurrency", str(slots)], url, log
    ) as pid:
        with bench.session(url) as connection:
            connection.execute(
                "INSERT INTO wakeboard.job_runs (job_type) SELECT 'noop' FROM generate_series(1, 99)"
            )
            wait_until(
                lambda: not connection.execute(
                    "SELECT 1 FROM wakeboard.job_runs WHERE finished_at IS NULL LIMIT 1"
                ).fetchone(), 30,
            )  # fmt: skip
        return measure_idle(pid, url, folder, seconds)


def measure_idle_dashboard(url: str, folder: Path, seconds: int) -> IdleCosts:
    """Measure a dashboard that has answered every page."""
    with programs.running_dashboard(url, folder / "log") as (port, pid):
        with bench.session(url) as connection:
            cookie = programs.session_cookie(connection)
        for path in 2 * [entry.path for entry in PAGES if entry.place == "bar" or entry.path == "/system"]:
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Cookie": cookie})
            urllib.request.urlopen(request, timeout=20).read()
        return measure_idle(pid, url, folder, seconds)


def time_demo_start(folder: Path) -> float:
    """Return the seconds from ``wakeboard up --demo`` to its first page; the first call makes its data."""
    port = free_port()
    environment = bench.environment("") | {"WAKEBOARD_DATA_DIR": str(folder / "demo")}
    del environment["WAKEBOARD_DATABASE_URL"]
    command = [sys.executable, "-m", "wakeboard", "up", "--demo", "--port", str(port)]
    began = perf_counter()
    with programs.running(command, environment, folder / "log") as process:
        while not programs.is_answering(port):
            sleep(0.02)
            assert process.poll() is None and perf_counter() - began < 120
        return perf_counter() - began


def time_command(arguments: list[str]) -> float:
    """Return the seconds that a command takes."""
    began = perf_counter()
    subprocess.run([sys.executable, "-m", "wakeboard", *arguments], stdout=subprocess.DEVNULL, check=True)
    return perf_counter() - began


def print_idle(url: str, folder: Path, seconds: int) -> None:
    """Measure what rests and print it beside what is wanted."""
    worker, wide = (measure_idle_worker(url, folder, seconds, slots) for slots in (2, 6))
    web = measure_idle_dashboard(url, folder, seconds)
    print(f"### At rest, {seconds} s\n\n| | | wanted |\n|---|--:|--:|")
    rows = (
        ("worker with 2 slots, % of a core", f"{worker.cpu:.2f}", "0.3"),
        ("worker, transactions/s", f"{worker.transactions:.2f}", "1"),
        ("worker, statements/s", f"{worker.statements:.2f}", "1"),
        ("worker with its template and two children, MB", f"{worker.megabytes:.1f}", "75"),
        ("each further child, MB", f"{(wide.megabytes - worker.megabytes) / 4:.1f}", "5"),
        ("worker with 6 slots, % of a core", f"{wide.cpu:.2f}", ""),
        ("dashboard with 2 processes, MB", f"{web.megabytes:.1f}", "170"),
        ("dashboard, % of a core", f"{web.cpu:.2f}", ""),
        ("dashboard, statements/s", f"{web.statements:.2f}", ""),
    )
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
    print()


def main() -> None:
    """Measure each and print the tables."""
    chosen = bench.options(__doc__ or "", seconds=60, rounds=3)
    with bench.server() as (url, folder):
        print_idle(url, folder, chosen.seconds)
        turns = {"wakeboard --help": lambda: time_command(["--help"]), "python -c pass": time_plain_python}
        found = bench.take_turns(chosen.rounds * 5, turns, "s")
        print(bench.table("Start (wanted: --help in 0.25 s)", found, "s", beside="python -c pass"))
        bench.say("making a demo for the starts after the first")
        time_demo_start(folder)
        found = bench.take_turns(chosen.rounds, {"up --demo": lambda: time_demo_start(folder)}, "s")
        print(bench.table("First page of a second start (wanted: 4 s)", found, "s", beside="up --demo"))
        print(f"{bench.machine(url)}\n")


def time_plain_python() -> float:
    """Return the seconds that Python alone takes."""
    began = perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return perf_counter() - began


if __name__ == "__main__":
    main()
