"""What the dispatcher makes of answers: whose run has ended, and what is left with each slot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worker.test_claim_planner import claimed, claims
from wakeboard.core.outcome import AttemptResult
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.loop.connections import LoopConnection
from wakeboard.runtime.loop.dispatcher import Dispatcher
from wakeboard.runtime.loop.ended_attempt import EndedAttempt
from wakeboard.runtime.loop.in_flight import RunsInFlight
from wakeboard.runtime.loop.result_writer import ResultWriter
from wakeboard.runtime.processes.children import Children
from wakeboard.runtime.processes.protocol import AttemptEnd, ChildExit, SuccessBatch
from wakeboard.runtime.worker import Worker


class Desk:
    """A dispatcher without a child, and a writer without a connection, which keeps what ended."""

    def __init__(self, made: ClaimPlanner | None = None) -> None:
        self.claims = made or claims("mail")
        self.in_flight = RunsInFlight()
        self.children = Children(2, app=None)
        connection = LoopConnection("postgresql://nowhere", "finish", lambda _: None)
        writer = ResultWriter(connection, self.in_flight, self.claims, "w")
        self.queue = writer.queue
        self.dispatcher = Dispatcher(Worker("w"), self.children, self.in_flight, self.claims, writer)

    @property
    def ended(self) -> list[EndedAttempt]:
        return list(self.queue.waiting())

    def take(self, runs: int) -> list[Assignment]:
        """Let the dispatcher take ``runs``; return what the first slot was given, in order."""
        self.dispatcher.take([claimed("mail", run_id) for run_id in range(1, runs + 1)], boottime_ns())
        return [held.assignment for held in self.in_flight.all() if held.slot == 0]

    @property
    def outstanding(self) -> list[int]:
        return [load.outstanding for load in self.dispatcher.loads]

    @property
    def succeeded(self) -> list[int]:
        return [one.run.run_id for one in self.ended if one.move == "succeed"]


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.children.kill_all()


def test_what_returned_leaves_its_slot_and_waits_to_be_written(desk: Desk) -> None:
    first, second, third = desk.take(6)
    desk.dispatcher.handle_returned(SuccessBatch(0, [(first, 1_000, 5_001_000), (second, 9_000, 8_000)]))
    assert [(one.run.assignment, one.took_seconds, one.ended_ns) for one in desk.ended] == [
        (first, 0.005, 5_001_000), (second, 0.0, 8_000),
    ]  # fmt: skip
    assert desk.outstanding == [1, 3]
    held = desk.in_flight.get(*third[:2])
    assert held is not None
    assert held.slot == 0


def test_what_returned_is_decided_as_any_other_answer(desk: Desk) -> None:
    first, second, _ = desk.take(6)
    desk.dispatcher.handle_returned(SuccessBatch(0, [(first, 1_000, 5_000)]))
    desk.dispatcher.handle_finished(AttemptEnd(0, second, desk.ended[0].answer, 1_000, 5_000))
    at_once, singly = desk.ended
    assert vars(at_once) | {"run": None} == vars(singly) | {"run": None}


def test_a_run_that_is_not_ours_any_more_or_returns_twice_ends_nothing(desk: Desk) -> None:
    first, second, third = desk.take(6)
    desk.in_flight.forget([second[:2]])
    desk.dispatcher.handle_returned(
        SuccessBatch(0, [(first, 1, 2), (second, 2, 3), (third, 3, 4), (first, 5, 6)])
    )
    assert desk.succeeded == [first.run_id, third.run_id]
    assert desk.outstanding == [1, 3]


@pytest.mark.parametrize(("has_begun", "is_hindered"), [(True, False), (False, True)])
def test_only_children_that_end_before_they_begin_a_run_are_a_sign_of_a_broken_start(
    desk: Desk, has_begun: bool, is_hindered: bool
) -> None:
    for run in desk.take(6):
        desk.dispatcher.handle_died(
            ChildExit(0, "ended", None, AttemptResult("raised"), [run], has_begun=has_begun)
        )
    assert (desk.claims.demand.block_reason is not None) == is_hindered


def test_of_a_quick_type_a_run_with_one_try_waits_behind_no_other(desk: Desk) -> None:
    rows = [claimed("mail", run_id) for run_id in range(1, 6)]
    rows[3] = (*rows[3][:10], 1, *rows[3][11:])
    desk.dispatcher.take(rows, boottime_ns())
    assert [(one.run.run_id, one.move, one.has_started) for one in desk.ended] == [(4, "release", False)]
    assert desk.outstanding == [2, 2]


def test_runs_with_one_try_that_are_listed_may_wait_for_one_another(desk: Desk) -> None:
    rows = [(*claimed("mail", run_id)[:10], 1, *claimed("mail", run_id)[11:]) for run_id in range(1, 5)]
    desk.dispatcher.take(rows, boottime_ns(), {"mail"})
    assert (desk.ended, desk.outstanding) == ([], [2, 2])
    assert all(held.assignment.is_listed for held in desk.in_flight.all())


def test_of_a_brief_type_with_a_limit_no_run_is_lost_behind_one_with_one_try_that_is_not_listed(
    desk: Desk,
) -> None:
    desk.claims.limited_types = ["mail"]
    for _ in range(20):
        desk.claims._pace("mail").observe(0.0001, is_only_try=False)
    desk.dispatcher.take([claimed("mail", run_id) for run_id in range(1, 5)], boottime_ns())
    single = [(*claimed("mail", run_id)[:10], 1, *claimed("mail", run_id)[11:]) for run_id in range(5, 13)]
    desk.dispatcher.take(single, boottime_ns())
    assert sorted(one.run.run_id for one in desk.ended) == list(range(6, 13)), "each goes back"
    assert desk.outstanding == [4, 1]


def test_a_process_that_cannot_say_what_it_begins_ends_claims_ahead_of_only_tries(desk: Desk) -> None:
    first, *_ = desk.take(6)
    desk.claims.note_only_try("mail")
    desk.dispatcher.handle_finished(
        AttemptEnd(0, first, AttemptResult("unbegun", message="too many connections"), 1, 1)
    )
    assert [(one.run.assignment, one.move, one.has_started) for one in desk.ended] == [
        (first, "release", False)
    ]
    assert not desk.claims.is_quick("mail")


def test_a_run_that_takes_its_process_with_it_makes_its_type_slow(desk: Desk) -> None:
    first, *others = desk.take(6)
    assert desk.claims.is_quick("mail")
    answer = AttemptResult("crashed", "killed", "killed")
    desk.dispatcher.handle_died(ChildExit(0, "died", first, answer, others, 1, False, False, True))
    assert not desk.claims.is_quick("mail"), "each such end gives back all that waits behind it"
