"""A rule of the database's owner forbids how a run ends: the others are written, this one is not held on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.factories import Connection, a_run, attempts, claim, row, status
from tests.support.postgres.write_refusals import refuse, refuse_at_commit, refuse_no_more, result_of
from tests.support.processes import wait_until
from tests.support.workers.ended_attempts import decided
from tests.support.workers.result_queues import Desk, running, succeeded, write
from tests.support.workers.worker_processes import (
    REAPED_WITHIN,
    a_worker,
    insert,
    insert_many,
    outcomes,
    wait_until_all,
    wait_until_status,
)
from wakeboard.config import log
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.database import db
from wakeboard.runtime.duties.lease import LeaseKeeper
from wakeboard.runtime.loop.channel import Channel
from wakeboard.runtime.loop.claim_batch import RecoveryResult, recovery_script
from wakeboard.runtime.loop.ended_attempt import release_unstarted
from wakeboard.runtime.loop.in_flight import RunsInFlight
from wakeboard.runtime.worker import Worker

SENTENCE = "no good end for this one"
BAD = "new.payload ? 'bad'"


@pytest.fixture
def channel(database: str) -> Iterator[Channel]:
    opened = Channel(db.connect(database, name="wakeboard finish"))
    yield opened
    opened.close()


def mark_bad(connection: Connection, *ids: int) -> None:
    connection.execute(
        "UPDATE wakeboard.job_runs SET payload = '{\"bad\": 1}' WHERE id = ANY (%s)", (list(ids),)
    )


@pytest.mark.parametrize("rule", [refuse, refuse_at_commit])
@pytest.mark.parametrize("bad", [(0,), (150,), (3, 77, 299)])
def test_of_a_batch_all_are_written_but_those_that_are_refused_alone(
    channel: Channel, connection: Connection, rule: Any, bad: tuple[int, ...]
) -> None:
    desk = Desk()
    ones = running(connection, 300)
    refused = [ones[place].run_id for place in bad]
    mark_bad(connection, *refused)
    rule(connection, f"{BAD} AND new.status = 'succeeded'", SENTENCE)
    for one in ones:
        desk.queue.add(succeeded(one, result='{"kept": 1}'))
    assert write(channel, desk.queue, rounds=400) < 30 * len(bad), "halved, not one by one"
    assert dict(desk.written) == {
        one.run_id: "dead" if one.run_id in refused else "succeeded" for one in ones
    }
    assert (desk.abandoned, desk.refused, len(desk.queue)) == ([], [], 0)
    for run_id in refused:
        found = row(connection, run_id)
        (attempt,) = attempts(connection, run_id)
        assert (found["status"], found["error_code"], found["locked_by"]) == ("dead", "finish_refused", None)
        assert (attempt["outcome"], attempt["attempt"]) == ("failed", 1)
        assert f"ended (succeeded), and the database refuses that end: {SENTENCE}." in attempt["error"]


@pytest.mark.parametrize("kind", ["returned", "raised", "release"])
def test_an_end_that_is_forbidden_altogether_is_given_up(
    channel: Channel, connection: Connection, kind: Any
) -> None:
    desk = Desk()
    bad, good = running(connection, 2)
    mark_bad(connection, bad.run_id)
    refuse(connection, BAD, SENTENCE)
    for one in (bad, good):
        desk.queue.add(
            release_unstarted(one)
            if kind == "release"
            else decided(kind, run_id=one.run_id, epoch=one.lease_epoch)
        )
    write(channel, desk.queue, rounds=200)
    assert (desk.abandoned, len(desk.queue)) == ([bad.run_id], 0)
    assert [run_id for run_id, _ in desk.written] == [good.run_id]
    assert status(connection, bad.run_id) == "running"
    assert attempts(connection, bad.run_id) == []


def test_what_is_forgotten_is_left_out_of_the_parts_of_a_batch_too(
    channel: Channel, connection: Connection
) -> None:
    desk = Desk()
    ones = running(connection, 4)
    mark_bad(connection, ones[0].run_id)
    refuse(connection, BAD, SENTENCE)
    for one in ones:
        desk.queue.add(succeeded(one))
    write(channel, desk.queue, rounds=1)
    ones[3].is_forgotten = True
    desk.queue.forget()
    write(channel, desk.queue, rounds=200)
    assert sorted(run_id for run_id, _ in desk.written) == [one.run_id for one in ones[1:3]]


def test_what_was_given_up_is_not_given_back_as_if_it_had_never_started(
    channel: Channel, connection: Connection
) -> None:
    in_flight = RunsInFlight()
    ended, unanswered = running(connection, 2)
    in_flight.abandon([(ended.run_id, ended.lease_epoch)])
    found = result_of(channel, recovery_script("w1", in_flight))
    assert found == RecoveryResult(1, [], [])
    assert (status(connection, ended.run_id), status(connection, unanswered.run_id)) == ("running", "queued")


def test_a_claim_that_may_not_go_back_keeps_no_other_from_it(
    channel: Channel, connection: Connection
) -> None:
    ones = running(connection, 5)
    bad = ones[2]
    mark_bad(connection, bad.run_id)
    refuse(connection, BAD, SENTENCE)
    found = result_of(channel, recovery_script("w1", RunsInFlight()))
    assert found == RecoveryResult(4, [], [(bad.run_id, bad.lease_epoch)])
    assert [status(connection, one.run_id) for one in ones] == [
        "queued",
        "queued",
        "running",
        "queued",
        "queued",
    ]
    assert len(claim(connection, limit=9)) == 4


def test_a_lease_that_may_not_be_renewed_costs_no_other_its_lease(
    database: str, connection: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    ones = running(connection, 5)
    mark_bad(connection, ones[1].run_id)
    refuse(connection, BAD, SENTENCE)
    in_flight, long_ago = RunsInFlight(), boottime_ns() - int(20e9)
    for one in ones:
        one.leased_ns = long_ago
    in_flight.add(ones)
    keeper = LeaseKeeper(
        database, Worker("w1"), in_flight, loop_silent_seconds=lambda: 0.0, progress=lambda _: None,
        post=lambda _: None,
    )  # fmt: skip
    with db.connect(database, name="wakeboard lease") as own:
        for _ in range(3):
            keeper.step(own)
    assert [one.leased_ns > long_ago for one in ones] == [True, False, True, True, True]
    log.flush()
    told = capfd.readouterr().err
    assert told.count("refuses to renew a run's lease") == 1
    assert f"run={ones[1].run_id} type=mail" in told


def test_a_worker_writes_the_others_and_ends_with_nothing_left(database: str, connection: Connection) -> None:
    with a_worker(database, ready=connection) as worker:
        wait_until_all(connection, insert_many(connection, "swift", 600), "succeeded", 60)
        refuse(connection, f"{BAD} AND new.status = 'succeeded'", SENTENCE)
        good = insert_many(connection, "swift", 300)
        bad = insert(connection, "swift", {"bad": 1})
        good += insert_many(connection, "swift", 300)
        wait_until_all(connection, good, "succeeded", 30)
        wait_until_status(connection, bad, "dead")
        text = worker.output
    assert row(connection, bad)["error_code"] == "finish_refused"
    told = [line for line in text.splitlines() if "refuses how a run ended" in line]
    assert len(told) == 1
    assert f'run={bad} type=swift attempt=1 outcome=succeeded error="{SENTENCE}"' in told[0]


def test_a_run_that_may_not_be_touched_any_more_holds_up_neither_its_worker_nor_the_reaper(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with a_worker(database, ready=connection) as worker:
        bad = insert(connection, "gated", {"bad": 1, "gate": str(gate)})
        wait_until_status(connection, bad, "running")
        refuse(connection, BAD, SENTENCE)
        before = row(connection, bad)
        gate.touch()
        lost = a_run(connection, "running", job_type="quick", locked_by="gone", locked_until="-1 second")
        wait_until(lambda: "cannot be written" in worker.output, 20, "the end is given up")
        wait_until_all(connection, [lost, *insert_many(connection, "quick", 20)], "succeeded", REAPED_WITHIN)
        wait_until(lambda: "refuses that a lost run" in worker.output, REAPED_WITHIN, "the reaper says so")
        wait_until_all(connection, insert_many(connection, "quick", 20), "succeeded", 15)
        refuse_no_more(connection)
    assert row(connection, bad) == before
    assert outcomes(connection, lost) == ["lost", "succeeded"]
