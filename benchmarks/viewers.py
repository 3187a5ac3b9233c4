"""What open dashboards cost that see nothing new, and how soon an operator's action shows on all of them.

    benchmarks/run viewers [--viewers 200] [--seconds 60] [--rounds 3]

Each viewer is a browser of its own (a session, a connection) that follows one of five pages, as the page's
script does; a worker is there and rests. CPU is that of the web processes together; statements are counted in
the server's log, in a time of their own. Then a run is cancelled, retried and so on, and printed is how
long it took until each page that shows it was given something new, the slowest of all viewers.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from benchmarks import bench, programs, statement_log
from benchmarks.browsers import Viewer, all_watch
from tests.support.processes import wait_until
from wakeboard.core.states import Role

# How it comes to rest: pages are opened over this time, and plans and memories are warm after it.
SETTLE_SECONDS = 45.0
PATIENCE_SECONDS = 15.0
# Where a cancelled run shows: in the list of runs and on its own page.
RUN = 1001
SHOWING = ("/runs", f"/runs/{RUN}")
PAGES = (*SHOWING, "/", "/errors", "/schedules")


def fill(url: str) -> None:
    """Make a thousand runs of the past, and then one that waits for tomorrow."""
    with bench.session(url) as connection:
        connection.execute("INSERT INTO wakeboard.job_types (name) VALUES ('mail') ON CONFLICT DO NOTHING")
        connection.execute(
            """INSERT INTO wakeboard.job_runs (job_type, status, attempts, started_at, finished_at, run_at,
                created_at) SELECT 'mail', 'succeeded', 1, at, at, at, at
            FROM (SELECT now() - make_interval(mins => n) AS at FROM generate_series(1, 1000) AS n) AS past"""
        )
        connection.execute(
            "INSERT INTO wakeboard.job_runs (job_type, run_at) VALUES ('mail', now() + interval '1 day')"
        )


class Viewers:
    """So many viewers of a dashboard, in a thread of their own."""

    def __init__(self, url: str, port: int, count: int) -> None:
        with bench.session(url) as connection:
            cookies = [
                programs.session_cookie(connection, f"viewer{n}", Role.OPERATOR) for n in range(count + 1)
            ]
        self.operator = cookies.pop()
        step = SETTLE_SECONDS / 2 / max(1, count)
        self.all = [Viewer(port, PAGES[n % len(PAGES)], cookie, n * step) for n, cookie in enumerate(cookies)]
        self.failure: BaseException | None = None

    @contextmanager
    def watching(self, seconds: float) -> Iterator[None]:
        """Let them watch meanwhile, for ``seconds`` at most. Raises what any of them met."""

        def run() -> None:
            try:
                asyncio.run(all_watch(self.all, seconds))
            except BaseException as failure:
                self.failure = failure

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield
        if self.failure is not None:
            raise self.failure

    @property
    def asked(self) -> int:
        """The number of their requests so far."""
        return sum(viewer.asked for viewer in self.all)

    @property
    def views(self) -> set[str]:
        """The addresses of all live regions that anybody watches."""
        return {region.address for viewer in self.all for region in viewer.regions}

    def news_since(self, moment: float) -> list[float | None]:
        """Return, for each viewer of a page that shows it, the seconds until it was given something new."""
        return [
            min(
                (at - moment for region in viewer.regions for at in region.news_at if at > moment),
                default=None,
            )
            for viewer in self.all
            if viewer.page in SHOWING
        ]


def press_verb(port: int, cookie: str, verb: str) -> None:
    """Cancel or retry the newest run as an operator does."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/runs/{RUN}/{verb}",
        data=b"",
        method="POST",
        headers={"Cookie": cookie, "Accept": "application/json", "Sec-Fetch-Site": "same-origin"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200, answer.status


def slowest_news(viewers: Viewers, port: int, verb: str) -> float:
    """Act, and return the seconds until the last viewer that shows runs was given the change."""
    moment = monotonic()
    press_verb(port, viewers.operator, verb)
    wait_until(lambda: None not in viewers.news_since(moment), PATIENCE_SECONDS, "all see what was done")
    return max(at for at in viewers.news_since(moment) if at is not None)


def measure(url: str, folder: Path, count: int, seconds: int, rounds: int) -> None:
    """Measure and print the tables."""
    with programs.running_dashboard(url, folder / "log") as (port, pid):
        viewers = Viewers(url, port, count)
        length = SETTLE_SECONDS + 2 * seconds + rounds * (PATIENCE_SECONDS + 5)
        with viewers.watching(length):
            sleep(SETTLE_SECONDS)
            cpu, began = bench.cpu_seconds(programs.family(pid)), viewers.asked
            sleep(seconds)
            used = bench.cpu_seconds(programs.family(pid)) - cpu
            polls = (viewers.asked - began) / seconds
            bench.say(f"{100 * used / seconds:.1f} % of a core for {polls:.0f} polls/s")
            rates = statement_log.statement_rates(folder, min(20, seconds))
            shown = []
            for number in range(rounds):
                shown.append(slowest_news(viewers, port, ("cancel", "retry")[number % 2]))
                bench.say(f"round {number + 1}: shown to all after {shown[-1]:.2f} s")
                sleep(3)
    web = [found for name, found in rates.items() if name == "wakeboard web"]
    print(f"### {count} viewers of {len(PAGES)} pages that see nothing new, {seconds} s\n")
    print("| | | target |\n|---|--:|--:|")
    print(f"| CPU of the web processes, % of a core | {100 * used / seconds:.1f} | 30 |")
    print(f"| polls/s | {polls:.0f} | |")
    print(f"| statements/s of pages (without BEGIN and the like) | {sum(found[1] for found in web):.1f} | |")
    print(f"| of these per live region, of which the pages have {len(viewers.views)} | "
          f"{sum(found[1] for found in web) / len(viewers.views):.2f} | 3 |")  # fmt: skip
    print(f"| of these per page | {sum(found[1] for found in web) / len(PAGES):.1f} | |")
    print(f"| polls refused | {sum(viewer.refused for viewer in viewers.all)} | 0 |")
    print(
        f"| an operator's action shows for everybody, s | {statistics.median(shown):.2f} "
        f"({min(shown):.2f} to {max(shown):.2f}) | 4 |\n"
    )


def main() -> None:
    """Measure with a resting worker beside it, and print."""
    chosen = bench.options(__doc__ or "", viewers=200, seconds=60, rounds=3)
    with bench.server() as (url, folder):
        fill(url)
        with programs.running_wakeboard(["worker", "--app", "noop_app"], url, folder / "log"):
            measure(url, folder, chosen.viewers, chosen.seconds, chosen.rounds)
        print(f"{bench.machine(url)}\n")


if __name__ == "__main__":
    main()
