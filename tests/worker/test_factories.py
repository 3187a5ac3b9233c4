"""The test world itself: its rows satisfy the tables, and its clock is moved by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.conftest import Connection
from tests.support import factories
from wakeboard.core.states import Status


@pytest.mark.parametrize("status", list(Status))
def test_a_run_of_each_status_satisfies_every_rule(connection: Connection, status: Status) -> None:
    run_id = factories.a_run(connection, status.value)
    found = factories.row(connection, run_id)
    assert found["status"] == status
    ended = found["attempts"] - (status == "running")
    assert [attempt["attempt"] for attempt in factories.attempts(connection, run_id)] == list(
        range(1, ended + 1)
    )


def test_a_run_grows_older_with_all_its_times(connection: Connection) -> None:
    run_id = factories.a_run(connection, "succeeded")
    before, (attempt,) = factories.row(connection, run_id), factories.attempts(connection, run_id)
    factories.age(connection, run_id, "10 minutes")
    after, (older,) = factories.row(connection, run_id), factories.attempts(connection, run_id)
    for name in ("run_at", "created_at", "started_at", "finished_at"):
        assert before[name] - after[name] == timedelta(minutes=10)
    assert attempt["finished_at"] - older["finished_at"] == timedelta(minutes=10)


def test_workers_types_and_definitions_can_be_made(connection: Connection) -> None:
    worker = factories.a_worker(connection, idle=True)
    assert factories.rows(connection, "workers")[0]["id"] == worker
    factories.a_type(connection, max_running=3)
    assert factories.rows(connection, "job_types")[0]["max_running"] == 3
    factories.a_definition(connection, "nightly", payload={"day": "2026-01-14"})
    assert factories.rows(connection, "job_definitions")[0]["payload"] == {"day": "2026-01-14"}


def test_a_claimed_run_can_be_answered_for(connection: Connection) -> None:
    factories.a_type(connection)
    run_id = factories.a_run(connection)
    (claimed,) = factories.claim(connection)
    assert claimed.held == (run_id, 1)
    assert factories.renew(connection, claimed.held) == {run_id: False}
    assert factories.fail(connection, claimed.held) == {run_id: "failed"}
    factories.make_due(connection, run_id)
    (claimed,) = factories.claim(connection)
    assert factories.release(connection, claimed.held) == {run_id: "queued"}
    (claimed,) = factories.claim(connection)
    factories.end_lease(connection, run_id)
    assert factories.reap(connection, claimed.held) == {run_id: "failed"}
    factories.make_due(connection, run_id)
    (claimed,) = factories.claim(connection)
    assert factories.succeed(connection, claimed.held) == [run_id]
