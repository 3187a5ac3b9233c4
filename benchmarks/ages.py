"""One installation at several ages, in databases that are kept between benchmarks.

    python -m benchmarks.ages [--folder /var/tmp/wakeboard-ages] [--sizes 10000,100000,1000000,10000000]

It has 111,111 runs a day: a hundred thousand were over after nearly a day, a million after nine days, ten
million after ninety. The smallest has ten thousand in a whole day, the longest that pages look back at by
themselves: so it has a night and all else that they show. One server holds an empty database and one for each
of these ages, called by the number of runs that were over. A tenth of them died after ten attempts, a tenth
succeeded with the second, so there are twice as many attempts; the newest come up to the moment in which the
database was filled. At every age 50,000 more wait, which came in the last ten minutes, and there are 60 job
types of very unequal shares, 500 schedules, errors of 30 codes in groups, workers, effects, missed fires, an
audit log; and the statistics of all that ended in the days for which statistics are kept. So a page shows the
same at each age, as far as it was there already, and what it takes more is for what was before. Ten million
runs take about five minutes and 15 GB; filling is done without fsync, measuring at default durability.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
from psycopg import sql

from benchmarks import bench, history
from wakeboard.database import embedded
from wakeboard.database.migrations import migrate
from wakeboard.reporting import hourly_rollups

FOLDER = Path("/var/tmp/wakeboard-ages")
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
EMPTY = 0
SECONDS_PER_RUN, WAITING = 90 * 86_400 / max(SIZES), 50_000
YOUNGEST_SECONDS = 86_400
FILLING = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "8GB", "autovacuum": "off"}

# The living workers of the data stay alive for the benchmark.
_AWAKE = (
    "UPDATE wakeboard.workers SET seen_at = now() + interval '12 hours' WHERE stopped_at IS NULL",
    """UPDATE wakeboard.job_runs SET locked_until = now() + interval '12 hours'
    WHERE status = 'running' AND locked_by LIKE 'worker-%'""",
    # A pass of retention has just ended.
    """INSERT INTO wakeboard.loops (process_id, name, interval_seconds, last_success_at, numbers)
    VALUES ('all workers', 'retention pass', 3600, now() + interval '12 hours', '{}')
    ON CONFLICT (process_id, name)
    DO UPDATE SET last_success_at = excluded.last_success_at, numbers = '{}'""",
)


def name_of(size: int) -> str:
    """Return the name of the database of so many runs."""
    return f"aged_{size}"


def age_seconds(size: int) -> float:
    """Return how old an installation is when so many runs are over."""
    return max(YOUNGEST_SECONDS, size * SECONDS_PER_RUN)


@contextmanager
def server(
    folder: Path,
    sizes: Sequence[int],
    settings: Mapping[str, str] | None = None,
    newest: timedelta | None = None,
) -> Iterator[dict[int, str]]:
    """Run the server of ``folder`` at default durability; yield the URL of each size, filled, and of EMPTY.

    ``settings`` are PostgreSQL settings instead of the default ones. What was filled longer ago than
    ``newest`` is filled anew: where nothing has run for hours, windows that end now show nothing.
    """
    folder.mkdir(mode=0o711, exist_ok=True)
    embedded.start(folder, settings=settings)
    try:
        if missing := [size for size in (EMPTY, *sizes) if not _is_there(folder, size, newest)]:
            # The smallest last, for it is the soonest filled: so all are of nearly the same moment.
            _prepare(folder, sorted(missing, reverse=True))
            embedded.start(folder, settings=settings)
        urls = {size: embedded.url(folder, database=name_of(size)) for size in (EMPTY, *sizes)}
        for url in urls.values():
            migrate(url)
            with bench.session(url) as connection:
                keep_awake(connection)
                sum_hours(connection)
                # Now, and by no autovacuum beside the benchmark.
                connection.execute("VACUUM (ANALYZE)")
        yield urls
    finally:
        embedded.stop(folder, only_if_unused=False)


def _prepare(folder: Path, sizes: Sequence[int]) -> None:
    """Fill databases of these sizes; the server is stopped before and afterwards."""
    embedded.stop(folder, only_if_unused=False)
    embedded.start(folder, settings=FILLING)
    try:
        for size in sizes:
            _make(folder, size)
    finally:
        embedded.stop(folder, only_if_unused=False)
        os.sync()


def _is_there(folder: Path, size: int, newest: timedelta | None) -> bool:
    """Return whether the database of a size is there, and not filled longer ago than ``newest``."""
    query = "SELECT 1 FROM pg_database WHERE datname = %s"
    with psycopg.connect(embedded.url(folder)) as connection:
        if connection.execute(query, (name_of(size),)).fetchone() is None:
            return False
    if size == EMPTY or newest is None:
        return True
    with psycopg.connect(embedded.url(folder, database=name_of(size))) as connection:
        query = "SELECT created_at > now() - %s FROM wakeboard.job_runs ORDER BY id DESC LIMIT 1"
        row = connection.execute(query, (newest,)).fetchone()
    return row is not None and bool(row[0])


def _make(folder: Path, size: int) -> None:
    """Fill a database of ``size`` runs under another name, and give it its own when it is whole."""
    name = sql.Identifier(name_of(size))
    admin = psycopg.connect(embedded.url(folder, user="postgres", database="postgres"), autocommit=True)
    with admin:
        # The old one first: two of the largest may be too much for a disk.
        for each in (name, sql.Identifier("filling")):
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(each))
        admin.execute("CREATE DATABASE filling OWNER wakeboard TEMPLATE template0")
        url = embedded.url(folder, database="filling")
        migrate(url)
        with bench.session(url) as connection:
            connection.execute("SET statement_timeout = 0")
            history.fill(connection, size, seconds=age_seconds(size), waiting=WAITING)
        admin.execute(sql.SQL("ALTER DATABASE filling RENAME TO {}").format(name))


def keep_awake(connection: psycopg.Connection) -> None:
    """Keep the living workers of the data alive for half a day."""
    for statement in _AWAKE:
        connection.execute(statement)


def sum_hours(connection: psycopg.Connection) -> None:
    """Sum the hours of statistics that are over, as workers would have done all along."""
    while hourly_rollups.sum_next_hour(connection) is not None:
        pass


def main() -> None:
    """Fill what is missing, and say how large it is."""
    chosen = options(__doc__ or "").parse_args()
    with server(chosen.folder, chosen.sizes) as urls:
        for size, url in urls.items():
            with bench.session(url) as connection:
                row = connection.execute("SELECT pg_size_pretty(pg_database_size(current_database()))")
                print(f"{size:12,} runs: {(row.fetchone() or ('?',))[0]}")


def options(text: str) -> argparse.ArgumentParser:
    """Return a parser that knows the folder and the sizes."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the databases are kept")
    parser.add_argument(
        "--sizes",
        type=lambda given: tuple(int(each) for each in given.split(",")),
        default=SIZES,
        help="numbers of runs, joined by commas",
    )
    return parser


if __name__ == "__main__":
    main()
