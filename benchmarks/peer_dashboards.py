"""How long our pages take beside those of the dashboards of PgQueuer and pg-boss that correspond to them.

    benchmarks/run peer_dashboards [--sizes 10000,1000000] [--requests 20] [--clients 20] [--rounds 2]
    [--seconds 6]

One PostgreSQL server with default durability has a database of each for each size, a number of jobs of the
past; ``benchmarks.peer_histories`` says what each keeps of them. All dashboards run at once, as they come:
``wakeboard web``, two processes of eight threads; ``python -m pgqueuer.adapters.web`` of ``pgqueuer[web]``
1.6.0, one process; and ``pg-boss-dashboard`` of ``@pg-boss/dashboard`` 1.9.0, one process: the newest
releases. The last has a copy of pg-boss that wants tables of schema 42, so those are of ``pg-boss``
12.34.0, the newest to make such: on tables of 12.38.0, of schema 46, its page of a job answers 500,
``pg-boss database requires migrations``. Both ask for node 22.12 or newer, though node 20 starts them, so a
node 24.19 comes with their environment.

Every page takes turns, dashboard by dashboard and size by size, on a connection that stays open; the time is
from the request's first byte to the answer's last, over loopback. The first request of a page, which its
process has never seen, is told apart. The smallest median of a line is bold, whose ever it is. A dash stands
where a dashboard has no such page, and the reason where a page answered with an error or not within 30
seconds. Then so many clients at once walk over the pages that all of them have, dashboard by dashboard; what
was not answered in time counts as 30 seconds.

Corresponding is not the same. Only ours asks who it is. Ours and pg-boss's list all jobs, the newest first;
PgQueuer's list has those that wait, the oldest first, as it keeps no others, and its page of failures both
what is held and what its log has of the last hundred exceptions. Its overview and entrypoints compute from
its statistics, which have no index by time, and its log; pg-boss's overview and queues show counts that its
workers leave in a table each minute, ours what happened up to now. A job's page has its log in PgQueuer,
its attempts in ours. Our search for what jobs were given looks at 20,000 runs a request and says so;
pg-boss's looks at all.
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter

import psycopg
from psycopg import sql

from benchmarks import bench, peer_histories, programs
from benchmarks.pages import Browser, PageError, Times, dashboard
from tests.support.processes import free_port, wait_until
from wakeboard.database import embedded
from wakeboard.database.migrations import migrate

SIZES = (10_000, 1_000_000)
TIMEOUT_SECONDS = 30
# One in 160 jobs is of this name, six in ten thousand are failed ones of it.
NAME = "type_40"
PAGES = (
    "overview", "names of jobs", "jobs that wait", "all jobs", "failed jobs", "one failed job",
    "jobs of a name", "failed jobs of a name", "search what jobs were given",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Whose it is, how its database is filled and how it is run; ``pages`` are its addresses by ``PAGES``.

    ``{0}`` and so on in addresses stand for what ``failed`` selects: the newest job that failed.
    """

    title: str
    fill: Callable[[str, int], None]
    run: Callable[[str, Path], AbstractContextManager[tuple[int, str]]]
    failed: str
    pages: Mapping[str, str]


@dataclass
class PageTimes(Times):
    """The times of one page, until it failed, if it did."""

    error: str = ""


@dataclass
class CrowdTimes:
    """What clients at once were answered: milliseconds, and why some were not; the seconds it took."""

    warm: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0


@contextmanager
def running(
    command: Sequence[str | Path], environment: Mapping[str, str], port: int, log: Path
) -> Iterator[tuple[int, str]]:
    """Run the dashboard of a peer while the block lasts; yield its port and no cookie."""
    with programs.running(command, os.environ | environment, log) as process:
        wait_until(lambda: process.poll() is not None or _is_listening(port), programs.START_SECONDS)
        if process.poll() is not None:
            raise SystemExit(f"{command[0]} ended:\n{log.read_text()[-3000:]}")
        yield port, ""


def _is_listening(port: int) -> bool:
    """Return whether a program listens, without the first request, which is to be measured."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def run_pgqueuer(url: str, log: Path) -> AbstractContextManager[tuple[int, str]]:
    """Run PgQueuer's dashboard."""
    port = free_port()
    environment = {"PGQUEUER_DSN": bench.peer_url(url), "PGQUEUER_WEB_PORT": str(port)}
    return running([bench.peer("pgqueuer"), "-m", "pgqueuer.adapters.web"], environment, port, log)


def run_pgboss(url: str, log: Path) -> AbstractContextManager[tuple[int, str]]:
    """Run pg-boss's dashboard."""
    port = free_port()
    node, folder = bench.node_peer("pgboss")
    environment = {"DATABASE_URL": bench.peer_url(url), "HOST": "127.0.0.1", "PORT": str(port)}
    return running([node, folder / "node_modules" / ".bin" / "pg-boss-dashboard"], environment, port, log)


