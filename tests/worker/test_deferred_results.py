"""Types with a limit: the end of a run and the claim that it makes room for are one transaction."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.factories import Connection, a_run, a_type, attempts, row, rows, status
from tests.support.postgres.write_refusals import refuse, refuse_at_commit, result_of
from tests.support.workers.result_queues import Desk, succeeded, write
from wakeboard.database import db
from wakeboard.runtime.loop.channel import Channel, ChannelLost
from wakeboard.runtime.loop.claim_batch import ClaimBatch, ClaimResult
from wakeboard.runtime.loop.claim_cursor import ClaimCursor
from wakeboard.runtime.loop.claim_planner import ClaimPlan, ClaimPlanner
from wakeboard.runtime.loop.connections import LoopConnection
from wakeboard.runtime.loop.deferred_results import DeferredResults, ResultsWithClaim
from wakeboard.runtime.loop.ended_attempt import EndedAttempt
from wakeboard.runtime.loop.in_flight import RunInFlight, RunsInFlight, run_from_row
from wakeboard.runtime.loop.result_queue import ResultQueue
from wakeboard.runtime.loop.result_writer import ResultWriter
from wakeboard.runtime.worker import Worker

SENTENCE = "not this one"


@pytest.fixture
def channel(database: str) -> Iterator[Channel]:
    opened = Channel(db.connect(database, name="wakeboard claim"))
    yield opened
    opened.close()


def deferred_results(planner: ClaimPlanner) -> tuple[DeferredResults, ResultQueue]:
    """Return the deferred results of a writer without a connection, and the writer's queue."""
    connection = LoopConnection("postgresql://nowhere", "finish", lambda _: None)
    writer = ResultWriter(connection, RunsInFlight(), planner, "w1")
    return writer.deferred, writer.queue


def claim(channel: Channel, ends: ResultsWithClaim | None = None, limit: int = 4) -> ClaimResult:
    """Claim runs of the type mail, which has a limit, and write ``ends`` with them."""
    script = ClaimBatch(
        ClaimPlan([], limit, limited=["mail"]), Worker("w1"), ClaimCursor(), results=ends
    ).script()
    claimed = result_of(channel, script)
    assert isinstance(claimed, ClaimResult)
    return claimed


def held(claimed: ClaimResult) -> list[RunInFlight]:
    return [run_from_row(one, {}, "w1", 30, claimed.sent_ns) for one in claimed.rows]


def ended(claimed: ClaimResult) -> list[EndedAttempt]:
    return [succeeded(one) for one in held(claimed)]


def ids(claimed: ClaimResult) -> list[int]:
    return sorted(one[0] for one in claimed.rows)


def some_runs(connection: Connection, count: int, *bad: int, most: int = 2) -> list[int]:
    """Enqueue runs of a type of which ``most`` may run at once, ``bad`` at these places."""
    a_type(connection, max_running=most)
    return [a_run(connection, payload={"bad": 1} if place in bad else {}) for place in range(count)]


def written_by(connection: Connection, run_id: int) -> Any:
    """Return which transaction wrote the run's row last."""
    return connection.execute("SELECT xmin::text FROM wakeboard.job_runs WHERE id = %s", (run_id,)).fetchone()


def test_an_end_and_the_claim_that_it_makes_room_for_are_one_transaction(
    channel: Channel, connection: Connection
) -> None:
    made = some_runs(connection, 6)
    first = claim(channel)
    assert ids(first) == made[:2], "as many as may run"
    assert claim(channel).rows == []
    desk = Desk()
    ends = ResultsWithClaim(desk.queue, ended(first))
    second = claim(channel, ends)
    assert ids(second) == made[2:4]
    assert sorted(one.run.run_id for one, status in ends.written if status == "succeeded") == made[:2]
    assert len({written_by(connection, one) for one in made[:4]}) == 1
    assert [status(connection, one) for one in made] == ["succeeded"] * 2 + ["running"] * 2 + ["queued"] * 2
    assert len(desk.queue) == 0


def test_how_a_run_ended_makes_no_difference(channel: Channel, connection: Connection) -> None:
    made = some_runs(connection, 4)
    good, bad = ended(claim(channel))
    bad.move, bad.outcome, bad.delay_seconds = "fail", "failed", 60.0
    ends = ResultsWithClaim(Desk().queue, [good, bad])
    assert ids(claim(channel, ends)) == made[2:]
    assert {one.run.run_id: after for one, after in ends.written} == {
        made[0]: "succeeded",
        made[1]: "failed",
    }
    assert [one["outcome"] for run_id in made[:2] for one in attempts(connection, run_id)] == [
        "succeeded",
        "failed",
    ]


