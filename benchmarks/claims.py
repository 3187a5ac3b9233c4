"""What a claim costs when very many runs stand ahead that may not be claimed, and when many types have work.

    benchmarks/run claims [--ahead 150000] [--claims 200]

Starts a PostgreSQL of its own with default durability. Each line is the worker's own claim of ten runs of a
type that may be claimed, with so many older runs in front: none; of a paused type; of a type at its limit;
of the same type, of a better priority but a later date. Beside it the plain way to write a claim, on an index
on `(run_at)`, which has to walk what stands ahead. Runs are given back outside of the clock. Printed are the
statement's median, 95th percentile and largest value in milliseconds, and the median of its commit.

In the second part 40,000 runs of 1, 20 and 200 types are due, of which a claim asks 64. Each line is the
worker's own claim, as its cursor has it look after the first one, and beside it the claim that locks as it
looks: as many rows of each type as it may take. Printed are the median and the largest value of 30 claims in
milliseconds, how many rows one has locked, and the kilobytes that it has written ahead. Each is rolled back.
"""

from __future__ import annotations

import statistics
from time import perf_counter

import psycopg

from benchmarks import bench
from wakeboard.database.db import PLANNING, configure
from wakeboard.queue.engine.claims import FROM_FIRST, claim
from wakeboard.runtime.loop.channel import array
from wakeboard.runtime.loop.claim_batch import WINDOW
from wakeboard.runtime.loop.claim_cursor import ClaimCursor

OPEN, AHEAD = "open", "ahead"
BATCH = 10
PLAIN = """
UPDATE wakeboard.job_runs AS r
SET status = 'running', lease_epoch = r.lease_epoch + 1, attempts = r.attempts + 1, locked_by = $1,
    locked_until = clock_timestamp() + interval '30 seconds', started_at = clock_timestamp()
WHERE r.id = ANY (ARRAY(
    SELECT c.id FROM wakeboard.job_runs AS c
    WHERE c.status IN ('queued', 'failed') AND c.run_at <= now() AND c.job_type NOT IN (
        SELECT t.name FROM wakeboard.job_types AS t WHERE t.paused_at IS NOT NULL OR t.max_running = 0)
    ORDER BY c.run_at LIMIT 10 FOR UPDATE SKIP LOCKED))
RETURNING r.id, r.lease_epoch
"""
PLAIN_INDEX = "CREATE INDEX by_run_at ON wakeboard.job_runs (run_at) WHERE status IN ('queued', 'failed')"
FREE = "SELECT count(*) FROM (SELECT id FROM wakeboard.job_runs FOR UPDATE SKIP LOCKED) AS free"
SCENES = {
    "nothing ahead": ("queued", "now() - interval '1 day'", 2, "", 0),
    "of a paused type": (AHEAD, "now() - interval '1 day'", 2, "paused_at = now()", 1),
    "of a type at its limit": (AHEAD, "now() - interval '1 day'", 2, "max_running = 0", 1),
    "delayed, of better priority": (OPEN, "now() + interval '1 day'", 0, "", 1),
}


def fill(connection: psycopg.Connection, scene: str, ahead: int) -> None:
    """Make 2,000 due runs of the open type behind ``ahead`` runs that may not be claimed."""
    job_type, run_at, priority, policy, factor = SCENES[scene]
    connection.execute("TRUNCATE wakeboard.job_runs, wakeboard.run_output, wakeboard.job_types")
    connection.execute("INSERT INTO wakeboard.job_types (name) VALUES ('open'), ('ahead')")
    if policy:
        connection.execute(f"UPDATE wakeboard.job_types SET {policy} WHERE name = 'ahead'".encode())
    connection.execute(
        f"INSERT INTO wakeboard.job_runs (job_type, priority, run_at)"
        f" SELECT %s, %s, {run_at} + n * interval '1 ms' FROM generate_series(1, %s) AS n".encode(),
        (job_type, priority, ahead * factor),
    )
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type) SELECT 'open' FROM generate_series(1, 2000)"
    )
    connection.execute("VACUUM ANALYZE wakeboard.job_runs")
    connection.execute("CHECKPOINT")


def measure(
    connection: psycopg.Connection, statement: str, values: tuple[object, ...], claims: int
) -> list[tuple[float, float]]:
    """Return (statement, commit) of each of ``claims`` claims in ms; the runs are given back in between."""
    cursor, times = psycopg.RawCursor(connection), []
    for number in range(claims + 20):
        connection.execute("BEGIN")
        began = perf_counter()
        rows = cursor.execute(statement.encode(), values, prepare=True).fetchall()
        claimed = perf_counter()
        connection.execute("COMMIT")
        committed = perf_counter()
        if len(rows) != BATCH:
            raise SystemExit(f"not a result: {len(rows)} runs were claimed, not {BATCH}")
        if number >= 20:
            times.append(((claimed - began) * 1000, (committed - claimed) * 1000))
        connection.execute(
            "UPDATE wakeboard.job_runs SET status = 'queued', locked_by = NULL, locked_until = NULL"
            " WHERE id = ANY(%s)",
            ([row[0] for row in rows],),
        )
    return times


