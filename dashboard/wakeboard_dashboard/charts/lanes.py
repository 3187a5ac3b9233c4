"""The attempts of a run as lanes over time: when each waited, when it ran. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wakeboard_dashboard.text.formats import Row

WIDTH = 1000
# Narrower bars could be neither seen nor pointed at.
NARROWEST = 8
# The most lanes that are drawn; the newest are.
MOST = 20


@dataclass(frozen=True, slots=True)
class AttemptLane:
    """One attempt: its number, outcome (or running), the seconds it waited for a worker once due and took.

    The bar is at ``x``, ``width`` wide, in WIDTH-ths of the whole time, the wait before it from ``wait_x``.
    """

    attempt: int
    outcome: str
    due_at: datetime
    started_at: datetime
    waited: float
    seconds: float
    x: int
    width: int
    wait_x: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes, the oldest first, and the time from the first one's being due to the last one's end."""

    lanes: tuple[AttemptLane, ...]
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class _Span:
    started_at: datetime
    ended_at: datetime
    attempt: int
    outcome: str
    due_at: datetime


def lanes(attempts: Sequence[Row], running: Row | None, now: datetime) -> Lanes | None:
    """Return the newest MOST of ``attempts`` (rows of job_attempts, any order) on one scale; None for none.

    ``running``: the row of job_runs whose attempt is under way and ends ``now``, None when none is.
    """
    spans = [
        _span(row["due_at"], row["started_at"], row["finished_at"], row["attempt"], row["outcome"])
        for row in attempts
    ]
    if running:
        spans.append(_span(running["run_at"], running["started_at"], now, running["attempts"], "running"))
    spans = sorted(spans, key=lambda span: (span.started_at, span.attempt))[-MOST:]
    if not spans:
        return None
    first, last = min(span.due_at for span in spans), max(span.ended_at for span in spans)
    whole = max((last - first).total_seconds(), 0.001)
    return Lanes(tuple(_lane(span, first, whole) for span in spans), first, last)


def _span(due: datetime, started: datetime, ended: datetime, attempt: int, outcome: str) -> _Span:
    """Return a span whose times go forward, also where clocks did not."""
    return _Span(started, max(ended, started), attempt, outcome, min(due, started))


def _lane(span: _Span, first: datetime, whole: float) -> AttemptLane:
    def place(moment: datetime) -> int:
        # Whole numbers: a bar that grows makes a new picture only when something is to be seen.
        return round((moment - first) / timedelta(seconds=whole) * (WIDTH - NARROWEST))

    x = place(span.started_at)
    return AttemptLane(
        span.attempt,
        span.outcome,
        span.due_at,
        span.started_at,
        (span.started_at - span.due_at).total_seconds(),
        (span.ended_at - span.started_at).total_seconds(),
        x,
        max(place(span.ended_at) - x, NARROWEST),
        place(span.due_at),
    )
