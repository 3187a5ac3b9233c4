"""What an idle installation costs (CPU, statements, memory of worker and dashboard), and quick starts.

    benchmarks/run rest [--seconds 60] [--rounds 3]

CPU is what the processes have used between two looks; transactions are what PostgreSQL counted, less those of
the looking itself; statements are those that its log has in a time of its own, without BEGIN and the like;
memory is the proportional set size (shared pages divided by those who share them). The dashboard has answered
its pages once. A start is from the command to the first page, of an installation that was there before.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

from benchmarks import bench, statement_log
from tests.support.processes import free_port, wait_until
from wakeboard.accounts.sessions import open_session
from wakeboard.accounts.users import install_id
from wakeboard.core.states import Role
from wakeboard_dashboard.pages.navigation import PAGES

SETTLE_SECONDS = 10


def family(pid: int) -> list[int]:
    """Return a process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def megabytes(pids: list[int]) -> float:
    """Return the proportional set size of the processes together."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def transactions(url: str) -> int:
    """Return how many transactions the database has ended."""
    with bench.session(url) as connection:
        row = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def running(arguments: list[str], url: str, log: Path) -> Iterator[int]:
    """Run one of our commands meanwhile; yield its process id."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "wakeboard", *arguments],
            env=bench.environment(url), stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(20)


@dataclass(frozen=True, slots=True)
class Resting:
    """What rests: percent of a core, transactions and statements a second, megabytes."""

    cpu: float
    transactions: float
    statements: float
    megabytes: float


def at_rest(pid: int, url: str, folder: Path, seconds: int) -> Resting:
    """Measure the process ``pid`` and all below it while nothing is to be done."""
    sleep(SETTLE_SECONDS)
    pids = family(pid)
    cpu, ended = bench.cpu_seconds(pids), transactions(url)
    sleep(seconds)
    used, count = bench.cpu_seconds(pids) - cpu, transactions(url) - ended - 1
    held = megabytes(pids)
    sent = statement_log.statements(folder, seconds)
    return Resting(100 * used / seconds, count / seconds, sum(each[1] for each in sent.values()), held)


def worker_at_rest(url: str, folder: Path, seconds: int, slots: int) -> Resting:
    """Measure a worker whose children have run once."""
    log = folder / "log"
    with running(["worker", "--app", "noop_app", "--concurrency", str(slots)], url, log) as pid:
        with bench.session(url) as connection:
            connection.execute(
                "INSERT INTO wakeboard.job_runs (job_type) SELECT 'noop' FROM generate_series(1, 99)"
            )
            wait_until(
                lambda: not connection.execute(
                    "SELECT 1 FROM wakeboard.job_runs WHERE finished_at IS NULL LIMIT 1"
                ).fetchone(), 30,
            )  # fmt: skip
        return at_rest(pid, url, folder, seconds)


def dashboard_at_rest(url: str, folder: Path, seconds: int) -> Resting:
    """Measure a dashboard that has answered every page."""
    port = free_port()
    with running(["web", "--bind", f"127.0.0.1:{port}"], url, folder / "log") as pid:
        wait_until(lambda: answers(port), 30)
        with bench.session(url) as connection:
            cookie = f"wakeboard_{install_id(connection)}={open_session(connection, 'bench', Role.ADMIN)}"
        for path in 2 * [entry.path for entry in PAGES if entry.place == "bar" or entry.path == "/system"]:
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Cookie": cookie})
            urllib.request.urlopen(request, timeout=20).read()
        return at_rest(pid, url, folder, seconds)


def answers(port: int) -> bool:
    """Return whether the dashboard is there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/login", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def second_start(folder: Path) -> float:
    """Return the seconds from ``wakeboard up --demo`` to its first page; the first call makes its data."""
    port = free_port()
    environment = bench.environment("") | {"WAKEBOARD_DATA_DIR": str(folder / "demo")}
    del environment["WAKEBOARD_DATABASE_URL"]
    command = [sys.executable, "-m", "wakeboard", "up", "--demo", "--port", str(port)]
    began = perf_counter()
    with (folder / "log").open("ab") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            while not answers(port):
                sleep(0.02)
                assert process.poll() is None and perf_counter() - began < 120
            return perf_counter() - began
        finally:
            process.terminate()
            process.wait(40)


def starts(arguments: list[str]) -> float:
    """Return the seconds that a command takes."""
    began = perf_counter()
    subprocess.run([sys.executable, "-m", "wakeboard", *arguments], stdout=subprocess.DEVNULL, check=True)
    return perf_counter() - began


def resting(url: str, folder: Path, seconds: int) -> None:
    """Measure what rests and print it beside what is wanted."""
    worker, wide = (worker_at_rest(url, folder, seconds, slots) for slots in (2, 6))
    web = dashboard_at_rest(url, folder, seconds)
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
        resting(url, folder, chosen.seconds)
        turns = {"wakeboard --help": lambda: starts(["--help"]), "python -c pass": plain_python}
        found = bench.take_turns(chosen.rounds * 5, turns, "s")
        print(bench.table("Start (wanted: --help in 0.25 s)", found, "s", beside="python -c pass"))
        bench.say("making a demo for the starts after the first")
        second_start(folder)
        found = bench.take_turns(chosen.rounds, {"up --demo": lambda: second_start(folder)}, "s")
        print(bench.table("First page of a second start (wanted: 4 s)", found, "s", beside="up --demo"))
        print(f"{bench.machine(url)}\n")


def plain_python() -> float:
    """Return the seconds that Python alone takes."""
    began = perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return perf_counter() - began


if __name__ == "__main__":
    main()