DASHBOARDS = (
    Dashboard(
        "Wakeboard", peer_histories.fill_wakeboard, dashboard,
        "SELECT id FROM wakeboard.job_runs WHERE status = 'dead' ORDER BY id DESC LIMIT 1",
        {
            "overview": "/",
            "names of jobs": "/types",
            "jobs that wait": "/runs?status=queued",
            "all jobs": "/runs",
            "failed jobs": "/runs?status=dead",
            "one failed job": "/runs/{0}",
            "jobs of a name": f"/runs?type={NAME}",
            "failed jobs of a name": f"/runs?type={NAME}&status=dead",
            "search what jobs were given": f"/runs?payload.customer={peer_histories.CUSTOMER}",
        },
    ),
    Dashboard(
        "PgQueuer", peer_histories.fill_pgqueuer, run_pgqueuer,
        "SELECT id FROM public.pgqueuer WHERE status = 'failed' ORDER BY id DESC LIMIT 1",
        {
            "overview": "/",
            "names of jobs": "/entrypoints",
            "jobs that wait": "/jobs",
            "failed jobs": "/failures",
            "one failed job": "/jobs/{0}",
            "jobs of a name": f"/jobs?entrypoint={NAME}",
        },
    ),
    Dashboard(
        "pg-boss", peer_histories.fill_pgboss, run_pgboss,
        "SELECT name, id FROM pgboss.job WHERE state = 'failed' ORDER BY created_on DESC LIMIT 1",
        {
            "overview": "/",
            "names of jobs": "/queues",
            "jobs that wait": "/jobs",
            "all jobs": "/jobs?state=all",
            "failed jobs": "/jobs?state=failed",
            "one failed job": "/queues/{0}/jobs/{1}",
            "jobs of a name": f"/queues/{NAME}?state=all",
            "failed jobs of a name": f"/queues/{NAME}?state=failed",
            "search what jobs were given": f"/jobs?state=all&data.customer={peer_histories.CUSTOMER}",
        },
    ),
)  # fmt: skip
# One dashboard at one size.
Key = tuple[str, int]


def fill_database(folder: Path, each: Dashboard, size: int) -> str:
    """Make and fill the database of a dashboard at a size; return its URL."""
    name = f"{each.title.lower().replace('-', '')}_{size}"
    admin = embedded.url(folder, user="postgres", database="postgres")
    with psycopg.connect(admin, autocommit=True) as connection:
        made = sql.SQL("CREATE DATABASE {} OWNER wakeboard TEMPLATE template0").format(sql.Identifier(name))
        connection.execute(made)
    url = embedded.url(folder, database=name)
    began = monotonic()
    if each.title == "Wakeboard":
        migrate(url)
    each.fill(url, size)
    bench.say(f"{each.title}: {size:,} jobs, filled in {monotonic() - began:.0f} s")
    return url


def addresses(each: Dashboard, url: str) -> dict[str, str]:
    """Return the addresses of a dashboard's pages in a database."""
    with bench.session(url) as connection:
        row = connection.execute(each.failed.encode()).fetchone()
    assert row is not None
    return {page: address.format(*row) for page, address in each.pages.items()}


def in_turns(
    browsers: Mapping[Key, Browser], addresses_of: Mapping[Key, Mapping[str, str]], requests: int
) -> dict[str, dict[Key, PageTimes]]:
    """Ask for every page of each in turns; return the times by page. A page that fails is left alone then."""
    found: dict[str, dict[Key, PageTimes]] = {}
    for page in PAGES:
        times_of = found[page] = {key: PageTimes() for key in browsers if page in addresses_of[key]}
        for number in range(requests + 1):
            for key, times in times_of.items():
                if times.error:
                    continue
                try:
                    took = browsers[key].ask(addresses_of[key][page])
                except (PageError, OSError, HTTPException) as failure:
                    times.error = failure_text(failure)
                    continue
                if number:
                    times.warm.append(took)
                else:
                    times.first = took
        medians = [f"{title} {each.p50:.0f}" for (title, _), each in times_of.items() if each.warm]
        bench.say(f"{page}: {', '.join(medians)} ms")
    return found


def failure_text(failure: BaseException) -> str:
    """Return what a table says of a request that failed."""
    if isinstance(failure, TimeoutError):
        return f"no answer in {TIMEOUT_SECONDS} s"
    return f"failed: {failure}".replace("not a result: ", "").replace("|", "/")


