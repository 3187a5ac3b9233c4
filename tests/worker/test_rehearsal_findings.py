"""The rehearsal's table says *not so* exactly where something went wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wakeboard.demo.rehearsal.findings import CancelledRun, Measurements, ReceiptAttempt, findings

RECEIPTS, REFUSED = range(1, 101), frozenset(range(5, 101, 5))
LOST = (61, 62, 63)


def attempt(
    run_id: int, outcome: str, error_code: str | None = None, worker: str = "c", **more: Any
) -> ReceiptAttempt:
    return ReceiptAttempt(run_id, outcome, error_code, worker, bool(more.get("found")))


REFUSALS = [attempt(run_id, "failed", "smtp_451", "a") for run_id in sorted(REFUSED)]
LOSSES = [attempt(run_id, "lost", "lost", "b") for run_id in LOST]
SUCCESSES = [attempt(run_id, "succeeded", found=run_id in LOST) for run_id in RECEIPTS]
MAILS = [f"<{number}>" for number in RECEIPTS]
WELL = Measurements(
    states={"succeeded": 100},
    attempts=[*REFUSALS, *LOSSES, *SUCCESSES],
    refused_runs=REFUSED,
    stopped_worker="a",
    stopped_code=0,
    killed_worker="b",
    lost_claims=3,
    unanswered=3,
    message_ids=MAILS,
    cancelled=[CancelledRun("patient", "cancelled", 0.1), CancelledRun("deaf", "cancelled", 2.1)],
    cancel_seconds=5,
    left=[],
)


def not_so(evidence: Measurements, with_effects: bool = True) -> list[str]:
    return [each.what for each in findings(evidence, with_effects=with_effects) if not each.is_ok]


def test_when_all_went_well_every_line_is_ok() -> None:
    assert not_so(WELL) == []
    assert len(findings(WELL, with_effects=True)) == 7


WRONGS: list[tuple[str, dict[str, Any]]] = [
    ("receipts", {"states": {"succeeded": 99, "dead": 1}, "attempts": WELL.attempts[:-1]}),
    ("restart by SIGTERM", {"stopped_code": None}),
    ("restart by SIGTERM", {"stopped_code": -9}),
    ("retries", {"attempts": WELL.attempts[1:]}),
    ("retries", {"attempts": [*WELL.attempts, REFUSALS[0]]}),
    ("retries", {"attempts": [*WELL.attempts, attempt(1, "timed_out")]}),
    ("retries", {"attempts": [*WELL.attempts, attempt(1, "lost")]}),
    ("retries", {"lost_claims": 4}),
    ("retries", {"killed_worker": "c"}),
    ("unconfirmed mails", {"unanswered": 4}),
    ("mailbox", {"message_ids": [*MAILS, MAILS[0]]}),
    ("mailbox", {"message_ids": MAILS[1:]}),
    ("mailbox", {"message_ids": [*MAILS[1:], MAILS[1]]}),
    ("cancelled work", {"cancelled": [CancelledRun("deaf", "cancelled", 5.1)]}),
    ("cancelled work", {"cancelled": [CancelledRun("deaf", "running", 1.0)]}),
    ("left running", {"left": ["1 runs"]}),
]


@pytest.mark.parametrize(("line", "change"), WRONGS)
def test_what_went_wrong_is_not_so_in_its_own_line_and_in_no_other(line: str, change: dict[str, Any]) -> None:
    assert not_so(replace(WELL, **change)) == [line]


def test_a_mail_that_the_stopped_worker_cut_short_is_told_of() -> None:
    cut = [*WELL.attempts, attempt(1, "released", worker="a")]
    assert not_so(replace(WELL, attempts=cut)) == ["restart by SIGTERM", "retries"]


def test_without_effects_nothing_is_looked_up_so_nothing_is_said_of_it() -> None:
    assert not_so(replace(WELL, unanswered=4), with_effects=False) == []
