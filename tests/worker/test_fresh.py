"""`@job(fresh=True)`: a run finds nothing of others in its process, and leaves nothing to others."""

from __future__ import annotations

import json

import pytest

from tests.support.factories import Connection, attempts, rows
from tests.support.processes import wait_until
from tests.support.workers.apps import fresh
from tests.support.workers.child_processes import Nursery, assign, nursery, returned
from tests.support.workers.worker_processes import a_worker, counts, insert
from wakeboard import Pool, run_now
from wakeboard.runtime.processes.protocol import ChildExit

APP = "tests.support.workers.apps.fresh"

__all__ = ["nursery"]


@pytest.mark.parametrize("job_type", ["alone", "alone_async"])
def test_a_process_ends_after_such_a_run(nursery: Nursery, job_type: str) -> None:
    pid, before = returned(nursery, job_type)
    assert before == 0
    died = nursery.wait_for(ChildExit)
    assert (died.is_clean, died.unstarted) == (True, [])
    other, before = returned(nursery, "shared")
    assert before == 0 and other != pid


def test_such_a_run_does_not_begin_where_another_has_run(nursery: Nursery) -> None:
    pid, _ = returned(nursery, "shared")
    assert returned(nursery, "shared") == [pid, 1]
    run = assign("alone")
    died = nursery.die(run)
    assert (died.is_clean, died.running, died.unstarted) == (True, None, [run])
    assert returned(nursery, "alone")[1] == 0


def test_what_waits_behind_such_a_run_goes_to_the_next_process(nursery: Nursery) -> None:
    later = [assign("alone"), assign("shared")]
    died = nursery.die(assign("alone"), *later)
    assert (died.is_clean, died.unstarted) == (True, later)


def test_in_a_worker_such_runs_have_a_process_each_and_cost_no_attempt(
    database: str, connection: Connection
) -> None:
    alone: list[int] = []
    shared: list[int] = []
    with a_worker(database, ready=connection, APP=APP, CONCURRENCY=2) as worker:
        for number in range(12):
            shared.append(insert(connection, "shared"))
            alone.append(insert(connection, ("alone", "alone_async")[number % 2]))
        retried = insert(connection, "alone", {"fail": True})
        connection.execute("UPDATE wakeboard.job_types SET backoff = 'fixed 0.1s'")
        ids = [*alone, *shared, retried]
        wait_until(lambda: counts(connection, alone + shared) == {"succeeded": 24}, 60, "all have run")
        connection.execute(
            "UPDATE wakeboard.job_runs SET run_at = now() WHERE id = %s AND status = 'failed'", (retried,)
        )
        wait_until(lambda: counts(connection, [retried]) == {"succeeded": 1}, 60, "the retry has run")
        assert worker.terminate(20) == 0, worker.output
        assert "before they start a run" not in worker.output
    found = {run_id: attempts(connection, run_id) for run_id in ids}
    assert [len(found[run_id]) for run_id in alone + shared] == [1] * 24
    assert len(found[retried]) == 2
    assert {one["attempts"] for one in rows(connection, "job_runs", "id = ANY(%s)", alone + shared)} == {1}
    results = {run_id: made[-1]["result"] for run_id, made in found.items()}
    pids = [results[run_id][0] for run_id in [*alone, retried]]
    assert {results[run_id][1] for run_id in [*alone, retried]} == {0}
    assert len(set(pids)) == 13
    assert not set(pids) & {results[run_id][0] for run_id in shared}


def test_inline_and_in_a_pool_the_process_is_the_callers() -> None:
    first = json.loads(run_now(fresh.alone).result or "")
    second = json.loads(run_now(fresh.alone).result or "")
    assert second == [first[0], first[1] + 1]
    with Pool(1) as pool:
        assert pool.submit(fresh.alone).result(20)[0] == first[0]
