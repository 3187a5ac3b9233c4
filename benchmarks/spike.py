"""100,000 runs that are due at the same moment: how fast they are drained, and what the pages say meanwhile.

    benchmarks/run spike [--runs 100000] [--workers 4] [--rounds 8] [--pause 50]

The runs were enqueued for later, so that there was no NOTIFY. Four real ``wakeboard worker`` processes and
the dashboard (``wakeboard web``) stand idle before the moment. From it to the last finish a browser asks, one
address after the other, ``--pause`` milliseconds between: overview, runs, a run, errors and workers, each and
what its page renews by itself. Times are those of the browser. The rate counts from the first
attempt's start to the last finish, every run has succeeded at its first attempt, and no attempt was lost.
Beside it raw SQL as in ``throughput``, on two connections, round by round.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from html import unescape
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import perf_counter, sleep

import psycopg

from benchmarks import backlogs, bench, programs, throughput
from benchmarks import raw as statements
from tests.support.processes import wait_until

PAGES = ("/", "/runs", "/runs/{run}", "/errors", "/workers")
# As a share of raw, and in milliseconds.
WANTED_SHARE, WANTED_P95 = 0.5, 200
# Time to fill, vacuum and start all programs; the first look of each worker finds an empty queue.
AHEAD_SECONDS = 45
PATIENCE_SECONDS = 240
CONNECTIONS = 4
# A page that is too slow gives up here.
TIMEOUT_SECONDS = 10
RESULT = """
SELECT (SELECT count(*) FROM wakeboard.job_runs WHERE status = 'succeeded' AND attempts = 1),
    (SELECT count(*) FROM wakeboard.job_attempts WHERE outcome = 'succeeded'),
    (SELECT count(*) FROM wakeboard.job_attempts WHERE outcome IS DISTINCT FROM 'succeeded'),
    (SELECT extract(epoch FROM max(updated_at))::float8 FROM wakeboard.job_runs),
    extract(epoch FROM min(started_at))::float8
FROM wakeboard.job_attempts
"""


class Browser(Thread):
    """Asks the addresses one after the other until ``enough`` is set; ``seconds`` has what each took."""

    def __init__(self, port: int, cookie: str, pause: float) -> None:
        super().__init__(daemon=True)
        self._there = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        self._headers, self._pause = {"Cookie": cookie}, pause
        self.seconds: dict[str, list[float]] = {}
        self.enough = Event()

    def get(self, address: str) -> str:
        """Return the body of a page. Raises SystemExit when it is none."""
        self._there.request("GET", address, headers=self._headers)
        answer = self._there.getresponse()
        body = answer.read().decode()
        if answer.status != 200:
            raise SystemExit(f"not a result: {address} answered {answer.status}")
        return body

    def parts(self, address: str) -> list[str]:
        """Return the addresses of what a page renews by itself."""
        opened = re.findall(r"<\w+ [^>]*\bdata-live\b[^>]*>", self.get(address))
        return [unescape(found[1]) for tag in opened if (found := re.search(r'hx-get="([^"]*)"', tag))]

    def prepare(self, run: int) -> None:
        """Ask every page and its parts, so often that no process of the dashboard is new to them."""
        for _ in range(CONNECTIONS):
            for page in PAGES:
                address = page.format(run=run)
                for each in (address, *self.parts(address)):
                    self.get(each)
                    self.seconds.setdefault(each, [])
            # A connection stays with one process, and a silent one is closed by it before the moment.
            self._there.close()

    def run(self) -> None:
        """Ask and ask."""
        while True:
            for address, taken in self.seconds.items():
                if self.enough.wait(self._pause):
                    return
                began = perf_counter()
                self.get(address)
                taken.append(perf_counter() - began)


def fill(connection: psycopg.Connection, runs: int) -> None:
    """Make a table of ``runs`` no-op runs of one moment to come."""
    throughput.fill(connection, runs, due=f"now() + interval '{AHEAD_SECONDS} seconds'")


def start_programs(stack: ExitStack, url: str, log: Path, workers: int) -> int:
    """Start the workers and the dashboard until ``stack`` is closed; return the dashboard's port."""
    for _ in range(workers):
        stack.enter_context(programs.running_wakeboard(["worker", "--app", "noop_app"], url, log))
    port, _ = stack.enter_context(programs.running_dashboard(url, log))
    with bench.session(url) as connection:
        ready = "SELECT count(*) FROM wakeboard.workers WHERE stopped_at IS NULL AND idle_since IS NOT NULL"
        wait_until(lambda: connection.execute(ready).fetchone() == (workers,), AHEAD_SECONDS)
    return port


