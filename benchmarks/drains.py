"""No-op runs that are added to a database with a past, and drained: there alone, or beside another one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psycopg

from benchmarks import bench
from benchmarks import raw as statements

# What drains the database of a URL: the words of a command.
Way = Callable[[str], list[str]]
_DONE = """
SELECT count(*) FILTER (WHERE status = 'succeeded' AND attempts = 1),
    extract(epoch FROM max(updated_at) - (
        SELECT min(started_at) FROM wakeboard.job_attempts WHERE run_id > %(last)s))::float8
FROM wakeboard.job_runs WHERE id > %(last)s
"""
_FINISHES = """
SELECT extract(epoch FROM min(started_at))::float8,
    array_agg(extract(epoch FROM finished_at)::float8 ORDER BY finished_at)
FROM wakeboard.job_attempts WHERE run_id > %s
"""


class DrainResult(NamedTuple):
    """Runs per second by the rows, and the output of the command."""

    rate: float
    output: str


def raw_command(url: str) -> list[str]:
    """Return the command that drains by statements alone."""
    return statements.command(url)


def worker_command(url: str) -> list[str]:
    """Return the command of a real worker with default settings."""
    return [
        "env",
        f"WAKEBOARD_DATABASE_URL={url}",
        sys.executable,
        "-m",
        "wakeboard",
        "tick",
        "--app",
        "noop_app",
    ]


def last_run(connection: psycopg.Connection) -> int:
    """Return the highest id of a run."""
    row = connection.execute("SELECT coalesce(max(id), 0) FROM wakeboard.job_runs").fetchone()
    return int(row[0]) if row else 0


def add_runs(connection: psycopg.Connection, runs: int) -> int:
    """Add ``runs`` no-op runs that are due; return the highest id before them."""
    last = last_run(connection)
    connection.execute("INSERT INTO wakeboard.job_types (name) VALUES ('noop') ON CONFLICT DO NOTHING")
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type, payload)"
        " SELECT 'noop', jsonb_build_object('n', n, 'text', repeat('x', 250))"
        " FROM generate_series(1, %s) AS n",
        (runs,),
    )
    connection.execute("ANALYZE wakeboard.job_runs")
    connection.execute("CHECKPOINT")
    return last


def rate(connection: psycopg.Connection, last: int, runs: int) -> float:
    """Return runs per second of those after ``last``. Raises SystemExit unless all ``runs`` ended well."""
    done, seconds = connection.execute(_DONE, {"last": last}).fetchone() or (0, 1.0)
    if done != runs:
        raise SystemExit(f"not a result: {done} of {runs} succeeded")
    return runs / float(seconds)


def drain(url: str, log: Path, runs: int, way: Way) -> DrainResult:
    """Add ``runs`` no-op runs, and let the command of ``way`` drain them."""
    with bench.session(url) as connection:
        last = add_runs(connection, runs)
        (output,) = bench.run_together([way(url)], url, log)
        return DrainResult(rate(connection, last, runs), output)


def drain_side_by_side(urls: Sequence[str], log: Path, runs: int, way: Way) -> list[float]:
    """Drain ``runs`` of each database at the same time; return the runs per second of each.

    What the machine does to one it does to the other. Counted is what finished while all were at work: from
    the last first start to the first last finish.
    """
    lasts = []
    for url in urls:
        with bench.session(url) as connection:
            lasts.append(add_runs(connection, runs))
    bench.run_together([way(url) for url in urls], urls[0], log)
    began, finishes = [], []
    for url, last in zip(urls, lasts, strict=True):
        with bench.session(url) as connection:
            rate(connection, last, runs)
            first, moments = connection.execute(_FINISHES, (last,)).fetchone() or (0.0, [])
            began.append(first)
            finishes.append(moments)
    since, until = max(began), min(moments[-1] for moments in finishes)
    return [sum(since <= one <= until for one in moments) / (until - since) for moments in finishes]


def remove_runs(url: str, last: int) -> None:
    """Remove the runs after ``last``, and what vacuum has to remove."""
    with bench.session(url) as connection:
        connection.execute("DELETE FROM wakeboard.job_attempts WHERE run_id > %s", (last,))
        connection.execute("DELETE FROM wakeboard.job_runs WHERE id > %s", (last,))
        connection.execute("TRUNCATE wakeboard.statistics_deltas")
        connection.execute("VACUUM (ANALYZE) wakeboard.job_runs")
        connection.execute("VACUUM (ANALYZE) wakeboard.job_attempts")
