"""A quick type's run that goes on for long: what was claimed ahead behind it is given back, at no cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import factories
from tests.support.factories import Connection, row, rows
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import a_worker, counts, insert

APP = "tests.support.workers.apps.waiting"
MANY = """
INSERT INTO wakeboard.job_runs (job_type) SELECT 'task' FROM generate_series(1, 300) RETURNING id
"""


def many(connection: Connection) -> list[int]:
    """Enqueue 300 quick runs."""
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
            wait_until(lambda: "it had not begun" in worker.output, 20, "some were ahead")
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


def test_when_a_type_turns_out_to_be_slow_what_was_claimed_ahead_of_it_is_given_back(
    database: str, connection: Connection
) -> None:
    with a_worker(database, ready=connection, APP=APP, CONCURRENCY=1, LEASE_SECONDS=30) as worker:
        known = many(connection)
        wait_until(lambda: counts(connection, known) == {"succeeded": 300}, 60, "the type is known as quick")
        with connection.transaction():
            slow = [insert(connection, "task", {"seconds": 0.15}) for _ in range(40)]
        wait_until(lambda: counts(connection, slow) == {"succeeded": 40}, 60, "all have run")
        assert worker.terminate(20) == 0, worker.output
        assert 25 <= worker.output.count("it had not begun") <= 60, "all but the first few, once"
    assert {one["attempts"] for one in rows(connection, "job_runs", "id = ANY(%s)", slow)} == {1}


def test_a_type_with_one_try_gets_its_turn_beside_a_backlog_of_quick_runs(
    database: str, connection: Connection
) -> None:
    factories.a_type(connection, "task")
    many_quick = [run_id for _ in range(20) for run_id in many(connection)]
    once = [insert(connection, "once", priority=0) for _ in range(20)]
    with a_worker(database, APP=APP, CONCURRENCY=2, LEASE_SECONDS=30) as worker:
        wait_until(lambda: counts(connection, once + many_quick) == {"succeeded": 6020}, 60, "all have run")
        told = [line for line in worker.output.splitlines() if "type=once" in line]
        assert not [line for line in told if "it had not begun" in line]
        assert worker.terminate(20) == 0, worker.output
    assert {one["attempts"] for one in rows(connection, "job_runs", "id = ANY(%s)", once)} == {1}
