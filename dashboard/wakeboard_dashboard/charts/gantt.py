"""The Gantt chart of a night: when each type was busy, as a bounded number of bars. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.type_activity import BusyTime, Stretch

WIDTH = 1000
# Narrower bars cannot be seen, nor pointed at.
NARROWEST = 4
TICKS = 4
_NEVER = BusyTime((), ())


@dataclass(frozen=True, slots=True)
class BusyBar:
    """A stretch in which a type was busy without a pause worth drawing; x and width in WIDTH-ths."""

    first_at: datetime
    last_at: datetime
    attempts: int
    failed: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class TypeLane:
    """One type: its busy stretches, where attempts failed (``marks``, bars too), and what still runs."""

    job_type: str
    bars: tuple[BusyBar, ...]
    marks: tuple[BusyBar, ...]
    running: BusyBar | None = None

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
    window: TimeWindow,
    types: Sequence[str],
    busy: Mapping[str, BusyTime],
    running: Mapping[str, tuple[datetime, int]],
    now: datetime,
) -> list[TypeLane]:
    """Return a lane for each of ``types`` that was busy, in their order.

    ``running`` maps types to (when the longest running began, how many run); their bars end ``now``.
    """
    found = []
    # A minute that has not ended is known as a whole.
    reached = min(_seconds(window), (now - window.since).total_seconds())
    for name in types:
        stretches, failing = busy.get(name, _NEVER)
        under_way = _running(window, *running[name], now) if name in running else None
        if stretches or under_way:
            bars, marks = _bars(window, stretches, reached), _bars(window, failing, reached)
            found.append(TypeLane(name, bars, marks, under_way))
    return found


def _running(window: TimeWindow, first_at: datetime, runs: int, now: datetime) -> BusyBar | None:
    if first_at >= window.until:
        return None
    start, end = ((moment - window.since).total_seconds() for moment in (first_at, now))
    return _bar(window, max(start, 0), min(end, _seconds(window)), runs, 0)


def _seconds(window: TimeWindow) -> float:
    return (window.until - window.since).total_seconds()


def _bars(window: TimeWindow, stretches: Sequence[Stretch], reached: float) -> tuple[BusyBar, ...]:
    """Return the bars of ``stretches``, cut at the window's beginning and where it has ``reached``."""
    return tuple(
        [_bar(window, max(start, 0), min(end, reached), *counts) for start, end, *counts in stretches]
    )


def _bar(window: TimeWindow, start: float, end: float, attempts: int, failed: int) -> BusyBar:
    """Return the bar of a stretch between two seconds of ``window``, with its place on the line."""
    scale = WIDTH / _seconds(window)
    x, width = start * scale, max((end - start) * scale, NARROWEST)
    return BusyBar(
        window.since + timedelta(seconds=start),
        window.since + timedelta(seconds=end),
        attempts,
        failed,
        round(min(x, WIDTH - NARROWEST), 1),
        round(min(width, WIDTH - x), 1),
    )


def ticks(window: TimeWindow) -> list[datetime]:
    """Return TICKS + 1 moments that part the window evenly, both ends included."""
    return [window.since + (window.until - window.since) * step / TICKS for step in range(TICKS + 1)]
