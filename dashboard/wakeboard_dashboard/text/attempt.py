"""What followed an attempt, in words: the delay before the next one and its reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from wakeboard.core.retry import Backoff
from wakeboard.core.states import FAILURES, Outcome
from wakeboard_dashboard.text.formats import Row, between

# Times that differ by no more are equal: a row is written a moment after its delay was drawn.
SLACK = timedelta(seconds=1)
# A backoff has reached its longest delay by then.
MOST_STEPS = 50


def describe_followups(ended: Sequence[Row], run: Row) -> dict[int, str]:
    """Return sentences by lease_epoch: what followed each of the ``ended`` attempts, newest first.

    ``run`` is their run, a row of job_runs with ``backoff``, the rule of its type today.
    """
    sentences = {}
    next_due_at: datetime | None = run["run_at"]
    for place, attempt in enumerate(ended):
        is_newest = place == 0
        sentences[attempt["lease_epoch"]] = _followup(attempt, run, next_due_at, is_newest=is_newest)
        next_due_at = attempt["due_at"]
    return sentences


def _followup(attempt: Row, run: Row, next_due_at: datetime | None, *, is_newest: bool) -> str:
    if attempt["outcome"] == Outcome.RELEASED:
        return "given back, at no cost: its worker stopped before it ended"
    if attempt["outcome"] not in FAILURES:
        return ""
    if attempt["next_run_at"] is None:
        return _last_word(attempt, run, is_newest=is_newest)
    sentence = _waited(attempt, run["backoff"])
    if next_due_at is not None and next_due_at < attempt["next_run_at"] - SLACK:
        early = between(max(next_due_at, attempt["finished_at"]), attempt["next_run_at"])
        return f"{sentence}; brought forward by {early}: somebody retried it"
    return sentence


def _last_word(attempt: Row, run: Row, *, is_newest: bool) -> str:
    if is_newest and run["status"] == "dead":
        return "gave up"
    if not is_newest or run["status"] != "cancelled":
        return "gave up, until somebody retried it"
    return "gave up; cancelled later" if run["finished_at"] > attempt["finished_at"] + SLACK else "cancelled"


def _waited(attempt: Row, rule: str) -> str:
    """Return ``next try after 4 min, by the backoff of its type``, or what else set the delay."""
    ended, due = attempt["finished_at"], attempt["next_run_at"]
    if due <= ended:
        return "next try at once: a lost lease is taken over without a wait"
    delay = between(ended, due)
    if _is_of(rule, (due - ended).total_seconds()):
        return f"next try after {delay}, by the backoff of its type"
    return (
        f"next try after {delay}: not by the rule of its type today, so its handler asked or the rule changed"
    )


def _is_of(rule: str, seconds: float) -> bool:
    """Return whether the backoff ``rule``, with its jitter, can have given this delay."""
    backoff = Backoff.parse_or_default(rule)
    slack = SLACK.total_seconds()
    return any(
        backoff.delay_seconds(step, 0) - slack <= seconds <= backoff.delay_seconds(step, 1) + slack
        for step in range(1, MOST_STEPS)
    )