@pytest.mark.parametrize("rule", [refuse, refuse_at_commit])
@pytest.mark.parametrize("when", ["new.status = 'succeeded'", "new.status = 'running'"])
def test_whichever_is_refused_the_other_is_made_all_the_same(
    channel: Channel, connection: Connection, rule: Any, when: str
) -> None:
    # Of the runs that end the first is bad, and of those that wait.
    made = some_runs(connection, 6, 0, 2)
    desk = Desk()
    first = claim(channel)
    rule(connection, f"new.payload ? 'bad' AND {when}", SENTENCE)
    ends = ResultsWithClaim(desk.queue, ended(first))
    claimed = claim(channel, ends)
    assert (ends.written, len(desk.queue)) == ([], 2), "left to the writer"
    assert claimed.rows == [], "there is no room yet"
    write(channel, desk.queue, rounds=100)
    is_end = "succeeded" in when
    assert dict(desk.written) == {made[0]: "dead" if is_end else "succeeded", made[1]: "succeeded"}
    claimed = claim(channel)
    assert ids(claimed) == ([made[2], made[3]] if is_end else [made[3], made[4]])
    assert row(connection, made[2])["error_code"] == (None if is_end else "claim_refused")
    assert len(rows(connection, "job_runs", "status = 'running'")) == 2


def test_ends_that_no_claim_takes_along_are_written_in_the_same_round(
    channel: Channel, connection: Connection
) -> None:
    made = some_runs(connection, 2)
    ends = ResultsWithClaim(Desk().queue, ended(claim(channel)))
    script = ClaimBatch(ClaimPlan([], 4), Worker("w1"), ClaimCursor(), results=ends).script()
    assert result_of(channel, script).rows == []
    assert [status(connection, one) for one in made] == ["succeeded"] * 2


def test_an_end_whose_row_somebody_holds_waits_for_the_writer(
    channel: Channel, connection: Connection, other: Connection
) -> None:
    made = some_runs(connection, 4)
    desk = Desk()
    ends = ResultsWithClaim(desk.queue, ended(claim(channel)))
    with other.transaction():
        other.execute("SELECT FROM wakeboard.job_runs WHERE id = %s FOR UPDATE", (made[0],))
        claimed = claim(channel, ends)
        assert ids(claimed) == made[2:3], "for one there is room"
        assert [one.run.run_id for one, _ in ends.written] == made[1:2]
    write(channel, desk.queue)
    assert desk.written == [(made[0], "succeeded")]


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "late"])
def test_ends_whose_claim_gives_no_answer_are_written_again_by_themselves(
    channel: Channel, connection: Connection, database: str, is_lost: bool
) -> None:
    made = some_runs(connection, 4)
    desk = Desk()
    ends = ResultsWithClaim(desk.queue, ended(claim(channel)))
    told: list[Any] = []
    script = ClaimBatch(
        ClaimPlan([], 4, limited=["mail"]), Worker("w1"), ClaimCursor(), results=ends
    ).script()
    channel.run(script, told.append, told.append)
    # The database has done it, and the answer does not come, or comes later.
    select.select([channel.fileno()], [], [], 10)
    if is_lost:
        channel.close()
        assert isinstance(told[0], ChannelLost)
    ends.give_back()
    with db.connect(database, name="wakeboard finish") as raw:
        write(Channel(raw), desk.queue)
    while not told:
        channel.pump()
    assert ends.written == [], "it is told once"
    assert sorted(desk.written) == [(one, "succeeded") for one in made[:2]]
    assert [len(attempts(connection, one)) for one in made] == [1, 1, 0, 0]


def test_runs_that_are_over_in_a_moment_are_waited_for_and_others_are_not() -> None:
    made = ClaimPlanner(2, limited_types=["mail"])
    deferred, _ = deferred_results(made)
    brief = [(run_id, 1, 1, 0, "mail", "{}", *[None] * 9) for run_id in (1, 2)]
    deferred.note_handed_out(brief)
    assert deferred.seconds_to_gather == 0, "nobody knows yet how long they take"
    first, second = (run_from_row(one, {}, "w1", 30, 0) for one in brief)
    for _ in range(20):
        made.observe(first, 0.0001)
    deferred.note_handed_out(brief)
    assert deferred.seconds_to_gather > 0
    deferred.add(succeeded(first))
    assert deferred.seconds_to_gather > 0
    deferred.add(succeeded(second))
    assert deferred.seconds_to_gather == 0, "all have ended"


def test_only_what_ends_of_a_type_with_a_limit_waits_for_a_claim() -> None:
    planner = ClaimPlanner(2, limited_types=["mail"])
    deferred, queue = deferred_results(planner)
    planner.demand.is_wanted = False
    mail, report = (
        run_from_row((1, 1, 1, 0, name, "{}", *[None] * 9), {}, "w1", 30, 0) for name in ("mail", "report")
    )
    deferred.add_succeeded([succeeded(report)])
    assert (len(queue), planner.demand.is_wanted) == (1, False)
    deferred.add_succeeded([succeeded(mail)])
    assert (len(queue), planner.demand.is_wanted) == (1, True), "the claim is sent at once"
    deferred.flush()
    assert len(queue) == 2
