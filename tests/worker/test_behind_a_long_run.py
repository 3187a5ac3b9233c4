"""A quick type's run that goes on for long: what was claimed ahead behind it is given back, at no cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.factories import Connection, row, rows
from tests.processes import wait_until
from tests.worker.motion import a_worker, counts, insert

APP = "tests.worker.apps.waiting"
MANY = """
INSERT INTO wakeboard.job_runs (job_type, max_attempts)
SELECT 'task', CASE WHEN n % 10 = 0 THEN 1 END FROM generate_series(1, 300) AS n
RETURNING id
"""


def many(connection: Connection) -> list[int]:
    """Enqueue 300 quick runs, every tenth with one try."""
    return [run_id for (run_id,) in connection.execute(MANY)]


def a_long_one(connection: Connection, file: Path) -> int:
    """Enqueue a run that goes on until the file is there, before all others."""
    return insert(connection, "task", {"until": str(file)}, priority=0)


def status(connection: Connection, run_id: int) -> str:
    return str(row(connection, run_id)["status"])


@pytest.mark.parametrize("slots", [1, 2])
def test_what_waits_behind_it_runs_elsewhere_or_waits_in_the_table(
    database: str, connection: Connection, tmp_path: Path, slots: int
) -> None:
    end = tmp_path / "end"
    with a_worker(database, ready=connection, APP=APP, CONCURRENCY=slots, LEASE_SECONDS=30) as worker:
        known = many(connection)
        wait_until(lambda: counts(connection, known) == {"succeeded": 300}, 60, "the type is known as quick")
        with connection.transaction():
            long, others = a_long_one(connection, end), many(connection)
        wait_until(lambda: status(connection, long) == "running", 20, "the long one has begun")
        if slots == 1:
            wait_until(lambda: counts(connection, others) == {"queued": 300}, 20, "all came back")
            assert {one["attempts"] for one in rows(connection, "job_runs", "id = ANY(%s)", others)} == {0}
        else:
            wait_until(
                lambda: counts(connection, others) == {"succeeded": 300}, 20, "the other slot runs them"
            )
        assert status(connection, long) == "running"
        end.touch()
        wait_until(lambda: counts(connection, [long, *others]) == {"succeeded": 301}, 60, "all have run")
        assert worker.terminate(20) == 0, worker.output
    assert {one["attempts"] for one in rows(connection, "job_runs", "id = ANY(%s)", others)} == {1}
    assert len(rows(connection, "job_attempts", "run_id = ANY(%s)", others)) == 300
