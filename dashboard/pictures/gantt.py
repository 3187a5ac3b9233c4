"""The fleet on one line of time: when each type was busy, as bars of a bounded number. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from dashboard.queries.errors import Window
from worker.nights.minutes import SLICES, Slice

WIDTH = 1000
# Narrower bars cannot be seen, nor pointed at.
NARROWEST = 4
TICKS = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch in which a type was busy without a pause worth drawing; x and width in WIDTH-ths."""

    first_at: datetime
    last_at: datetime
    attempts: int
    failed: int
    x: float = 0
    width: float = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """One type: its busy stretches, where attempts failed (``marks``, bars too), and what still runs."""

    job_type: str
    bars: Sequence[Bar]
    marks: Sequence[Bar]
    running: Bar | None = None

    @property
    def attempts(self) -> int:
        """The attempts that ended in the window."""
        return sum(bar.attempts for bar in self.bars)

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return sum(bar.failed for bar in self.bars)

    @property
    def first_at(self) -> datetime:
        """When its first attempt began, at the earliest when the window began."""
        return min(bar.first_at for bar in (*self.bars, *([self.running] if self.running else [])))

    @property
    def last_at(self) -> datetime:
        """When its last attempt ended, or now while one runs."""
        return max(bar.last_at for bar in (*self.bars, *([self.running] if self.running else [])))


def lanes(
    window: Window, types: Sequence[str], slices: Iterable[Slice], running: Mapping[str, Any], now: datetime
) -> list[Lane]:
    """Return a lane for each of ``types`` that was busy, in their order.

    ``running`` maps types to (when the longest running began, how many run); their bars end ``now``.
    """
    by_type: dict[str, list[Slice]] = {name: [] for name in types}
    for piece in slices:
        by_type[piece.job_type].append(piece)
    found = []
    for name, pieces in by_type.items():
        under_way = None
        if name in running and running[name][0] < window.until:
            first_at, runs = running[name]
            under_way = _placed(window, Bar(max(first_at, window.since), min(now, window.until), runs, 0))
        bars = [_placed(window, bar) for bar in _merged(window, pieces)]
        if bars or under_way:
            found.append(Lane(name, bars, _marks(window, pieces), under_way))
    return found


def _length(window: Window) -> timedelta:
    return (window.until - window.since) / SLICES


def _merged(window: Window, pieces: Sequence[Slice]) -> list[Bar]:
    """Return the stretches that ``pieces`` make; a pause shorter than a slice is none."""
    merged: list[Bar] = []
    for piece in sorted(pieces, key=lambda piece: piece.first_at):
        first_at, last_at = max(piece.first_at, window.since), min(piece.last_at, window.until)
        if merged and first_at - merged[-1].last_at < _length(window):
            before = merged[-1]
            merged[-1] = replace(
                before,
                last_at=max(before.last_at, last_at),
                attempts=before.attempts + piece.attempts,
                failed=before.failed + piece.failed,
            )
        else:
            merged.append(Bar(first_at, last_at, piece.attempts, piece.failed))
    return merged


def _marks(window: Window, pieces: Sequence[Slice]) -> list[Bar]:
    """Return a bar for each row of slices in which attempts failed."""
    length = _length(window)
    marks: list[Bar] = []
    for piece in sorted((piece for piece in pieces if piece.failed), key=lambda piece: piece.place):
        start, end = window.since + piece.place * length, window.since + (piece.place + 1) * length
        if marks and marks[-1].last_at == start:
            attempts, failed = marks[-1].attempts + piece.attempts, marks[-1].failed + piece.failed
            marks[-1] = replace(marks[-1], last_at=end, attempts=attempts, failed=failed)
        else:
            marks.append(Bar(start, end, piece.attempts, piece.failed))
    return [_placed(window, mark) for mark in marks]


def _placed(window: Window, bar: Bar) -> Bar:
    """Return ``bar`` with its place on the line."""
    whole = window.until - window.since
    start = (bar.first_at - window.since) / whole * WIDTH
    width = max((bar.last_at - bar.first_at) / whole * WIDTH, NARROWEST)
    return replace(bar, x=round(min(start, WIDTH - NARROWEST), 1), width=round(min(width, WIDTH - start), 1))


def ticks(window: Window) -> list[datetime]:
    """Return TICKS + 1 moments that part the window evenly, both ends included."""
    return [window.since + (window.until - window.since) * step / TICKS for step in range(TICKS + 1)]
