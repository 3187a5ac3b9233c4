"""Turns the measurements of the rehearsal into the lines of its table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

REFUSAL = "smtp_451"


@dataclass(frozen=True, slots=True)
class RehearsalFinding:
    """One line: what was measured, what was expected, what it was, and whether that is as expected."""

    what: str
    expected: str
    measured: str
    is_ok: bool


@dataclass(frozen=True, slots=True)
class RehearsalReport:
    """The table, and how many ``seconds`` the rehearsal took."""

    findings: Sequence[RehearsalFinding]
    seconds: float
    with_effects: bool

    @property
    def is_ok(self) -> bool:
        """Whether every line is as expected."""
        return all(each.is_ok for each in self.findings)


class ReceiptAttempt(NamedTuple):
    """An ended attempt at a receipt; ``is_found``: its mail was in the inbox already."""

    run_id: int
    outcome: str
    error_code: str | None
    worker_id: str
    is_found: bool


class CancelledRun(NamedTuple):
    """A cancelled run: its state, and how many seconds after the cancel it last showed a sign of work."""

    how: str
    status: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything that was measured.

    ``states`` counts receipts by state. ``refused_runs`` are those whose mail was to be refused once.
    ``stopped_code`` is the exit code after SIGTERM, None if the worker did not end in time. ``lost_claims``
    counts the runs that the killed worker had, ``unanswered`` its accepted mails without an answer. ``left``
    names what still ran at the end.
    """

    states: Mapping[str, int]
    attempts: Sequence[ReceiptAttempt]
    refused_runs: frozenset[int]
    stopped_worker: str
    stopped_code: int | None
    killed_worker: str
    lost_claims: int
    unanswered: int
    message_ids: Sequence[str]
    cancelled: Sequence[CancelledRun]
    cancel_seconds: float
    left: Sequence[str]


def findings(measured: Measurements, *, with_effects: bool) -> list[RehearsalFinding]:
    """Return the lines of the table, in the order of the rehearsal."""
    receipts = sum(measured.states.values())
    lookups = [_lookups(measured)] if with_effects else []
    return [
        _receipts(measured, receipts),
        _stop(measured),
        _retries(measured),
        *lookups,
        _mailbox(measured, receipts),
        _cancels(measured),
        RehearsalFinding("left running", "nothing", ", ".join(measured.left) or "nothing", not measured.left),
    ]


def _receipts(measured: Measurements, receipts: int) -> RehearsalFinding:
    states = ", ".join(f"{count} {state}" for state, count in sorted(measured.states.items()))
    is_ok = measured.states == {"succeeded": receipts}
    return RehearsalFinding("receipts", f"{receipts} succeeded", states, is_ok)


def _stop(measured: Measurements) -> RehearsalFinding:
    cut = sum(
        each.worker_id == measured.stopped_worker and each.outcome in ("lost", "released")
        for each in measured.attempts
    )
    code = "no end in time" if measured.stopped_code is None else f"exit {measured.stopped_code}"
    is_ok = measured.stopped_code == 0 and not cut
    return RehearsalFinding(
        "restart by SIGTERM", "exit 0, 0 mails cut short", f"{code}, {cut} mails cut short", is_ok
    )


def _retries(measured: Measurements) -> RehearsalFinding:
    refused = Counter(each.run_id for each in measured.attempts if each.error_code == REFUSAL)
    lost = [each for each in measured.attempts if each.outcome == "lost"]
    others = len(measured.attempts) - refused.total() - len(lost) - measured.states.get("succeeded", 0)
    is_ok = (
        refused == Counter(measured.refused_runs)
        and len(lost) == measured.lost_claims
        and all(each.worker_id == measured.killed_worker for each in lost)
        and not others
    )
    expected = _counts(len(measured.refused_runs), measured.lost_claims, 0)
    return RehearsalFinding("retries", expected, _counts(refused.total(), len(lost), others), is_ok)


def _counts(refused: int, lost: int, others: int) -> str:
    return f"{refused} refused, {lost} lost by SIGKILL, {others} others"


def _lookups(measured: Measurements) -> RehearsalFinding:
    found = sum(each.is_found for each in measured.attempts)
    expected = f"{measured.unanswered} found by Message-ID"
    return RehearsalFinding(
        "unconfirmed mails", expected, f"{found} found by Message-ID", found == measured.unanswered
    )


def _mailbox(measured: Measurements, receipts: int) -> RehearsalFinding:
    messages, distinct = len(measured.message_ids), len(set(measured.message_ids))
    return RehearsalFinding(
        "mailbox",
        f"{receipts} distinct, {receipts} in all",
        f"{distinct} distinct, {messages} in all",
        messages == distinct == receipts,
    )


def _cancels(measured: Measurements) -> RehearsalFinding:
    runs = ", ".join(
        f"{each.how} {each.seconds:.1f} s" + ("" if each.status == "cancelled" else f" ({each.status})")
        for each in measured.cancelled
    )
    is_ok = all(
        each.status == "cancelled" and each.seconds <= measured.cancel_seconds for each in measured.cancelled
    )
    return RehearsalFinding("cancelled work", f"stopped within {measured.cancel_seconds:g} s", runs, is_ok)