def at_once(
    port: int, cookie: str, pages: Sequence[str], clients: int, seconds: float, crowd: CrowdTimes
) -> None:
    """Let ``clients`` walk over ``pages`` for so long, each from another one on; add to ``crowd``."""
    began = perf_counter()

    def walk(step: int) -> None:
        browser = Browser(port, cookie, TIMEOUT_SECONDS)
        while perf_counter() - began < seconds:
            try:
                crowd.warm.append(browser.ask(pages[step % len(pages)]))
            except (PageError, OSError, HTTPException) as failure:
                crowd.warm.append(TIMEOUT_SECONDS * 1000)
                crowd.failed.append(failure_text(failure))
            step += 1

    threads = [threading.Thread(target=walk, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    crowd.seconds += perf_counter() - began


def table(found: Mapping[str, Mapping[Key, PageTimes]], titles: Sequence[str], size: int) -> str:
    """Return the times at one size as a table, the smallest median of each line in bold."""
    heads = " | ".join(f"{title} p50 | p95 | first" for title in titles)
    lines = [f"### Corresponding pages, {size:,} jobs of the past", ""]
    lines += [f"| milliseconds | {heads} |", "|---" + "|--:" * 3 * len(titles) + "|"]
    for page, times_of in found.items():
        here = {title: times_of[title, size] for title in titles if (title, size) in times_of}
        least = min((each.p50 for each in here.values() if each.warm and not each.error), default=0.0)
        lines.append(f"| {page} | {' | '.join(_cells(here.get(title), least) for title in titles)} |")
    return "\n".join([*lines, ""])


def _cells(times_of: PageTimes | None, least: float) -> str:
    if times_of is None:
        return "– | – | –"
    if times_of.error:
        return f"{times_of.error} | – | –"
    mark = "**" if times_of.p50 == least else ""
    return f"{mark}{times_of.p50:.1f}{mark} | {times_of.p95:.1f} | {times_of.first:.0f}"


def table_of_crowds(crowds: Mapping[Key, CrowdTimes], clients: int, pages: Sequence[str]) -> str:
    """Return how each did with many clients, by size."""
    lines = [f"### {clients} clients at once over {len(pages)} pages: {', '.join(pages)}", ""]
    lines += ["Ours runs as two processes, each of the others as one, as they come.", ""]
    lines.append("| milliseconds | jobs of the past | p50 | p95 | largest | answers/s | not answered |")
    lines.append("|---" + "|--:" * 6 + "|")
    for (title, size), crowd in sorted(crowds.items(), key=lambda each: each[0][1]):
        least = min(median(other.warm) for (_, same), other in crowds.items() if same == size)
        mark = "**" if median(crowd.warm) == least else ""
        rate = (len(crowd.warm) - len(crowd.failed)) / crowd.seconds
        why = f" ({', '.join(sorted(set(crowd.failed)))})" if crowd.failed else ""
        lines.append(
            f"| {title} | {size:,} | {mark}{median(crowd.warm):.0f}{mark} | {bench.p95(crowd.warm):.0f} "
            f"| {max(crowd.warm):.0f} | {rate:.1f} | {len(crowd.failed)}{why} |"
        )
    return "\n".join([*lines, ""])


def versions() -> str:
    """Return what the peers' environments are made of, as it is pinned."""
    pins = [(bench.PEERS / name).read_text().split()[0] for name in ("pgqueuer.txt", "pgboss.txt")]
    packages = (bench.PEERS / "pgboss.json").read_text()
    pins += [line.strip(' ,"').replace('": "', " ") for line in packages.splitlines() if "pg-boss" in line]
    return f"Beside ours: {', '.join(pins)}."


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--sizes", type=lambda given: tuple(int(each) for each in given.split(",")), default=SIZES,
        help="numbers of jobs of the past, joined by commas",
    )  # fmt: skip
    parser.add_argument("--requests", type=int, default=20, help="warm requests of each page")
    parser.add_argument("--clients", type=int, default=20, help="clients at once")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of clients at once")
    parser.add_argument("--seconds", type=float, default=6, help="seconds of each round for each dashboard")
    chosen = parser.parse_args()
    titles = [each.title for each in DASHBOARDS]
    with bench.server() as (main_url, folder), ExitStack() as open_now:
        addresses_of: dict[Key, dict[str, str]] = {}
        start: dict[Key, Callable[[], AbstractContextManager[tuple[int, str]]]] = {}
        for size in chosen.sizes:
            for each in DASHBOARDS:
                url = fill_database(folder / "d", each, size)
                addresses_of[each.title, size] = addresses(each, url)
                start[each.title, size] = partial(each.run, url, folder / "log")
        ports = {key: open_now.enter_context(begin()) for key, begin in start.items()}
        browsers = {key: Browser(*at, timeout_seconds=TIMEOUT_SECONDS) for key, at in ports.items()}
        found = in_turns(browsers, addresses_of, chosen.requests)
        for size in chosen.sizes:
            print(table(found, titles, size))
        shared = [page for page in PAGES if all(page in each.pages for each in DASHBOARDS)]
        crowds = {key: CrowdTimes() for key in ports}
        for number in range(chosen.rounds):
            for key, at in ports.items():
                pages = [addresses_of[key][page] for page in shared]
                at_once(*at, pages, chosen.clients, chosen.seconds, crowds[key])
                bench.say(f"round {number + 1}: {key[0]}, {key[1]:,}: {len(crowds[key].warm)} answers")
        print(table_of_crowds(crowds, chosen.clients, shared))
        print(f"{versions()}\n\n{bench.machine(main_url)}")


if __name__ == "__main__":
    main()