def print_line(name: str, times: list[tuple[float, float]]) -> None:
    """Print one line of the table."""
    claims = sorted(claim for claim, _ in times)
    median, late, most = statistics.median(claims), claims[int(len(claims) * 0.95)], claims[-1]
    commit = statistics.median(commit for _, commit in times)
    print(f"  {name:9} {median:7.2f} {late:7.2f} {most:7.2f}   commit {commit:5.2f}", flush=True)


def fill_types(connection: psycopg.Connection, count: int) -> list[str]:
    """Make 40,000 due runs of ``count`` types in turns; return the names that a claim asks."""
    connection.execute("TRUNCATE wakeboard.job_runs, wakeboard.run_output, wakeboard.job_types")
    names = [f"type{number:04d}" for number in range(count)]
    connection.execute("INSERT INTO wakeboard.job_types (name) SELECT unnest(%s::text[])", (names,))
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type) SELECT (%s::text[])[1 + n %% %s]"
        " FROM generate_series(1, 40000) AS n",
        (names, count),
    )
    connection.execute("VACUUM ANALYZE wakeboard.job_runs")
    connection.execute("CHECKPOINT")
    return names[:WINDOW]


def number(connection: psycopg.Connection, query: str, *values: object) -> int:
    """Return the one number that a query gives."""
    (found,) = connection.execute(query.encode(), values).fetchone() or (0,)
    return int(found)


def measure_types(
    connection: psycopg.Connection, other: psycopg.Connection, names: list[str], limit: int, ours: bool
) -> tuple[float, float, int, int]:
    """Return the median and the largest time of claims of ``limit`` in ms, rows locked, and kB of WAL."""
    cursor, claim_cursor, times = psycopg.RawCursor(connection), ClaimCursor(), []
    statement = claim(limit, past_locks=not ours)
    locked, written = 0, 0
    for round_ in range(31):
        looked = next(claim_cursor.starts(names, limit)).values if ours else FROM_FIRST
        places = [array(each).decode() for each in looked]
        values = (names, "w1", 30.0, *places)
        connection.execute("BEGIN")
        before = number(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        began = perf_counter()
        rows = cursor.execute(statement.encode(), values, prepare=True).fetchall()
        times.append((perf_counter() - began) * 1000)
        written = number(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn") - before
        if round_ == 30:
            locked = 40_000 - number(other, FREE)
        connection.execute("ROLLBACK")
        if ours and not round_:
            claim_cursor.advance(rows, limit)
        if len(rows) != limit:
            raise SystemExit(f"not a result: {len(rows)} runs were claimed, not {limit}")
    return statistics.median(times[1:]), max(times[1:]), locked, written // 1024


def print_types(connection: psycopg.Connection, other: psycopg.Connection) -> None:
    """Print the table of many types."""
    print("\n| types, claim of | | ms, median | most | rows locked | WAL, kB |\n|---|---|--:|--:|--:|--:|")
    for count in (1, 20, 200):
        names = fill_types(connection, count)
        for limit in (2, 100, 750):
            for way, ours in (("wakeboard", True), ("locks as it looks", False)):
                median, most, locked, written = measure_types(connection, other, names, limit, ours)
                print(
                    f"| {count}, {limit} | {way} | {median:.2f} | {most:.2f} | {locked:,} | {written:,} |",
                    flush=True,
                )


def main() -> None:
    """Run every scene both ways, then the table of many types."""
    chosen = bench.options(__doc__ or "", ahead=150_000, claims=200)
    with (
        bench.server() as (url, _),
        bench.session(url) as ours,
        bench.session(url) as plain,
    ):
        configure(ours, PLANNING)
        print(f"claim of {BATCH}, ms: median, 95 %, most")
        for scene in SCENES:
            fill(ours, scene, chosen.ahead)
            print(f"{chosen.ahead if SCENES[scene][4] else 0:,} runs {scene}")
            values = (["open", "ahead"], "w1", 30.0, *FROM_FIRST)
            print_line("wakeboard", measure(ours, claim(BATCH), values, chosen.claims))
            # Created only now: a planner that sees both indexes may take the wrong one for ours.
            plain.execute(PLAIN_INDEX)
            print_line("plain", measure(plain, PLAIN, ("w1",), chosen.claims))
            plain.execute("DROP INDEX wakeboard.by_run_at")
        print_types(ours, plain)


if __name__ == "__main__":
    main()
