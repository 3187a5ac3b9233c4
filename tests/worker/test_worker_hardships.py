"""What a worker must get over: big answers, odd notifications, backlogs, other encodings."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.factories import Connection
from tests.support.processes import wait_until
from tests.support.workers.worker_processes import (
    a_worker,
    insert,
    insert_many,
    outcomes,
    wait_until_all,
    wait_until_status,
)
from wakeboard.database.db import connect
from wakeboard.queue import enqueue_many


def test_answers_larger_than_a_socket_takes_at_once_are_all_written(
    database: str, connection: Connection
) -> None:
    with a_worker(database, ready=connection):
        ids = insert_many(connection, "quick", 600, {"answer": "x" * 8_000})
        wait_until_all(connection, ids, "succeeded", 60)
    kept = connection.execute(
        "SELECT count(*) FROM wakeboard.job_attempts WHERE length(result::text) > 8000"
    ).fetchone()
    assert kept == (600,)


def test_a_limited_type_gets_its_turn_behind_a_backlog(database: str, connection: Connection) -> None:
    with a_worker(database, ready=connection, CONCURRENCY=1) as worker:
        backlog = insert_many(connection, "patient", 400, {"seconds": 0.05})
        limited = insert(connection, "one_at_a_time", priority=4)
        wait_until_status(connection, limited, "succeeded", seconds=15)
        left = connection.execute(
            "SELECT count(*) FROM wakeboard.job_runs WHERE id = ANY(%s) AND status = 'queued'", (backlog,)
        ).fetchone()
        assert left is not None and left[0] > 0, "the backlog must still be there"
        worker.kill()


def test_an_odd_notification_ends_no_worker(database: str, connection: Connection) -> None:
    with a_worker(database, ready=connection):
        for payload in ("²", "9" * 5_000, "-1", "drop", "٣"):
            connection.execute("SELECT pg_notify('wakeboard_cancel', %s)", (payload,))
        wait_until_status(connection, insert(connection, "quick"), "succeeded")


def test_a_notification_cancels_nothing_that_nobody_asked_to_cancel(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with a_worker(database, ready=connection):
        run_id = insert(connection, "gated", {"gate": str(gate)})
        wait_until_status(connection, run_id, "running")
        for _ in range(200):
            connection.execute("SELECT pg_notify('wakeboard_cancel', %s)", (str(run_id),))
        wait_until_status(connection, insert(connection, "quick"), "succeeded")
        gate.touch()
        wait_until_status(connection, run_id, "succeeded")
    assert outcomes(connection, run_id) == ["succeeded"]


def test_code_after_the_transaction_may_outlast_the_lease(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    gate = tmp_path / "done"
    with a_worker(database, ready=connection) as worker:
        run_id = insert(connection, "long_after_commit", {"seconds": 4, "file": str(gate)})
        wait_until_status(connection, run_id, "succeeded")
        wait_until(gate.exists, 20, f"the code after the block comes to its end:\n{worker.output}")
    assert outcomes(connection, run_id) == ["succeeded"]


def test_two_callers_with_the_same_keys_in_opposite_order_do_not_deadlock(database: str) -> None:
    keys = [f"order:{number}" for number in range(2_000)]
    failures: list[BaseException] = []
    answers: list[list[int]] = []

    def call(order: list[str]) -> None:
        try:
            with connect(database, name="producer", autocommit=False) as own:
                ids = enqueue_many(own, [{"job_type": "quick", "key": key} for key in order])
                own.commit()
                answers.append([run_id for _, run_id in sorted(zip(order, ids, strict=True))])
        except BaseException as failure:
            failures.append(failure)

    for _ in range(3):
        threads = [threading.Thread(target=call, args=(order,)) for order in (keys, keys[::-1])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert all(answer == answers[0] for answer in answers)