def measure_spike(
    url: str, log: Path, runs: int, workers: int, pause: float, pages: dict[str, list[float]]
) -> float:
    """Return the runs per second; ``pages`` gains the milliseconds of every answer meanwhile."""
    with ExitStack() as stack:
        connection = stack.enter_context(bench.session(url))
        connection.execute("UPDATE wakeboard.workers SET stopped_at = now() WHERE stopped_at IS NULL")
        fill(connection, runs)
        port = start_programs(stack, url, log, workers)
        middle = "SELECT id FROM wakeboard.job_runs ORDER BY id OFFSET %s LIMIT 1"
        (run,) = connection.execute(middle, (runs // 2,)).fetchone() or (0,)
        browser = Browser(port, programs.session_cookie(connection), pause)
        browser.prepare(run)
        left = backlogs.seconds_until_due(connection)
        if left < 0:
            raise SystemExit(f"not a result: all was ready {-left:.1f} s after the runs were due")
        sleep(left)
        browser.start()
        while not backlogs.is_drained(connection):
            sleep(0.25)
            if backlogs.seconds_until_due(connection) < -PATIENCE_SECONDS or not browser.is_alive():
                raise SystemExit(f"not a result: no end in sight\n{log.read_text()[-3000:]}")
        browser.enough.set()
        browser.join(TIMEOUT_SECONDS)
        for address, taken in browser.seconds.items():
            name = re.sub(r"\d{2,}", "N", address.partition("?")[0])
            pages.setdefault(name, []).extend(1000 * one for one in taken)
        return rate(connection, runs)


def rate(connection: psycopg.Connection, runs: int) -> float:
    """Return runs per second by the rows. Raises SystemExit unless every run succeeded at once, none lost."""
    done, attempts, others, last, first = connection.execute(RESULT).fetchone() or (0,) * 5
    if not done == attempts == runs or others:
        raise SystemExit(
            f"not a result: {done} succeeded at once of {runs}, {others} attempts ended otherwise"
        )
    return float(runs / (last - first))


def drain_raw(url: str, log: Path, runs: int) -> float:
    """Drain the same number by raw SQL on two connections."""
    return throughput.drain_runs(url, log, runs, 2, statements.command(url))


def print_pages(pages: Mapping[str, Sequence[float]]) -> None:
    """Print what each address took, the slowest first."""
    title = "Pages during the spike"
    print(f"### {title}: target p95 {WANTED_P95} ms\n")
    print("| milliseconds | asked | p50 | p95 | largest | target |\n|---|--:|--:|--:|--:|---|")
    late = {name: bench.p95(each) for name, each in pages.items()}
    for name in sorted(late, key=late.__getitem__, reverse=True):
        met = "met" if late[name] <= WANTED_P95 else "missed"
        cells = f"{len(pages[name])} | {median(pages[name]):.0f} | {late[name]:.0f} | {max(pages[name]):.0f}"
        print(f"| {name} | {cells} | {met} |")


def main() -> None:
    """Run the rounds and print the tables."""
    chosen = bench.options(__doc__ or "", runs=100_000, workers=4, rounds=8, pause=50)
    pages: dict[str, list[float]] = {}
    with bench.server() as (url, folder):
        log, runs, ours = folder / "log", chosen.runs, f"Wakeboard, {chosen.workers} workers and a browser"
        cases = {
            "raw SQL, 2 connections": lambda: drain_raw(url, log, runs),
            ours: lambda: measure_spike(url, log, runs, chosen.workers, chosen.pause / 1000, pages),
        }
        found = bench.take_turns(chosen.rounds, cases, "runs/s")
        title = f"A spike: {runs:,} runs due at one moment, {chosen.rounds} rounds"
        print(bench.table(title, found, "runs/s", beside="raw SQL, 2 connections"))
        share = median(found[ours]) / median(found["raw SQL, 2 connections"])
        met = "met" if share >= WANTED_SHARE else "missed"
        print(f"Target {WANTED_SHARE} of raw: {met}. No lease was lost, every run ran once.\n")
        print_pages(pages)
        print(f"\n{bench.machine(url)}\n")


if __name__ == "__main__":
    main()
