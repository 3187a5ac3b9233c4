"""Types with a limit at full pace: the limit, several workers, deaths, other work beside them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.factories import Connection
from tests.support.postgres.write_refusals import refuse
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import (
    REAPED_WITHIN,
    a_worker,
    counts,
    insert_many,
    most_at_once,
    truth,
    wait_until_all,
    wait_until_idle,
)
from wakeboard.database.db import connect

# How many of a type's attempts overlapped at most, by the times that their history tells.
OVERLAPPING = """
SELECT max(running)::int FROM (
    SELECT sum(step) OVER (ORDER BY at, step) AS running FROM (
        SELECT started_at AS at, 1 AS step FROM wakeboard.job_attempts WHERE job_type = %(name)s
        UNION ALL
        SELECT finished_at, -1 FROM wakeboard.job_attempts WHERE job_type = %(name)s
    ) AS steps
) AS summed
"""


def shares(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Return how many attempts of the runs each worker had, most first."""
    found = connection.execute(
        "SELECT count(*)::int FROM wakeboard.job_attempts WHERE run_id = ANY(%s) GROUP BY worker_id",
        (list(ids),),
    ).fetchall()
    return sorted((count for (count,) in found), reverse=True)


def cancel_what_waits(connection: Connection) -> None:
    connection.execute(
        "UPDATE wakeboard.job_runs SET status = 'cancelled', finished_at = now() WHERE status = 'queued'"
    )


@contextmanager
def sampled(database: str, job_type: str) -> Iterator[list[int]]:
    """Count again and again, meanwhile, how many runs of a type are running."""
    seen: list[int] = []
    is_over = threading.Event()
    question = "SELECT count(*)::int FROM wakeboard.job_runs WHERE status = 'running' AND job_type = %s"

    def sample() -> None:
        with connect(database, name="wakeboard test") as own:
            while not is_over.is_set():
                seen.extend(count for (count,) in own.execute(question, (job_type,)))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def test_two_workers_at_full_pace_never_pass_a_limit(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with (
        a_worker(database, TRUTH=record, CONCURRENCY=4) as first,
        a_worker(database, TRUTH=record, CONCURRENCY=4) as second,
        sampled(database, "four_at_a_time") as seen,
    ):
        for worker in (first, second):
            wait_until_idle(connection, worker)
        ids = insert_many(connection, "four_at_a_time", 1_500, {"seconds": 0})
        wait_until_all(connection, ids, "succeeded", 60)
    assert len(seen) > 100
    assert max(seen) == 4
    assert most_at_once(truth(record)) <= 4
    overlapping = connection.execute(OVERLAPPING, {"name": "four_at_a_time"}).fetchone()
    assert overlapping is not None and overlapping[0] <= 4
    assert sum(shares(connection, ids)) == len(ids)


def test_who_has_all_the_room_leaves_it_to_an_idle_worker_now_and_then(
    database: str, connection: Connection
) -> None:
    with (
        a_worker(database, POLL_SECONDS=30, CONCURRENCY=4) as first,
        a_worker(database, POLL_SECONDS=30, CONCURRENCY=4) as second,
    ):
        for worker in (first, second):
            wait_until_idle(connection, worker)
        ids = insert_many(connection, "four_at_a_time", 5_000, {"seconds": 0.02})

        def both_had_many() -> bool:
            found = shares(connection, ids)
            return len(found) == 2 and found[-1] >= 200

        wait_until(both_had_many, 20, f"both have had many; they had {shares(connection, ids)}")
        cancel_what_waits(connection)


def test_beside_a_type_with_a_limit_other_types_go_on_and_it_beside_them(
    database: str, connection: Connection
) -> None:
    with a_worker(database, ready=connection):
        limited = insert_many(connection, "four_at_a_time", 20_000, {"seconds": 0})
        slow = insert_many(connection, "patient", 20, {"seconds": 0.05})
        wait_until_all(connection, slow, "succeeded", 20)
        quick = insert_many(connection, "quick", 300)
        wait_until_all(connection, quick, "succeeded", 20)
        found = counts(connection, limited)
        assert found["succeeded"] >= 100
        assert found["queued"] > 0, "the backlog must still be there"
        cancel_what_waits(connection)


def test_of_a_killed_worker_no_more_runs_are_lost_than_the_limit_allows(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    record = tmp_path / "truth"
    with a_worker(database, TRUTH=record, CONCURRENCY=4) as first:
        ids = insert_many(connection, "four_at_a_time", 3_000, {"seconds": 0})
        wait_until(lambda: counts(connection, ids).get("succeeded", 0) > 300, 20, "it is at full pace")
        first.kill()
    with a_worker(database, TRUTH=record, CONCURRENCY=4):
        wait_until_all(connection, ids, "succeeded", REAPED_WITHIN + 40)
    lost = connection.execute(
        "SELECT count(*)::int FROM wakeboard.job_attempts WHERE outcome = 'lost'"
    ).fetchone()
    assert lost is not None and lost[0] <= 4
    starts = [line for line in truth(record) if line.word == "start"]
    assert len(ids) <= len(starts) <= len(ids) + lost[0]


def test_ends_that_the_database_refuses_stop_nobody(database: str, connection: Connection) -> None:
    with a_worker(database, ready=connection):
        refuse(connection, "new.payload ? 'bad' AND new.status = 'succeeded'", "no good end for this one")
        good = insert_many(connection, "four_at_a_time", 100, {"seconds": 0})
        bad = insert_many(connection, "four_at_a_time", 3, {"seconds": 0, "bad": 1})
        more = insert_many(connection, "four_at_a_time", 100, {"seconds": 0})
        wait_until_all(connection, [*good, *more], "succeeded", 30)
        wait_until_all(connection, bad, "dead", 30)
