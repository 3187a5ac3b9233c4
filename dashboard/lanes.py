"""The attempts of a run on one line of time: where each bar starts and how wide it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

WIDTH = 1000
# Narrower bars cannot be seen, nor pointed at.
NARROWEST = 8


@dataclass(frozen=True, slots=True)
class Lane:
    """One bar: attempt number, outcome (or running), seconds it took; x and width in WIDTH-ths."""

    attempt: int
    outcome: str
    seconds: float
    x: float
    width: float


def lanes(
    attempts: Sequence[Mapping[Any, Any]], running: tuple[int, datetime] | None, now: datetime
) -> list[Lane]:
    """Return the bars of ``attempts`` (rows of job_attempts, any order), oldest first.

    ``running`` is (attempt, started_at) of the attempt under way, whose bar ends ``now``.
    """
    spans = sorted(
        (row["started_at"], max(row["finished_at"], row["started_at"]), row["attempt"], row["outcome"])
        for row in attempts
    )
    if running:
        spans.append((running[1], max(now, running[1]), running[0], "running"))
    if not spans:
        return []
    first, last = spans[0][0], max(end for _, end, _, _ in spans)
    whole = max((last - first).total_seconds(), 0.001)
    room = WIDTH - NARROWEST
    return [
        Lane(
            attempt,
            outcome,
            (end - start).total_seconds(),
            round((start - first).total_seconds() / whole * room, 1),
            round(max((end - start).total_seconds() / whole * room, NARROWEST), 1),
        )
        for start, end, attempt, outcome in spans
    ]
