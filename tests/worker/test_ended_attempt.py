"""What is decided of an attempt that ended: by what the child said, and by what was done to the run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.workers.ended_attempts import decided, held
from wakeboard.core.outcome import PLAIN, AttemptResult, Kind
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.ended_attempt import decide_end, release_bystander


@pytest.mark.parametrize(
    ("kind", "columns", "is_stopping", "move", "outcome"),
    [
        ("returned", {}, False, "succeed", "succeeded"),
        ("returned", {"terminated_ns": 1, "is_timed_out": True}, True, "succeed", "succeeded"),
        ("raised", {}, False, "fail", "failed"),
        ("raised", {}, True, "fail", "failed"),
        ("crashed", {}, True, "fail", "failed"),
        ("crashed", {"terminated_ns": 1, "is_timed_out": True}, False, "fail", "timed_out"),
        ("timed_out", {}, False, "fail", "timed_out"),
        ("cancelled", {"cancel_requested_ns": 1}, False, "fail", "cancelled"),
        ("crashed", {"cancel_requested_ns": 1, "terminated_ns": 1}, False, "fail", "cancelled"),
        ("crashed", {"terminated_ns": 1, "is_fenced": True}, False, "fail", "failed"),
        ("crashed", {"terminated_ns": 1, "memory_bytes": 1, "memory_mb": 1}, True, "fail", "failed"),
        (
            "crashed",
            {"terminated_ns": 1, "memory_bytes": 1, "memory_mb": 1, "cancel_requested_ns": 1},
            False,
            "fail",
            "cancelled",
        ),
        ("returned", {"terminated_ns": 1, "memory_bytes": 1, "memory_mb": 1}, False, "succeed", "succeeded"),
        ("cancelled", {"terminated_ns": 1}, True, "release", "released"),
        ("crashed", {"terminated_ns": 1}, True, "release", "released"),
        ("cancelled", {"terminated_ns": 1, "cancel_requested_ns": 1}, True, "fail", "cancelled"),
    ],
)
def test_how_an_attempt_ended_is_decided_by_what_was_done_to_it(
    kind: Kind, columns: dict[str, Any], is_stopping: bool, move: str, outcome: str
) -> None:
    ended = decided(kind, is_stopping=is_stopping, **columns)
    assert (ended.move, ended.outcome) == (move, outcome)


def test_a_run_that_was_too_heavy_says_by_how_much() -> None:
    ended = decided("crashed", terminated_ns=1, memory_bytes=900 * 2**20, memory_mb=500)
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
    assert decide_end(held(), PLAIN["committed"], took_seconds=1, ended_ns=1, is_stopping=False) is None


def test_the_delay_is_the_types_rule_or_what_the_handler_asked_for() -> None:
    assert decided("raised").delay_seconds == 7
    answer = AttemptResult("raised", error_code="busy", retry_after_seconds=90)
    ended = decide_end(held(), answer, took_seconds=1, ended_ns=1, is_stopping=False)
    assert ended is not None
    assert ended.delay_seconds == 90
