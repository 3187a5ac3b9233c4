"""Where percentiles stand in a chart whose height grows tenfold from line to line. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Protocol

from wakeboard.reporting.statistics import DurationHistogram, merged_histogram
from wakeboard_dashboard.text.formats import duration

HEIGHT = 100
SHARES = (0.5, 0.95, 0.99)
# Pages show nothing below a millisecond.
LOWEST = 0.001
# Steps that are over stand where they stood at the next request: a week has 168 of run and of wait times.
REMEMBERED = 512


class WindowStep(Protocol):
    """What a column stands for."""

    @property
    def start_at(self) -> datetime:
        """When it began."""

    @property
    def label(self) -> str:
        """When it began, in the reader's words."""


@dataclass(frozen=True, slots=True)
class Column:
    """One step of a window: half, 95 % and 99 % took at most so many seconds; None when nothing ended.

    ``y50``, ``y95`` and ``y99`` are distances from the top, in units of HEIGHT.
    """

    start_at: datetime
    label: str
    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    y50: float
    y95: float
    y99: float


@dataclass(frozen=True, slots=True)
class Spread:
    """The times of a window and of each of its steps; ``low`` to ``high`` seconds is the chart's height.

    ``lines`` are the distances from the top at which the tens stand.
    """

    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    longest: float | None
    low: float
    high: float
    lines: Sequence[float]
    columns: Sequence[Column]

    @property
    def scale(self) -> str:
        """How to read the chart's height, in words."""
        low, high = duration(self.low), duration(self.high)
        return f"{low} at the bottom, ten times that at each line, {high} on top"


def spread(bars: Sequence[WindowStep], each: Sequence[DurationHistogram]) -> Spread:
    """Return the spread of ``each`` bar's times, and of all together."""
    whole = merged_histogram(each)
    reached = [times.at_most_each(SHARES) for times in each]
    known = [seconds for p50, _, p99 in reached for seconds in (p50, p99) if seconds]
    bottom = math.floor(math.log10(max(min(known, default=LOWEST), LOWEST)))
    top = max(math.ceil(math.log10(max(known, default=1.0))), bottom + 1)
    tens = range(bottom + 1, top)
    p50, p95, p99 = whole.at_most_each(SHARES)
    return Spread(
        count=whole.count,
        p50=p50,
        p95=p95,
        p99=p99,
        longest=whole.longest_seconds if whole.count else None,
        low=10.0**bottom,
        high=10.0**top,
        lines=[_height(10.0**ten, bottom, top) for ten in tens],
        columns=[
            _column(bar.start_at, bar.label, times.count, at_most, (bottom, top))
            for bar, times, at_most in zip(bars, each, reached, strict=True)
        ],
    )


@lru_cache(REMEMBERED)
def _column(
    start_at: datetime, label: str, count: int, at_most: tuple[float | None, ...], tens: tuple[int, int]
) -> Column:
    p50, p95, p99 = at_most
    y50, y95, y99 = (_height(seconds, *tens) for seconds in at_most)
    return Column(start_at, label, count, p50, p95, p99, y50, y95, y99)


def _height(seconds: float | None, bottom: int, top: int) -> float:
    """Return how far from the top ``seconds`` are, in units of HEIGHT."""
    if not seconds:
        return HEIGHT
    share = (math.log10(seconds) - bottom) / (top - bottom)
    return round(HEIGHT * (1 - min(1.0, max(0.0, share))), 2)
