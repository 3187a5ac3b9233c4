"""What a claim and a finish cost beside ten million finished runs, an old snapshot, and retention.

    benchmarks/run growth [--sizes 10000,…,10000000] [--runs 60000] [--rounds 7] [--abreast 11]
        [--churn 1000000] [--held 300] [--floor 16] [--pairs 8] [--folder FOLDER]

Databases of ``benchmarks.ages`` stand side by side in one server: an empty one and one of each size,
taking turns; of each size 50,000 other runs wait. In each, no-op runs are added and drained by the worker's
own statements in batches of 100 on one connection, and by one real worker (``wakeboard tick``, default
settings but for keeping everything). The CPU time that the server's process had for the statements is printed
as well: other work on the machine hardly changes it. What a turn wrote is removed before the next one. The
added rows are as large as the largest of the past: smaller ones would fill what is left of its pages, one
here and one there, as no steady load does.

Turns are seconds apart, in which a shared machine may become another one. So the largest and the empty one
are then drained at the same time, ``--abreast`` times: what slows one slows the other.

Then, in a copy of the largest: a transaction holds a snapshot open for so many seconds, while the statements
drain so many runs (or as many as they get through); then it ends, and they go on. Beside each turn there is
one in the empty database, which no snapshot holds. Then the indexes duty makes its pass over indexes of
``--floor`` MB or more, and each is built once more for its fresh size. At last the retention duty removes
what has expired there, switched on and off in turns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import psycopg
from psycopg import sql

from benchmarks import ages, bench, drains, retention
from benchmarks.drains import Way
from wakeboard.database import embedded
from wakeboard.maintenance.indexes import rebuild
from wakeboard.maintenance.indexes.state import RebuildPass
from wakeboard.maintenance.retention import state
from wakeboard.maintenance.retention.sweep import RUNS

COPY = "grown_copy"
AFTER_SECONDS = 75
KEEP_EVERYTHING = {"WAKEBOARD_KEEP_SUCCEEDED_DAYS": "0", "WAKEBOARD_KEEP_DEAD_DAYS": "0"}
WAYS: Mapping[str, Way] = {
    "raw SQL in batches of 100": drains.raw_command,
    "one worker": drains.worker_command,
}
_INDEXES = """
SELECT indexrelid::regclass::text, pg_relation_size(indexrelid) / 1048576.0 FROM pg_index
WHERE indrelid IN ('wakeboard.job_runs'::regclass, 'wakeboard.job_attempts'::regclass)
"""


def by_size(urls: dict[int, str], log: Path, runs: int, rounds: int) -> None:
    """Measure each size in turns, and print the tables."""
    last: dict[int, int] = {}
    server: dict[str, list[float]] = {size_label(size): [] for size in urls}
    for size, url in urls.items():
        with bench.session(url) as connection:
            last[size] = drains.last_run(connection)

    def case(size: int, way: Way) -> Callable[[], float]:
        def measure() -> float:
            drains.remove_runs(urls[size], last[size])
            drained = drains.drain(urls[size], log, runs, way)
            if way is drains.raw_command:
                server[size_label(size)].append(float(drained.output) * 1e6 / runs)
            return drained.rate

        return measure

    for title, way in WAYS.items():
        cases = {size_label(size): case(size, way) for size in urls}
        found = bench.take_turns(rounds, cases, "runs/s")
        print(
            bench.table(f"Claim and finish, {title}", found, "runs/s", beside=size_label(ages.EMPTY)),
            flush=True,
        )
    title = "CPU of the server's session, claim and finish by statements"
    print(bench.table(title, server, "µs a run", beside=size_label(ages.EMPTY)), flush=True)
    for size, url in urls.items():
        drains.remove_runs(url, last[size])


def drain_beside_empty(urls: Mapping[int, str], size: int, log: Path, runs: int, rounds: int) -> None:
    """Drain a size and the empty one at the same time, and print the rate of each."""
    both = urls[size], urls[ages.EMPTY]
    with bench.session(urls[size]) as connection:
        last = drains.last_run(connection)

    def measure(way: Way) -> list[float]:
        drains.remove_runs(urls[size], last)
        drains.remove_runs(urls[ages.EMPTY], 0)
        return drains.drain_side_by_side(both, log, runs, way)

    for title, way in WAYS.items():
        pairs = []
        for number in range(rounds):
            pairs.append(measure(way))
            bench.say(f"round {number + 1}: {title} beside the empty one {pairs[-1][0] / pairs[-1][1]:.2f}")
        here, beside = zip(*pairs, strict=True)
        found = {size_label(ages.EMPTY): beside, size_label(size): here}
        print(
            bench.table(f"At the same time, {title}", found, "runs/s", beside=size_label(ages.EMPTY)),
            flush=True,
        )
    drains.remove_runs(urls[size], last)


def size_label(size: int) -> str:
    """Return what a table calls a size."""
    return f"{size:,} finished runs" if size else "empty"


@contextmanager
def snapshot(url: str) -> Iterator[None]:
    """Hold a snapshot of the database open meanwhile."""
    with bench.session(url) as connection:
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1 FROM wakeboard.job_runs LIMIT 1")
        yield
        connection.execute("ROLLBACK")


def indexes(url: str) -> dict[str, float]:
    """Return the size of each index of runs and attempts, in MB."""
    with bench.session(url) as connection:
        return {name.removeprefix("wakeboard."): float(size) for name, size in connection.execute(_INDEXES)}


def index_pass(url: str, floor_mb: int) -> float:
    """Let the indexes duty make its pass; return its seconds."""
    began = monotonic()
    with rebuild.open_connection(url) as connection:
        current, floor_bytes = RebuildPass(), floor_mb * 1024**2
        rebuild.make_pass(connection, current, pause=threading.Event().wait, floor_bytes=floor_bytes)
    for reason in (current.waits, current.failed, current.missing_privilege):
        if reason:
            bench.say(f"the pass left something: {reason}")
    return monotonic() - began


def rebuild_indexes(
    url: str, names: Sequence[str], floor_mb: int
) -> tuple[float, Mapping[str, float], Mapping[str, float]]:
    """Let the duty make its pass; return its seconds, the sizes then, and those of fresh ``names``, in MB."""
    seconds = index_pass(url, floor_mb)
    then = indexes(url)
    with bench.session(url) as connection:
        for name in names:
            connection.execute(sql.SQL("REINDEX INDEX wakeboard.{}").format(sql.Identifier(name)))
    return seconds, then, indexes(url)


def churn_under_snapshot(
    urls: dict[int, str], size: int, log: Path, runs: int, churn: int, held: int, floor_mb: int
) -> None:
    """Churn under a held snapshot and after it, beside the empty database, and print how it went."""
    pairs: list[tuple[float, float, float]] = []
    began = monotonic()

    def turn() -> None:
        here = drains.drain(urls[size], log, runs, drains.raw_command).rate
        drains.remove_runs(urls[ages.EMPTY], 0)
        beside = drains.drain(urls[ages.EMPTY], log, runs, drains.raw_command).rate
        pairs.append((monotonic() - began, here, beside))
        bench.say(f"{pairs[-1][0]:5.0f} s: {here:9,.0f} runs/s, empty {beside:9,.0f}")

    for _ in range(3):
        turn()
    before, fresh = len(pairs), indexes(urls[size])
    with snapshot(urls[size]):
        since = monotonic()
        while monotonic() - since < held and (len(pairs) - before) * runs < churn:
            turn()
        during = len(pairs)
        sleep(max(0.0, held - (monotonic() - since)))
    ended = monotonic() - began
    while monotonic() - began < ended + AFTER_SECONDS:
        turn()
    parts = {"before": pairs[:before], "held": pairs[before:during], "first minute after": pairs[during:]}
    drained = f"{(during - before) * runs:,}"
    print(f"### {drained} runs drained while a snapshot is held for {held} s, {size_label(size)}\n")
    print("| runs/s | median | first | last | of the empty table, median | smallest | first | last |")
    print("|---" + "|--:" * 7 + "|")
    for name, part in parts.items():
        cells = [median(here for _, here, _ in part), part[0][1], part[-1][1]]
        of_empty = [here / beside for _, here, beside in part]
        shares = [median(of_empty), min(of_empty), of_empty[0], of_empty[-1]]
        print(f"| {name} | " + " | ".join(f"{each:,.0f}" for each in cells)
              + " | " + " | ".join(f"{each:.2f}" for each in shares) + " |")  # fmt: skip
    grew = {name: (fresh[name], now) for name, now in indexes(urls[size]).items() if fresh[name] >= 0.1}
    most = dict(sorted(grew.items(), key=lambda one: -one[1][1] / one[1][0])[:6])
    seconds, after, ideal = rebuild_indexes(urls[size], list(most), floor_mb)
    print(
        "\n| MB of an index | before | after | times | rebuilt | of a fresh one |\n|---|--:|--:|--:|--:|--:|"
    )
    for name, (then, now) in most.items():
        print(f"| {name} | {then:,.1f} | {now:,.1f} | {now / then:.2f} | {after[name]:,.1f} "
              f"| {after[name] / ideal[name]:.2f} |")  # fmt: skip
    print(
        f"\nThe pass of the indexes duty (those of {floor_mb} MB or more) took {seconds:.1f} s.\n", flush=True
    )


def drain_beside_retention(url: str, log: Path, runs: int, pairs: int) -> None:
    """Drain in turns with and without the retention duty at work, and print what it costs."""
    with bench.session(url) as connection:
        state.create(connection)
        state.store(connection, state.RetentionPass(owner=retention.OWNER, phase=RUNS))
        sweeper = retention.Sweeper(url)

        def measured(is_on: bool) -> float:
            retention.take_pass(connection)
            (sweeper.is_on.set if is_on else sweeper.is_on.clear)()
            return drains.drain(url, log, runs, drains.raw_command).rate

        began = monotonic()
        cases = {"without": lambda: measured(False), "while it removes": lambda: measured(True)}
        found = bench.take_turns(pairs, cases, "runs/s")
        sweeper.end()
        removed = sweeper.removed / (monotonic() - began)
        print(bench.table("Claim and finish beside retention", found, "runs/s", beside="without"))
        print(f"{sweeper.removed:,} runs were removed meanwhile, {removed:,.0f} a second over all turns.\n")


@contextmanager
def copy_of(folder: Path, size: int) -> Iterator[str]:
    """Yield the URL of a copy of a size's database, which goes at the end."""
    names = [sql.Identifier(name) for name in (COPY, ages.name_of(size))]
    admin = psycopg.connect(embedded.url(folder, user="postgres", database="postgres"), autocommit=True)
    with admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(names[0]))
        bench.say(f"copying {ages.name_of(size)}")
        statement = "CREATE DATABASE {} OWNER wakeboard TEMPLATE {} STRATEGY file_copy"
        admin.execute(sql.SQL(statement).format(*names))
        try:
            yield embedded.url(folder, database=COPY)
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(names[0]))


