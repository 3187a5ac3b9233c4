"""How long every page, live fragment and JSON twin takes at ten thousand runs and at ten million.

    benchmarks/run pages [--sizes 10000,…,10000000] [--requests 40] [--clients 20] [--folder FOLDER]

The data is that of ``benchmarks.ages``, filled where it is not there or older than NEWEST. Each size has a
dashboard process of its own (``wakeboard web``, default settings) and a signed-in browser that keeps its
connection. Every address takes turns: the smallest size, the next, and so on; the time is from the
request's first byte to the answer's last, over loopback, so it holds the program, the database and the
network's own cost. The first request of an address, before which the process has never seen it, is told
apart. The smallest size is a day of ten thousand runs, so it has a night and all else that pages show by
themselves; its schedules have four runs each, where a page may show twenty. How long the answer at the
smallest size is, packed, of that at the largest, tells which pages show as much. Searches for
text look at 20,000 runs a request and say so. Exports and the questions of verbs for all that match are
left out. Then so many clients at once walk over all pages of the largest size.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter

import psycopg

from benchmarks import ages, bench, programs
from tests.support.every_page import Filling, addresses, is_page
from wakeboard.config.settings import Settings
from wakeboard_dashboard import create_app
from wakeboard_dashboard.queries.keyset import Cursor
from wakeboard_dashboard.web.connection import FRESH_COOKIE

P95_MS, TOGETHER_P95_MS, SEARCH_P95_MS, GROWTH = 100, 800, 300, 2
# An answer that is under half as long is another page: it has few rows instead of fifty, or few runs in each.
SAME = 0.5
# So old may the newest runs be: many windows show the last hour.
NEWEST = timedelta(minutes=30)
# Exports, and the questions of verbs for all that match: those judge up to 100,000 runs.
LEFT_OUT = r"\.csv$|^/runs/bulk/<"
# A run of each state, the newest but one; what else stands in addresses.
_THINGS = {
    "run_id": """SELECT (SELECT id FROM wakeboard.job_runs WHERE status BETWEEN each AND each
        ORDER BY status DESC, id DESC OFFSET 1 LIMIT 1)
        FROM unnest(ARRAY['dead', 'succeeded', 'queued', 'running', 'failed', 'cancelled']) AS each""",
    "lease_epoch": "SELECT 2",
    "code": "SELECT unnest(ARRAY['error_1', 'error_25'])",
    "schedules name": "SELECT unnest(ARRAY['schedule-1', 'schedule-10'])",
    "types name": "SELECT unnest(ARRAY['type_1', 'type_59'])",
    "workers name": "SELECT unnest(ARRAY['worker-1', 'worker-150'])",
    "effect_id": "SELECT max(id) FROM wakeboard.effects",
    "rule_id": "SELECT min(id) FROM wakeboard.alert_rules",
    "operation_id": "SELECT max(id) FROM wakeboard.operations",
    "view_id": """INSERT INTO wakeboard.saved_views (page, name, query, created_by)
        VALUES ('runs', 'benchmark', 'status=dead', 'benchmark')
        ON CONFLICT (page, name) DO UPDATE SET query = 'status=dead' RETURNING id""",
    # One of which there is much, and one of which there is little.
    "fingerprint": """(SELECT fingerprint FROM wakeboard.error_groups ORDER BY id LIMIT 1)
        UNION ALL (SELECT fingerprint FROM wakeboard.error_groups ORDER BY id DESC LIMIT 1)""",
    "verb": "SELECT unnest(ARRAY['retry', 'cancel', 'again'])",
}
# Beside each address as it is: filters, windows, and pages far behind.
_FILTERED = (
    "/?window=1h", "/?window=7d", "/overview.json?window=7d", "/_fragments/overview/succeeded?window=7d",
    *(f"/runs?status={each}" for each in ("queued", "running", "succeeded", "failed", "dead", "cancelled")),
    "/runs?status=failed,dead", "/runs.json?status=dead&limit=200", "/runs?type=type_1", "/runs?type=type_59",
    "/runs?type=type_1&status=dead", "/runs?type=type_59&status=dead", "/runs?error=error_1",
    "/runs?error=error_25", "/runs?group=0000000000065", "/runs?key=invoice-4000", "/runs?since=1h",
    "/runs?status=dead&cursor={middle}", "/runs?cursor={middle}", "/runs?type=type_40&cursor={middle}",
    "/errors?since=1h", "/errors?since=7d", "/errors?since=30d", "/errors?type=type_1",
    "/errors/error_1?since=30d",
    "/schedules?state=late,overlapping,twice", "/schedules?q=schedule-4", "/schedules?state=missed",
    "/types?state=paused", "/audit?who=person-3", "/audit?what=run.retry", "/audit?target=run:7",
    "/audit?result=denied", "/audit?since=7d&until=6d", "/audit?cursor={early}", "/night?since=12h",
)  # fmt: skip
_SEARCHES = (
    "/runs?q=nothing-has-this", "/runs?status=dead&q=nothing-has-this", "/runs?status=dead&q=answered+77",
    "/runs?type=type_3&q=nothing-has-this", "/runs?payload.customer=77", "/runs?status=queued&q=mail",
    "/runs?worker=worker-3", "/runs?attempts=10", "/audit?q=nothing-has-this",
)  # fmt: skip


@dataclass
class Times:
    """Milliseconds of one address at one size: the first request, and the warm ones; bytes of its answer."""

    first: float = 0.0
    warm: list[float] = field(default_factory=list)
    length: int = 0

    @property
    def p50(self) -> float:
        """The median of the warm ones."""
        return median(self.warm)

    @property
    def p95(self) -> float:
        """The time that one in twenty passed."""
        return bench.p95(self.warm)


class PageError(SystemExit):
    """The answer was no page: unless it is caught, there is no result."""


class Browser:
    """Somebody signed in, on one connection that stays open."""

    def __init__(self, port: int, cookie: str, timeout_seconds: float = 60) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=timeout_seconds)
        # Of the answer before, packed as it came.
        self.length = 0
        self._headers = {"Cookie": cookie, "Sec-Fetch-Site": "same-origin", "Accept-Encoding": "gzip"}
        # Fragments would come from what other viewers were just given: these come from the database.
        self._polls = {"HX-Request": "true", "Cookie": f"{cookie}; {FRESH_COOKIE}=1"}

    def ask(self, address: str) -> float:
        """Return the milliseconds of a request. Raises NoPage, and TimeoutError after ``timeout_seconds``."""
        polls = self._polls if address.startswith("/_fragments") else {}
        try:
            return self._ask(address, self._headers | polls)
        except ConnectionError:
            # It was idle for longer than the server keeps a connection.
            return self._ask(address, self._headers | polls)

    def _ask(self, address: str, headers: Mapping[str, str]) -> float:
        began = perf_counter()
        try:
            self._connection.request("GET", address, headers=headers)
            answer = self._connection.getresponse()
            self.length = len(answer.read())
        except OSError:
            self._connection.close()
            raise
        took = (perf_counter() - began) * 1000
        if answer.status not in (200, 303, 304):
            raise PageError(f"not a result: {address} answered {answer.status}")
        return took


@contextmanager
def dashboard(url: str, log: Path) -> Iterator[tuple[int, str]]:
    """Run a dashboard meanwhile; yield its port and the cookie of an admin."""
    with programs.running_dashboard(url, log) as (port, _):
        with bench.session(url) as connection:
            cookie = programs.session_cookie(connection)
        yield port, cookie


def address_values(connection: psycopg.Connection) -> Filling:
    """Return what stands in the addresses of this database."""
    found = {name: connection.execute(query.encode()).fetchall() for name, query in _THINGS.items()}
    return Filling({name: [str(row[0]) for row in rows] for name, rows in found.items()})


def every_address(url: str) -> dict[str, list[str]]:
    """Return, by rule, the addresses of pages, fragments and twins; searches under the rule ``search``."""
    app = create_app(Settings.load({"database_url": url}, environ={}))
    with bench.session(url) as connection:
        found = addresses(app, address_values(connection))
        query = """SELECT (SELECT id / 2 FROM wakeboard.job_runs WHERE status = 'succeeded'
                ORDER BY status DESC, id DESC LIMIT 1),
            (SELECT count(*) / 10 FROM wakeboard.audit_log)"""
        middle, early = connection.execute(query).fetchone() or (1, 1)
    there = {"middle": Cursor("older", (middle,)).encode(), "early": Cursor("older", (early,)).encode()}
    for address in _FILTERED:
        found[address] = [address.format(**there)]
    # The list of every page has the last day of a night; what people open first is last night.
    for rule in ("/night", "/night.json"):
        (latest,), found[rule] = found[rule], [rule]
        found[latest] = [latest]
    found = {rule: each for rule, each in found.items() if not re.search(LEFT_OUT, rule)}
    return found | {f"search {address}": [address] for address in _SEARCHES}


def in_turns(
    browsers: Mapping[int, Browser], addresses_of: Mapping[int, Mapping[str, Sequence[str]]], requests: int
) -> dict[str, dict[int, Times]]:
    """Ask for every address of each size in turns; return the times by rule, of its slowest address."""
    found: dict[str, dict[int, Times]] = {}
    for place, rule in enumerate(addresses_of[min(addresses_of)]):
        slowest: dict[int, Times] = {}
        for number in range(len(addresses_of[min(addresses_of)][rule])):
            times = {
                size: Times(browser.ask(addresses_of[size][rule][number]))
                for size, browser in browsers.items()
            }
            for _ in range(requests):
                for size, browser in browsers.items():
                    times[size].warm.append(browser.ask(addresses_of[size][rule][number]))
                    times[size].length = browser.length
            if not slowest or times[max(times)].p50 > slowest[max(times)].p50:
                slowest = times
        found[rule] = slowest
        if place % 25 == 24:
            bench.say(f"{place + 1} of {len(addresses_of[min(addresses_of)])} addresses")
    return found


def at_once(
    port: int, cookie: str, pages: Sequence[str], clients: int, requests: int
) -> dict[str, list[float]]:
    """Let ``clients`` walk over ``pages`` at once, each from another one on; return the times by page."""
    found: dict[str, list[float]] = {page: [] for page in pages}
    failed: list[BaseException] = []

    def walk(first: int) -> None:
        browser = Browser(port, cookie)
        try:
            for step in range(requests):
                page = pages[(first + step) % len(pages)]
                found[page].append(browser.ask(page))
        except BaseException as failure:
            failed.append(failure)

    threads = [threading.Thread(target=walk, args=(number * 7,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"not a result: {failed[0]}")
    return found


def print_times(found: Mapping[str, Mapping[int, Times]], title: str, most_ms: float) -> None:
    """Print how many keep the promise, and the times of all, the slowest at the largest size first."""
    sizes = sorted(next(iter(found.values())))
    small, large = sizes[0], sizes[-1]
    slow = [rule for rule, times in found.items() if times[large].p95 > most_ms]
    print(f"### {title}\n\n{len(found)} of them; p95 over {most_ms} ms at {large:,} runs: {len(slow)};")
    print(
        "".join(_growth_line(found, size, large) for size in sizes[:-1][:2]),
        end="the slowest come first:\n\n",
    )
    columns = " | ".join(f"{size:,}" for size in sizes)
    print(f"| milliseconds | p50 at {columns} | p95 | first | grew | answer |")
    print("|---" + "|--:" * (len(sizes) + 4) + "|")
    for rule in sorted(found, key=lambda rule: -found[rule][large].p95):
        times, last = found[rule], found[rule][large]
        cells = [*(times[size].p50 for size in sizes), last.p95, last.first]
        shown = " | ".join(f"{each:.1f}" for each in cells)
        shares = f"{last.p50 / times[small].p50:.2f} | {_answer_share(times, small, large):.2f}"
        print(f"| `{rule}` | {shown} | {shares} |")
    print()


def _growth_line(found: Mapping[str, Mapping[int, Times]], small: int, large: int) -> str:
    """Return how many take over GROWTH times as long at ``large``, of which how many are the same page."""
    grew = [times for times in found.values() if times[large].p50 > GROWTH * times[small].p50]
    same = sum(_answer_share(times, small, large) >= SAME for times in grew)
    return f"median over {GROWTH} times that at {small:,}: {len(grew)}, of which {same} show as much there;\n"


def _answer_share(times: Mapping[int, Times], small: int, large: int) -> float:
    """Return how long the answer at ``small`` is, of that at ``large``."""
    return times[small].length / max(1, times[large].length)


def print_at_once(found: Mapping[str, Sequence[float]], clients: int, size: int) -> None:
    """Print how the pages did with many clients."""
    every = [took for each in found.values() for took in each]
    print(f"### {clients} clients at once over {len(found)} pages, {size:,} runs\n")
    print(f"p50 {median(every):.0f} ms, p95 {bench.p95(every):.0f} ms (wanted: at most {TOGETHER_P95_MS}), ")
    print(f"largest {max(every):.0f} ms.\n")
    print("| milliseconds | p50 | largest |\n|---|--:|--:|")
    for page in sorted(found, key=lambda page: -median(found[page]))[:10]:
        print(f"| `{page}` | {median(found[page]):.0f} | {max(found[page]):.0f} |")
    print()


def main() -> None:
    """Measure and print the tables."""
    parser = ages.options(__doc__ or "")
    parser.add_argument("--requests", type=int, default=40, help="warm requests of each address")
    parser.add_argument("--clients", type=int, default=20, help="clients at once")
    parser.add_argument("--only", default="", help="only addresses that contain this")
    chosen = parser.parse_args()
    with ages.server(chosen.folder, chosen.sizes, newest=NEWEST) as urls, ExitStack() as running:
        log = chosen.folder / "dashboard.log"
        addresses_of = {size: every_address(urls[size]) for size in chosen.sizes}
        addresses_of = {
            size: {r: a for r, a in each.items() if chosen.only in r} for size, each in addresses_of.items()
        }
        open_at = {size: running.enter_context(dashboard(urls[size], log)) for size in chosen.sizes}
        found = in_turns({size: Browser(*at) for size, at in open_at.items()}, addresses_of, chosen.requests)
        searches = {rule: times for rule, times in found.items() if rule.startswith("search ")}
        pages = {rule: times for rule, times in found.items() if rule not in searches}
        print_times(pages, "Pages, fragments and twins, one request at a time", P95_MS)
        if searches:
            print_times(searches, "Searches, of 20,000 runs a request", SEARCH_P95_MS)
        largest = max(chosen.sizes)
        whole = [rule for rule in pages if is_page(rule.partition("?")[0]) and not set("<{") & set(rule)]
        if chosen.clients and whole:
            addressed = [addresses_of[largest][rule][0] for rule in whole]
            together = at_once(*open_at[largest], addressed, chosen.clients, 2 * chosen.requests)
            print_at_once(together, chosen.clients, largest)
        print(bench.machine(urls[largest]))


if __name__ == "__main__":
    main()
