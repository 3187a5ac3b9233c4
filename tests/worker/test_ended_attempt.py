"""What is decided of an attempt that ended: by what the child said, and by what was done to the run."""

from __future__ import annotations

import pytest

from tests.support.workers.ended_attempts import decided, held
from wakeboard.core.outcome import PLAIN, AttemptResult, Kind
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.ended_attempt import decide_end, release_bystander
from wakeboard.runtime.loop.in_flight import StopReason


@pytest.mark.parametrize(
    ("kind", "reason", "move", "outcome", "code"),
    [
        ("returned", None, "succeed", "succeeded", "code"),
        ("returned", StopReason.TIMEOUT, "succeed", "succeeded", "code"),
        ("returned", StopReason.MEMORY, "succeed", "succeeded", "code"),
        ("raised", None, "fail", "failed", "code"),
        ("raised", StopReason.CANCEL, "fail", "failed", "code"),
        ("raised", StopReason.SHUTDOWN, "fail", "failed", "code"),
        ("crashed", None, "fail", "failed", "code"),
        ("timed_out", None, "fail", "timed_out", "code"),
        ("crashed", StopReason.TIMEOUT, "fail", "timed_out", "timed_out"),
        ("cancelled", StopReason.CANCEL, "fail", "cancelled", "cancelled"),
        ("crashed", StopReason.CANCEL, "fail", "cancelled", "cancelled"),
        ("timed_out", StopReason.CANCEL, "fail", "cancelled", "cancelled"),
        ("crashed", StopReason.MEMORY, "fail", "failed", "memory_limit"),
        ("crashed", StopReason.LEASE_UNCONFIRMED, "fail", "failed", "lease_unconfirmed"),
        ("crashed", StopReason.LEASE_LOST, "fail", "failed", "code"),
        ("cancelled", StopReason.SHUTDOWN, "release", "released", "code"),
        ("crashed", StopReason.SHUTDOWN, "release", "released", "code"),
        ("timed_out", StopReason.SHUTDOWN, "release", "released", "code"),
    ],
)
def test_how_an_attempt_ended_is_decided_by_its_answer_and_why_it_was_stopped(
    kind: Kind, reason: StopReason | None, move: str, outcome: str, code: str
) -> None:
    ended = decided(kind, stop_reason=reason, memory_mb=1)
    assert (ended.move, ended.outcome, ended.answer.error_code) == (move, outcome, code)


@pytest.mark.parametrize(
    ("reasons", "counts"),
    [
        ((StopReason.CANCEL, StopReason.MEMORY), StopReason.CANCEL),
        ((StopReason.MEMORY, StopReason.CANCEL), StopReason.CANCEL),
        ((StopReason.TIMEOUT, StopReason.CANCEL), StopReason.TIMEOUT),
        ((StopReason.SHUTDOWN, StopReason.MEMORY), StopReason.MEMORY),
        ((StopReason.SHUTDOWN, StopReason.LEASE_UNCONFIRMED), StopReason.LEASE_UNCONFIRMED),
        ((StopReason.CANCEL, StopReason.SHUTDOWN), StopReason.CANCEL),
    ],
)
def test_of_several_reasons_one_counts_whichever_came_first(
    reasons: tuple[StopReason, ...], counts: StopReason
) -> None:
    run = held()
    for reason in reasons:
        run.add_stop_reason(reason)
    assert run.stop_reason is counts


def test_a_run_that_was_too_heavy_says_by_how_much() -> None:
    ended = decided("crashed", stop_reason=StopReason.MEMORY, memory_bytes=900 * 2**20, memory_mb=500)
    assert ended.answer.error_code == "memory_limit"
    assert ended.answer.message == "held 900 MB of memory, where its type may hold 500 MB, and was killed"
    assert not ended.answer.permanent


def test_a_run_whose_process_was_killed_for_another_is_given_back_and_says_why() -> None:
    ended = release_bystander(
        held(), AttemptResult("crashed", "killed"), took_seconds=1, ended_ns=boottime_ns()
    )
    assert (ended.move, ended.outcome, ended.has_started) == ("release", "released", True)
    assert "another run" in (ended.answer.note or "")


def test_what_a_transaction_has_finished_is_not_written_again() -> None:
    assert decide_end(held(), PLAIN["committed"], took_seconds=1, ended_ns=1) is None


def test_the_delay_is_the_types_rule_or_what_the_handler_asked_for() -> None:
    assert decided("raised").delay_seconds == 7
    answer = AttemptResult("raised", error_code="busy", retry_after_seconds=90)
    ended = decide_end(held(), answer, took_seconds=1, ended_ns=1)
    assert ended is not None
    assert ended.delay_seconds == 90