def main() -> None:
    """Measure and print the tables."""
    parser = ages.options(__doc__ or "")
    defaults = {
        "runs": 60_000,
        "rounds": 7,
        "abreast": 11,
        "churn": 1_000_000,
        "held": 300,
        "floor": 16,
        "pairs": 8,
    }
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value:,}")
    chosen = parser.parse_args()
    os.environ.update(KEEP_EVERYTHING)
    log = chosen.folder / "growth.log"
    with ages.server(chosen.folder, chosen.sizes) as urls:
        if chosen.rounds:
            by_size(urls, log, chosen.runs, chosen.rounds)
        if chosen.abreast:
            drain_beside_empty(urls, max(chosen.sizes), log, chosen.runs, chosen.abreast)
        if chosen.churn or chosen.pairs:
            largest = max(chosen.sizes)
            with copy_of(chosen.folder, largest) as copy:
                both = {ages.EMPTY: urls[ages.EMPTY], largest: copy}
                if chosen.churn:
                    churn_under_snapshot(
                        both, largest, log, chosen.runs, chosen.churn, chosen.held, chosen.floor
                    )
                if chosen.pairs:
                    drain_beside_retention(copy, log, chosen.runs, chosen.pairs)
        print(f"{bench.machine(urls[ages.EMPTY])}\n")


if __name__ == "__main__":
    main()
