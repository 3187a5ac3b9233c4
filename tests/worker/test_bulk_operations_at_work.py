"""Operations and real workers: the pace, the canary, a worker that is killed, two that share the work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.conftest import Connection
from tests.support.factories import rows
from tests.support.processes import run_wakeboard, wait_until
from tests.support.workers.bulk_operations import ANNA, begin, operation
from tests.support.workers.worker_processes import a_worker
from wakeboard.bulk import control

ENDED = ("finished", "stopped", "aborted")


def dead(connection: Connection, count: int, job_type: str = "quick") -> list[int]:
    """Insert ``count`` dead runs; return their ids."""
    found = connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, attempts, failures, lease_epoch, started_at,
            finished_at, failed_at, error_code, max_attempts)
        SELECT %s, 'dead', 1, 1, 1, now(), now(), now(), 'smtp_down', 1 FROM generate_series(1, %s)
        RETURNING id""",
        (job_type, count),
    ).fetchall()
    return [each[0] for each in found]


def wait_for_end(connection: Connection, number: int, seconds: float = 90) -> str:
    """Wait until the operation has ended; return how."""
    wait_until(lambda: operation(connection, number)["status"] in ENDED, seconds, "the operation ends")
    return str(operation(connection, number)["status"])


def times_moved(connection: Connection) -> Counter[str]:
    """Return how often each run was moved, as the audit log has it."""
    return Counter(each["target_id"] for each in rows(connection, "audit_log", "action = 'run.retry'"))


def test_a_pace_is_kept_by_the_databases_clock(database: str, connection: Connection) -> None:
    dead(connection, 9)
    with a_worker(database, ready=connection):
        number = begin(connection, "retry", per_minute=120)
        assert wait_for_end(connection, number) == "finished"
    moments = [each["at"] for each in rows(connection, "audit_log", "action = 'run.retry'", order="id")]
    took = (moments[-1] - moments[0]).total_seconds()
    # Nine at two a second are four seconds; what a look was late may be made up for two of them.
    assert len(moments) == 9 and 1.9 <= took <= 60


def test_a_canary_that_fails_at_work_stops_it_before_the_second_run(
    database: str, connection: Connection
) -> None:
    runs = dead(connection, 5, "stubborn_failure")
    with a_worker(database, ready=connection):
        number = begin(connection, "retry", canary=True)
        assert wait_for_end(connection, number) == "stopped"
    found = operation(connection, number)
    assert (found["done"], found["canary_run_id"], found["canary_outcome"]) == (1, runs[0], "failed")
    assert set(times_moved(connection)) == {str(runs[0])}


def test_many_failures_at_work_stop_it(database: str, connection: Connection) -> None:
    dead(connection, 60, "stubborn_failure")
    with a_worker(database, ready=connection):
        number = begin(connection, "retry", per_minute=300, stop_above_percent=10)
        assert wait_for_end(connection, number) == "stopped"
    found = operation(connection, number)
    assert 5 <= found["done"] < 60 and found["failed"] >= 5
    assert "failed again: 100 %, more than 10 %" in found["note"]


def test_a_killed_worker_moves_no_run_twice_and_leaves_none_out(
    database: str, connection: Connection
) -> None:
    runs = dead(connection, 700)
    number = begin(connection, "retry")
    with a_worker(database) as worker:
        wait_until(lambda: operation(connection, number)["done"] > 0, 60, "the first runs are moved")
        worker.kill()
    moved = operation(connection, number)["done"]
    assert moved < 700, "it was killed midway"
    assert sum(times_moved(connection).values()) == moved
    with a_worker(database):
        assert wait_for_end(connection, number) == "finished"
    assert times_moved(connection) == {str(run): 1 for run in runs}
    assert operation(connection, number)["done"] == 700


def test_two_workers_share_it_without_moving_a_run_twice(database: str, connection: Connection) -> None:
    runs = dead(connection, 400)
    with a_worker(database, ready=connection), a_worker(database, ready=connection):
        number = begin(connection, "retry")
        assert wait_for_end(connection, number) == "finished"
        wait_until(lambda: operation(connection, number)["succeeded"] == 400, 90, "all were seen to succeed")
    assert times_moved(connection) == {str(run): 1 for run in runs}


def test_an_abort_midway_leaves_the_rest(database: str, connection: Connection) -> None:
    runs = dead(connection, 50)
    with a_worker(database, ready=connection):
        number = begin(connection, "retry", per_minute=120)
        wait_until(lambda: operation(connection, number)["done"] >= 2, 60, "two were moved")
        assert control.abort(connection, number, ANNA).changed
        moved = operation(connection, number)["done"]
    assert operation(connection, number)["done"] == moved < 50
    left = rows(connection, "job_runs", "status = 'dead'")
    assert len(left) == 50 - moved and left[-1]["id"] == runs[-1]


def test_the_terminal_begins_lists_and_aborts(database: str, connection: Connection, tmp_path: Path) -> None:
    dead(connection, 101)
    words = ("operations", "start", "retry", "status:dead type:quick", "--per-minute", "60")
    dry = run_wakeboard(*words, "--dry-run", database=database)
    assert (dry.returncode, rows(connection, "operations")) == (0, [])
    assert "retry: 101 runs (101 dead)." in dry.stderr
    refused = run_wakeboard(*words, database=database)
    assert refused.returncode == 2 and "--confirm 101" in refused.stderr
    refused = run_wakeboard(*words, "--confirm", "abc", database=database)
    assert refused.returncode == 2 and "101 runs, “abc” is no number: type 101" in refused.stderr
    begun = run_wakeboard(*words, "--confirm", "101", "--reason", "CRM is back", database=database)
    assert begun.returncode == 0, begun.stderr
    (made,) = rows(connection, "operations")
    assert (made["total"], made["per_minute"], made["source"]) == (101, 60, "cli")
    assert made["filter"]["query"] == "status=dead&type=quick"
    listed = run_wakeboard("operations", "list", database=database)
    assert "running" in listed.stdout and "status=dead&type=quick" in listed.stdout
    shown = run_wakeboard("operations", "show", str(made["id"]), "--json", database=database)
    assert '"total": 101' in shown.stdout
    assert run_wakeboard("operations", "abort", str(made["id"]), database=database).returncode == 0
    assert run_wakeboard("operations", "pause", str(made["id"]), database=database).returncode == 1
    assert run_wakeboard("operations", "show", "999", database=database).returncode == 2
