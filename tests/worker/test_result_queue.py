"""Writing down how attempts ended: in which turn each is written, and what a refusal costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.factories import Connection, attempts, claim, end_lease, reap, row, status
from tests.support.workers.ended_attempts import decided, held
from tests.support.workers.result_queues import result_queue, running, succeeded, write
from wakeboard.core.outcome import AttemptResult
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.database import db
from wakeboard.runtime.loop.channel import Channel, StatementFailed
from wakeboard.runtime.loop.ended_attempt import decide_end, release_unstarted

# ---- turns ------------------------------------------------------------------------------------------


def test_no_kind_of_answer_waits_for_the_others() -> None:
    made, _, _ = result_queue()
    moves = []
    for _ in range(6):
        for _ in range(3):
            made.add(decided("returned"))
        made.add(decided("raised"))
        moves.append(made.next_batch()[0].move)
    assert moves.count("fail") == moves.count("succeed") == 3


def test_a_refusal_that_is_not_about_the_data_costs_no_answer() -> None:
    made, _, _ = result_queue()
    answer = AttemptResult("returned", result='{"kept": true}', output_tail="kept")
    ended = decide_end(held(), answer, took_seconds=1, ended_ns=1)
    assert ended is not None
    for state in ("55P03", "57014", "40P01", "53100", "25006"):
        made.refuse([ended], StatementFailed("no", state))
    assert ended.answer == answer
    assert made.next_batch() == [], "it waits a moment"
    assert len(made) == 5


def test_of_what_is_forgotten_nothing_is_written() -> None:
    made, written, refused = result_queue()
    kept, gone, under_way = (decided("returned", run_id=run_id) for run_id in (1, 2, 3))
    made.add(under_way)
    batch = made.next_batch()
    made.add(kept)
    made.add(gone)
    gone.run.is_forgotten = under_way.run.is_forgotten = True
    made.forget()
    made.give_back(batch)
    assert [ended.run.run_id for ended in made.next_batch()] == [1]
    assert (written, refused, len(made)) == ([], [], 0)


def test_of_a_batch_that_is_refused_what_is_forgotten_is_left_out() -> None:
    made, written, refused = result_queue()
    kept, gone = (decided("returned", run_id=run_id) for run_id in (1, 2))
    made.add(kept)
    made.add(gone)
    batch = made.next_batch()
    gone.run.is_forgotten = True
    made.forget()
    made.refuse(batch, StatementFailed("no", "23514"))
    assert [ended.run.run_id for ended in made.next_batch()] == [1]
    made.refuse([gone], StatementFailed("no", "23514"))
    assert (written, refused, len(made)) == ([], [], 0)


# ---- the database -----------------------------------------------------------------------------------


@pytest.fixture
def channel(database: str) -> Iterator[Channel]:
    opened = Channel(db.connect(database, name="wakeboard finish"))
    yield opened
    opened.close()


@pytest.mark.parametrize("others", [(10, 300.0), (3, 1.5)])
def test_each_attempt_is_written_with_the_rules_that_it_ran_under(
    channel: Channel, connection: Connection, others: tuple[int, float]
) -> None:
    made, _, _ = result_queue()
    rules = [(10, 300.0), others, (10, 300.0)]
    ones = running(connection, len(rules))
    for one, (most, timeout) in zip(ones, rules, strict=True):
        one.max_attempts, one.assignment = most, one.assignment._replace(timeout_seconds=timeout)
        made.add(succeeded(one))
    write(channel, made)
    kept = [attempts(connection, one.run_id)[0] for one in ones]
    assert [(attempt["max_attempts"], attempt["timeout_seconds"]) for attempt in kept] == rules


@pytest.mark.parametrize("result", ['"\\u0000"', '{"broken":', "NaN", '"\\ud800"'])
def test_an_answer_that_postgresql_refuses_hurts_only_itself(
    channel: Channel, connection: Connection, result: str
) -> None:
    made, written, _ = result_queue()
    ones = running(connection, 8)
    for number, one in enumerate(ones):
        made.add(succeeded(one, result=result if number == 3 else '{"fine": 1}'))
    write(channel, made)
    assert sorted(written) == [(one.run_id, "succeeded") for one in ones]
    for number, one in enumerate(ones):
        (attempt,) = attempts(connection, one.run_id)
        assert attempt["result"] == (None if number == 3 else {"fine": 1})
        assert bool(attempt["note"]) == (number == 3)


def test_a_row_that_somebody_holds_is_written_as_soon_as_it_is_free(
    channel: Channel, connection: Connection, other: Connection
) -> None:
    made, written, _ = result_queue()
    locked, free = running(connection, 2)
    made.add(succeeded(locked))
    made.add(succeeded(free))
    with other.transaction():
        other.execute("SELECT 1 FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (locked.run_id,))
        write(channel, made, rounds=5)
        assert written == [(free.run_id, "succeeded")]
        assert status(connection, locked.run_id) == "running"
    write(channel, made)
    assert status(connection, locked.run_id) == "succeeded"


def test_an_answer_that_comes_too_late_is_refused_and_noted(channel: Channel, connection: Connection) -> None:
    made, written, refused = result_queue()
    lost, kept = running(connection, 2)
    end_lease(connection, lost.run_id)
    reap(connection, (lost.run_id, lost.lease_epoch))
    before = row(connection, lost.run_id)
    made.add(succeeded(lost))
    made.add(succeeded(kept))
    write(channel, made)
    assert (refused, written) == ([lost.run_id], [(kept.run_id, "succeeded")])
    assert row(connection, lost.run_id) == before
    (attempt,) = attempts(connection, lost.run_id)
    assert (attempt["outcome"], attempt["refused_outcome"]) == ("lost", "succeeded")
    assert attempt["refused_at"] is not None


def test_an_answer_written_before_its_connection_broke_is_not_written_twice(
    channel: Channel, connection: Connection
) -> None:
    made, written, refused = result_queue()
    (one,) = running(connection, 1)
    ended = succeeded(one)
    made.add(ended)
    write(channel, made)
    made.give_back([ended])
    write(channel, made)
    assert written == [(one.run_id, "succeeded")] * 2
    assert not refused
    assert len(attempts(connection, one.run_id)) == 1


def test_what_never_started_leaves_no_trace(channel: Channel, connection: Connection) -> None:
    made, written, _ = result_queue()
    (one,) = running(connection, 1)
    made.add(release_unstarted(one))
    write(channel, made)
    found = row(connection, one.run_id)
    assert (found["status"], found["attempts"], attempts(connection, one.run_id)) == ("queued", 0, [])
    assert written == [(one.run_id, "queued")]


@pytest.mark.parametrize("how", ["succeed", "fail", "release"])
def test_of_two_attempts_of_one_run_in_one_batch_only_the_one_that_owns_it_is_written(
    connection: Connection, channel: Channel, how: str
) -> None:
    (old,) = running(connection, 1)
    end_lease(connection, old.run_id)
    reap(connection, (old.run_id, old.lease_epoch), delay=0)
    (taken,) = claim(connection, limit=1)
    made, written, refused = result_queue()
    for one in (old, held(taken.id, taken.lease_epoch)):
        answer = AttemptResult("raised", "E", "no") if how == "fail" else AttemptResult("returned")
        ended = decide_end(one, answer, took_seconds=1, ended_ns=boottime_ns())
        if how == "release":
            ended = release_unstarted(one)
        assert ended is not None and ended.move == how
        made.add(ended)
    assert write(channel, made) == 1
    now = {"succeed": "succeeded", "fail": "failed", "release": "queued"}[how]
    assert written == [(old.run_id, now)]
    assert refused == [old.run_id]
    (lost,) = [each for each in attempts(connection, old.run_id) if each["outcome"] == "lost"]
    assert lost["refused_at"] is not None, "the late answer is noted on the attempt that lost its lease"
