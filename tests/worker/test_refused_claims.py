"""A rule of the database's owner forbids a run to start: all others are claimed, and this one says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.factories import Connection, a_run, a_type, attempts, row, rows
from tests.support.postgres.write_refusals import refuse, refuse_at_commit, refuse_no_more, result_of
from tests.support.workers.worker_processes import a_worker, insert, insert_many, wait_until_all
from wakeboard.database import db
from wakeboard.queue.engine.claims import candidates
from wakeboard.runtime.loop.channel import Channel, array, numbers
from wakeboard.runtime.loop.claim_batch import MOST_REFUSED, ClaimBatch, ClaimResult
from wakeboard.runtime.loop.claim_cursor import ClaimCursor
from wakeboard.runtime.loop.claim_planner import ClaimPlan
from wakeboard.runtime.worker import Worker

STARTS = "new.payload ? 'bad' AND new.status = 'running'"
SENTENCE = "not this one"


@pytest.fixture
def channel(database: str) -> Iterator[Channel]:
    opened = Channel(db.connect(database, name="wakeboard claim"))
    yield opened
    opened.close()


def claim(channel: Channel, limit: int = 100, *, limited: bool = False, passed_by: Any = ()) -> ClaimResult:
    names = ["mail"]
    plan = ClaimPlan([] if limited else names, limit, limited=names if limited else (), round=1)
    script = ClaimBatch(plan, Worker("w1"), ClaimCursor(), skipped=passed_by).script()
    claimed = result_of(channel, script)
    assert isinstance(claimed, ClaimResult)
    return claimed


def ids(claimed: ClaimResult) -> list[int]:
    return sorted(one[0] for one in claimed.rows)


def some_runs(connection: Connection, count: int, *bad: int) -> tuple[list[int], list[int]]:
    """Enqueue runs of which those at the places ``bad`` are refused; return the good and the bad ones."""
    made = [a_run(connection, payload={"bad": 1} if place in bad else {}) for place in range(count)]
    return [one for place, one in enumerate(made) if place not in bad], [made[place] for place in bad]


@pytest.mark.parametrize("rule", [refuse, refuse_at_commit])
@pytest.mark.parametrize("most", [None, 50])
@pytest.mark.parametrize("bad", [(0,), (10,), (20,), (0, 1, 7, 20)])
def test_a_run_that_may_not_start_is_passed_and_the_others_are_claimed(
    channel: Channel, connection: Connection, rule: Any, most: int | None, bad: tuple[int, ...]
) -> None:
    a_type(connection, max_running=most)
    rule(connection, STARTS, SENTENCE)
    good, refused = some_runs(connection, 21, *bad)
    claimed = claim(channel, limited=most is not None)
    assert (ids(claimed), claimed.failure) == (good, None)
    assert [(one.run_id, one.job_type, one.reason) for one in claimed.refused] == [
        (one, "mail", SENTENCE) for one in refused
    ]
    for one in refused:
        left = row(connection, one)
        assert (left["status"], left["attempts"], left["lease_epoch"]) == ("queued", 0, 0)
        assert left["error_code"] == "claim_refused"
        assert f"refuses to let it start: {SENTENCE}" in left["last_error"]
        assert attempts(connection, one) == []
    again = claim(channel, limited=most is not None)
    assert (again.rows, again.refused) == ([], []), "it is not tried in a hot loop"


def test_a_run_waits_longer_each_time_and_starts_once_the_rule_has_gone(
    channel: Channel, connection: Connection
) -> None:
    a_type(connection)
    refuse(connection, STARTS, SENTENCE)
    _, (bad,) = some_runs(connection, 1, 0)
    pauses = []
    for _ in range(8):
        claim(channel)
        found = row(connection, bad)
        pause = found["run_at"] - found["updated_at"]
        pauses.append(pause.total_seconds())
        connection.execute(
            "UPDATE wakeboard.job_runs SET run_at = run_at - %s, updated_at = updated_at - %s",
            (pause, pause),
        )
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    refuse_no_more(connection)
    assert ids(claim(channel)) == [bad]
    assert row(connection, bad)["attempts"] == 1


def test_a_run_whose_row_may_not_change_at_all_is_passed_by(channel: Channel, connection: Connection) -> None:
    a_type(connection)
    refuse(connection, "new.payload ? 'bad'", SENTENCE)
    good, (bad,) = some_runs(connection, 5, 0)
    before = row(connection, bad)
    claimed = claim(channel, limit=2)
    assert ids(claimed) == good[:1]
    assert [(one.run_id, one.is_set_aside) for one in claimed.refused] == [(bad, False)]
    assert claimed.is_full
    further = claim(channel, limit=3, passed_by=[bad])
    assert (ids(further), further.refused) == (good[1:], [])
    assert claim(channel, passed_by=[bad]).rows == []
    assert row(connection, bad) == before


@pytest.mark.parametrize("limited", [False, True])
def test_while_a_run_is_passed_by_no_statement_comes_to_it_again(limited: bool) -> None:
    names = ["mail"]
    plan = ClaimPlan([] if limited else names, 8, limited=names if limited else (), round=1)
    script = ClaimBatch(plan, Worker("w1"), ClaimCursor(), skipped=[7]).script()
    statement, values = next(script)
    assert statement == candidates(8)
    assert values == (array(names), numbers([7]), b"t" if limited else b"f")


def test_a_type_at_its_limit_is_not_asked_again_at_once(channel: Channel, connection: Connection) -> None:
    a_type(connection, max_running=1)
    some_runs(connection, 20)
    assert len(claim(channel, limit=4, limited=True, passed_by=[7]).rows) == 1
    again = claim(channel, limit=4, limited=True, passed_by=[7])
    assert (again.rows, again.is_full) == ([], False)


def test_many_that_may_not_start_are_passed_a_few_at_a_time(channel: Channel, connection: Connection) -> None:
    a_type(connection)
    refuse(connection, STARTS, SENTENCE)
    count = 3 * MOST_REFUSED
    good, bad = some_runs(connection, count + 5, *range(count))
    found: list[int] = []
    for _ in range(4):
        claimed = claim(channel)
        assert len(claimed.refused) <= MOST_REFUSED
        found += ids(claimed)
    assert sorted(found) == good
    assert {row(connection, one)["error_code"] for one in bad} == {"claim_refused"}


def test_a_limit_holds_when_runs_are_claimed_in_parts(channel: Channel, connection: Connection) -> None:
    a_type(connection, max_running=3)
    refuse(connection, STARTS, SENTENCE)
    some_runs(connection, 12, 1)
    for _ in range(4):
        claim(channel, limited=True)
    assert len(rows(connection, "job_runs", "status = 'running'")) == 3


def test_what_says_nothing_of_a_run_fails_the_claim_as_ever(channel: Channel, connection: Connection) -> None:
    a_type(connection)
    good, _ = some_runs(connection, 3)
    refuse(connection, "true", "x' USING ERRCODE = 'lock_not_available", "UPDATE")
    claimed = claim(channel)
    assert claimed.failure is not None
    assert (claimed.failure.sqlstate, claimed.rows, claimed.refused) == ("55P03", [], [])
    assert {row(connection, one)["error_code"] for one in good} == {None}


def test_a_worker_goes_past_a_run_that_may_not_start(database: str, connection: Connection) -> None:
    refuse(connection, STARTS, SENTENCE)
    with a_worker(database, ready=connection) as worker:
        bad = insert(connection, "quick", {"bad": 1})
        good = insert_many(connection, "quick", 20)
        limited = insert_many(connection, "one_at_a_time", 2)
        wait_until_all(connection, good + limited, "succeeded", 15)
        text = worker.output
    assert row(connection, bad)["status"] == "queued"
    told = [line for line in text.splitlines() if "refuses to let a run start" in line]
    assert len(told) == 1
    assert f'run={bad} type=quick error="{SENTENCE}"' in told[0]
