"""What the rehearsal measured → the lines of its table. Pure: asks nobody, prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

REFUSAL = "smtp_451"


@dataclass(frozen=True, slots=True)
class RehearsalFinding:
    """One line: what was looked at, what it should be, what it was, and whether that is so."""

    what: str
    expected: str
    measured: str
    is_so: bool


@dataclass(frozen=True, slots=True)
class RehearsalReport:
    """The whole table. ``seconds`` is how long the rehearsal took."""

    findings: Sequence[RehearsalFinding]
    seconds: float
    with_effects: bool

    @property
    def is_so(self) -> bool:
        """Whether every line is as expected."""
        return all(each.is_so for each in self.findings)


@dataclass(frozen=True, slots=True)
class ReceiptAttempt:
    """One ended attempt at a receipt; ``found`` when its mail was found sent already."""

    run_id: int
    outcome: str
    error_code: str | None
    worker_id: str
    found: bool


@dataclass(frozen=True, slots=True)
class CancelledRun:
    """One cancelled run: its state, and how many seconds after the cancel it last showed a sign of work."""

    how: str
    status: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was measured.

    ``states`` counts receipts by state; ``refused_runs`` are those whose mail was to be refused once;
    ``lost_claims`` is what the killed worker held; ``unanswered`` the mails it had handed over without having
    been told so; ``stopped_code`` the exit code after SIGTERM (None: it did not end in time).
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


def findings(evidence: Evidence, *, with_effects: bool) -> list[RehearsalFinding]:
    """Return the lines of the table, in the order of the rehearsal."""
    receipts = sum(evidence.states.values())
    looked_up = [_looked_up(evidence)] if with_effects else []
    return [
        _states(evidence, receipts),
        _stop(evidence),
        _retries(evidence),
        *looked_up,
        _mailbox(evidence, receipts),
        _cancelled(evidence),
        RehearsalFinding("left running", "nothing", ", ".join(evidence.left) or "nothing", not evidence.left),
    ]


def _states(evidence: Evidence, receipts: int) -> RehearsalFinding:
    measured = ", ".join(f"{count} {state}" for state, count in sorted(evidence.states.items()))
    return RehearsalFinding(
        "receipts", f"{receipts} succeeded", measured, evidence.states == {"succeeded": receipts}
    )


def _stop(evidence: Evidence) -> RehearsalFinding:
    cut = sum(
        each.worker_id == evidence.stopped_worker and each.outcome in ("lost", "released")
        for each in evidence.attempts
    )
    code = "no end in time" if evidence.stopped_code is None else f"exit {evidence.stopped_code}"
    is_so = evidence.stopped_code == 0 and not cut
    return RehearsalFinding(
        "restart by SIGTERM", "exit 0, 0 mails cut short", f"{code}, {cut} mails cut short", is_so
    )


def _retries(evidence: Evidence) -> RehearsalFinding:
    refused = Counter(each.run_id for each in evidence.attempts if each.error_code == REFUSAL)
    lost = [each for each in evidence.attempts if each.outcome == "lost"]
    others = len(evidence.attempts) - refused.total() - len(lost) - evidence.states.get("succeeded", 0)
    is_so = (
        refused == Counter(evidence.refused_runs)
        and len(lost) == evidence.lost_claims
        and all(each.worker_id == evidence.killed_worker for each in lost)
        and not others
    )
    expected = _counts(len(evidence.refused_runs), evidence.lost_claims, 0)
    return RehearsalFinding("retries", expected, _counts(refused.total(), len(lost), others), is_so)


def _counts(refused: int, lost: int, others: int) -> str:
    return f"{refused} refused, {lost} lost by SIGKILL, {others} others"


def _looked_up(evidence: Evidence) -> RehearsalFinding:
    found = sum(each.found for each in evidence.attempts)
    expected = f"{evidence.unanswered} found by Message-ID"
    return RehearsalFinding(
        "unconfirmed mails", expected, f"{found} found by Message-ID", found == evidence.unanswered
    )


def _mailbox(evidence: Evidence, receipts: int) -> RehearsalFinding:
    messages, distinct = len(evidence.message_ids), len(set(evidence.message_ids))
    return RehearsalFinding(
        "mailbox",
        f"{receipts} distinct, {receipts} in all",
        f"{distinct} distinct, {messages} in all",
        messages == distinct == receipts,
    )


def _cancelled(evidence: Evidence) -> RehearsalFinding:
    measured = ", ".join(
        f"{each.how} {each.seconds:.1f} s" + ("" if each.status == "cancelled" else f" ({each.status})")
        for each in evidence.cancelled
    )
    is_so = all(
        each.status == "cancelled" and each.seconds <= evidence.cancel_seconds for each in evidence.cancelled
    )
    return RehearsalFinding(
        "cancelled work", f"stopped within {evidence.cancel_seconds:g} s", measured, is_so
    )
