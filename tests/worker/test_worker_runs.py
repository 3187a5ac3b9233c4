"""One worker, many fates of runs: what succeeds, fails, crashes, is stopped, cannot be read or lies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.factories import Connection, attempts, row, rows
from tests.support.processes import Wakeboard, wait_until
from tests.support.workers.worker_processes import (
    OPERATOR,
    a_worker,
    claim_ahead,
    insert,
    insert_many,
    is_alive,
    outcomes,
    wait_until_all,
    wait_until_status,
)
from wakeboard import queue as transitions
from wakeboard.database import db


@pytest.fixture(scope="module")
def worker(shared_database: str) -> Iterator[Wakeboard]:
    """A worker that all tests of this module share: no run may take it down."""
    with (
        db.connect(shared_database, name="wakeboard test") as connection,
        a_worker(shared_database, ready=connection) as started,
    ):
        yield started
        assert started.process.poll() is None, started.output


def test_a_plain_insert_is_a_run_that_succeeds_in_three_seconds(
    worker: Wakeboard, shared: Connection
) -> None:
    run_id = insert(shared, "quick", {"answer": {"sent": 812}})
    found = wait_until_status(shared, run_id, "succeeded", seconds=3)
    (attempt,) = attempts(shared, run_id)
    assert found["attempts"] == 1
    assert found["failures"] == 0
    assert attempt["outcome"] == "succeeded"
    assert attempt["result"] == {"sent": 812}
    assert attempt["started_at"] <= attempt["finished_at"]
    assert (attempt["max_attempts"], attempt["timeout_seconds"]) == (10, 300)


def test_a_run_that_fails_each_time_is_dead_after_its_attempts(worker: Wakeboard, shared: Connection) -> None:
    run_id = insert(shared, "stubborn_failure")
    found = wait_until_status(shared, run_id, "dead")
    assert (found["attempts"], found["failures"], found["error_code"]) == (3, 3, "ConnectionError")
    assert outcomes(shared, run_id) == ["failed"] * 3
    assert "the mail server did not answer" in attempts(shared, run_id)[2]["traceback"]
    (group,) = rows(shared, "error_groups", "job_type = 'stubborn_failure'")
    assert {each["error_group"] for each in (found, *attempts(shared, run_id))} == {group["id"]}
    assert (group["error_code"], group["first_run_id"]) == ("ConnectionError", run_id)
    assert group["template"] == "the mail server did not answer"
    assert group["frame"] == "motion.py in stubborn_failure"


def test_a_deaf_endless_loop_is_killed_with_its_grandchild(
    worker: Wakeboard, shared: Connection, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    run_id = insert(shared, "deaf", {"pids": str(pids)})
    wait_until(lambda: pids.exists() and pids.read_text(), 10, "the handler tells its process ids")
    child, grandchild = map(int, pids.read_text().split())
    assert is_alive(grandchild)
    found = wait_until_status(shared, run_id, "dead", seconds=2 + 1 + 5)
    (attempt,) = attempts(shared, run_id)
    took = (attempt["finished_at"] - attempt["started_at"]).total_seconds()
    assert found["error_code"] == "timed_out"
    assert attempt["outcome"] == "timed_out"
    assert 2 <= took <= 2 + 1 + 1
    assert not is_alive(child)
    assert not is_alive(grandchild)


def wait_until_begun(connection: Connection, run_id: int) -> None:
    """Wait until the handler of a patient run says that it waits."""
    begun = "run_id = %s AND tail LIKE '%%waiting%%'"
    wait_until(lambda: rows(connection, "run_output", begun, run_id), 10, "the handler has begun")


def test_a_cancelled_handler_that_checks_ends_within_a_second(worker: Wakeboard, shared: Connection) -> None:
    run_id = insert(shared, "patient")
    wait_until_begun(shared, run_id)
    asked = time.monotonic()
    answer = transitions.cancel(shared, run_id, OPERATOR)
    assert (answer.result, answer.status) == ("asked", "running")
    found = wait_until_status(shared, run_id, "cancelled", seconds=5)
    assert time.monotonic() - asked < 1
    assert found["failures"] == 0
    assert outcomes(shared, run_id) == ["cancelled"]


def test_a_cancelled_handler_that_is_deaf_is_killed(
    worker: Wakeboard, shared: Connection, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    run_id = insert(shared, "deaf_for_long", {"pids": str(pids)})
    wait_until(lambda: pids.exists() and pids.read_text(), 10, "the handler tells its process ids")
    asked = time.monotonic()
    transitions.cancel(shared, run_id, OPERATOR)
    wait_until_status(shared, run_id, "cancelled", seconds=10)
    assert time.monotonic() - asked < 2 * 1 + 1
    assert not any(map(is_alive, map(int, pids.read_text().split())))


def looked_for_cancels_since(connection: Connection, run_id: int) -> bool:
    """Whether the worker has looked whether somebody wants runs to stop since that was said of this one."""
    (found,) = connection.execute(
        """SELECT EXISTS (
            SELECT FROM pg_stat_activity AS s JOIN wakeboard.job_runs AS r ON r.id = %s
            WHERE s.datname = current_database() AND s.application_name = 'wakeboard lease'
                AND s.state = 'idle' AND s.query_start > r.cancel_requested_at
        )""",
        (run_id,),
    ).fetchone() or (False,)
    return bool(found)


def test_a_run_cancelled_behind_another_ends_when_its_turn_comes_and_counts_no_attempt(
    worker: Wakeboard, shared: Connection, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    claimed = [run_id for run_id in claim_ahead(shared, gate) if row(shared, run_id)["status"] == "running"]
    waiting = claimed[-1]
    assert transitions.cancel(shared, waiting, OPERATOR).result == "asked"
    wait_until(lambda: looked_for_cancels_since(shared, waiting), 10, "the worker knows of it")
    gate.touch()
    found = wait_until_status(shared, waiting, "cancelled")
    assert (found["attempts"], outcomes(shared, waiting)) == (0, [])
    wait_until_all(shared, [run_id for run_id in claimed if run_id != waiting], "succeeded", 30)


def test_cancel_and_finish_race_to_one_end_and_the_answer_tells_which(
    worker: Wakeboard, shared: Connection
) -> None:
    said = {}
    for number in range(60):
        run_id = insert(shared, "patient", {"seconds": 0.02})
        wait_until_status(shared, run_id, "running", "succeeded")
        time.sleep(number % 12 * 0.003)  # where in its short life the cancel meets it
        said[run_id] = transitions.cancel(shared, run_id, OPERATOR)
    for run_id, answer in said.items():
        found = wait_until_status(shared, run_id, "succeeded", "cancelled")
        # A cancel before the handler began counts no attempt.
        assert outcomes(shared, run_id) == [found["status"]] * found["attempts"]
        assert found["attempts"] == 1 or (found["status"], found["attempts"]) == ("cancelled", 0)
        if answer.result == "forbidden":
            assert answer.status == found["status"] == "succeeded"
        else:
            assert answer.result == "asked"
    assert len({answer.result for answer in said.values()}) == 2, "the race was never close"


@pytest.mark.parametrize(
    ("way", "word"),
    [("exit", "status 0"), ("segfault", "SIGSEGV"), ("abort", "SIGABRT"), ("sys.exit", "status 3")],
)
def test_a_child_that_ends_without_an_answer_has_failed(
    worker: Wakeboard, shared: Connection, way: str, word: str
) -> None:
    run_id = insert(shared, "crash", {"way": way})
    found = wait_until_status(shared, run_id, "dead")
    assert outcomes(shared, run_id) == ["failed"]
    assert word in found["last_error"]
    after = insert(shared, "quick")
    wait_until_status(shared, after, "succeeded")


def test_a_killed_template_is_replaced(worker: Wakeboard, shared: Connection) -> None:
    waiting = insert(shared, "patient", {"seconds": 20})
    wait_until_begun(shared, waiting)
    (template,) = psutil.Process(worker.pid).children()
    template.kill()
    after = insert(shared, "quick")
    wait_until_status(shared, after, "succeeded")
    assert "failed" in wait_until(lambda: outcomes(shared, waiting))
    transitions.cancel(shared, waiting, OPERATOR)
    wait_until_status(shared, waiting, "cancelled")
    # The log has a thread of its own.
    worker.wait_for("starting another")


def test_rows_that_no_handler_can_read_fail_alone(worker: Wakeboard, shared: Connection) -> None:
    deep = "[" * 2_000 + "]" * 2_000
    poison = [
        shared.execute(
            "INSERT INTO wakeboard.job_runs (job_type, payload, max_attempts) VALUES ('quick', %s::jsonb, 1)"
            " RETURNING id",
            (text,),
        ).fetchone()[0]  # type: ignore[index]
        for text in (f'{{"deep": {deep}}}', f'{{"number": {"9" * 5_000}}}')
    ]
    neighbours = insert_many(shared, "quick", 20)
    wait_until_all(shared, neighbours, "succeeded")
    wait_until_all(shared, poison, "dead")
    statement = "SELECT error_code FROM wakeboard.job_runs WHERE id = ANY(%s)"
    assert shared.execute(statement, (poison,)).fetchall() == [("payload_unreadable",)] * 2


@pytest.mark.parametrize("timeout", ["1e300", "1e-300"])
def test_a_timeout_that_no_clock_knows_hurts_no_neighbour(
    worker: Wakeboard, shared: Connection, timeout: str
) -> None:
    odd = insert(shared, "quick", timeout_seconds=float(timeout), max_attempts=1)
    neighbours = insert_many(shared, "quick", 10)
    wait_until_all(shared, neighbours, "succeeded")
    found = wait_until_status(shared, odd, "succeeded", "dead")
    assert found["attempts"] == 1


@pytest.mark.parametrize("way", ["nul in message", "text raises", "huge message", "odd code", "circle"])
def test_a_hostile_exception_is_recorded(worker: Wakeboard, shared: Connection, way: str) -> None:
    run_id = insert(shared, "lie", {"way": way})
    neighbour = insert(shared, "quick")
    found = wait_until_status(shared, run_id, "dead")
    (attempt,) = attempts(shared, run_id)
    assert found["error_code"]
    assert len(found["last_error"]) <= 2_000
    assert len(attempt["traceback"]) <= 32_000
    wait_until_status(shared, neighbour, "succeeded")


@pytest.mark.parametrize(
    "way", ["nul in result", "escaped nul in result", "huge result", "no json", "odd output"]
)
def test_a_hostile_result_still_succeeds(worker: Wakeboard, shared: Connection, way: str) -> None:
    run_id = insert(shared, "lie", {"way": way})
    wait_until_status(shared, run_id, "succeeded")
    (attempt,) = attempts(shared, run_id)
    assert attempt["result"] is not None or attempt["note"]


def test_quick_runs_are_claimed_ahead_of_need(worker: Wakeboard, shared: Connection, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    ids = claim_ahead(shared, gate)
    gate.touch()
    wait_until_all(shared, ids, "succeeded", 60)


def test_what_runs_shows_its_output_and_the_end_removes_it(worker: Wakeboard, shared: Connection) -> None:
    run_id = insert(shared, "patient", {"seconds": 20})

    def tail() -> str | None:
        statement = "SELECT tail FROM wakeboard.run_output WHERE run_id = %s"
        found = shared.execute(statement, (run_id,)).fetchone()
        return found[0] if found else None

    assert "waiting" in str(wait_until(tail, 15, "the output is shown"))
    transitions.cancel(shared, run_id, OPERATOR)
    wait_until_status(shared, run_id, "cancelled")
    assert "waiting" in attempts(shared, run_id)[0]["output_tail"]
    wait_until(lambda: tail() is None, 10, "the live tail is removed")


def test_every_loop_tells_of_itself(worker: Wakeboard, shared: Connection) -> None:
    def names() -> set[str]:
        return {one[0] for one in shared.execute("SELECT name FROM wakeboard.loops").fetchall()}

    wanted = {
        "presence",
        "schedule",
        "pauses",
        "reap",
        "statistics",
        "live output",
        "operations",
        "forget",
        "retention",
        "indexes",
        "clock",
        "claim",
        "renew",
        "listen",
    }
    wait_until(lambda: names() >= wanted, 10, "all loops have told")


def test_what_fails_after_a_runs_own_commit_is_told_in_the_log(worker: Wakeboard, shared: Connection) -> None:
    run_id = insert(shared, "fails_after_commit")
    wait_until_status(shared, run_id, "succeeded")
    told = (
        "Code after the handler's transaction() failed. The run has succeeded; nothing of this is recorded."
    )
    line = wait_until(
        lambda: next((one for one in worker.output.splitlines() if f"{told} run={run_id} " in one), None)
    )
    assert "call once() before the block or inside it" in line
    assert line.count(" error=") == line.count(" reason=") == 1
    assert outcomes(shared, run_id) == ["succeeded"]
    assert rows(shared, "effects", f"run_id = {run_id}") == []
