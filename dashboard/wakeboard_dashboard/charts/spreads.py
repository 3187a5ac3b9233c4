"""Where percentiles stand in a chart with a logarithmic axis of time. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, Protocol

from wakeboard.reporting.statistics import DurationHistogram, merged_histogram
from wakeboard_dashboard.text.formats import duration

HEIGHT = 100
SHARES = (0.5, 0.95, 0.99)
# Pages show nothing below a millisecond.
LOWEST = 0.001
# Seconds at which the axis has a tick, in the units that people count in.
TICKS = (LOWEST, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36_000.0, 86_400.0, 864_000.0, 8_640_000.0)
# More labels than this would touch each other: every other one is left out.
MOST_LABELS = 7
# Steps that are over stand where they stood at the next request: a week has 168 of run and of wait times.
CACHE_SIZE = 512


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
    """One step of a window: half, 95 % and 99 % did not pass so many seconds; None when nothing ended.

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


class Tick(NamedTuple):
    """A mark of an axis: its distance from the top in units of the picture, and its label."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Spread:
    """The times of a window and of each of its steps; ``ticks`` are those of the axis, the lowest first."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    longest: float | None
    ticks: Sequence[Tick]
    columns: Sequence[Column]


def spread(bars: Sequence[WindowStep], each: Sequence[DurationHistogram]) -> Spread:
    """Return the spread of ``each`` bar's times, and of all together."""
    whole = merged_histogram(each)
    reached = [times.at_most_each(SHARES) for times in each]
    known = [seconds for p50, _, p99 in reached for seconds in (p50, p99) if seconds]
    shown = _ticks(min(known, default=LOWEST), max(known, default=1.0))
    bounds = shown[0], shown[-1]
    every = 1 if len(shown) <= MOST_LABELS else 2
    p50, p95, p99 = whole.at_most_each(SHARES)
    return Spread(
        count=whole.count,
        p50=p50,
        p95=p95,
        p99=p99,
        longest=whole.longest_seconds if whole.count else None,
        ticks=[
            Tick(_height(seconds, *bounds), "" if place % every else duration(seconds))
            for place, seconds in enumerate(shown)
        ],
        columns=[
            _column(bar.start_at, bar.label, times.count, at_most, bounds)
            for bar, times, at_most in zip(bars, each, reached, strict=True)
        ],
    )


@lru_cache(CACHE_SIZE)
def _column(
    start_at: datetime, label: str, count: int, at_most: tuple[float | None, ...], bounds: tuple[float, float]
) -> Column:
    p50, p95, p99 = at_most
    y50, y95, y99 = (_height(seconds, *bounds) for seconds in at_most)
    return Column(start_at, label, count, p50, p95, p99, y50, y95, y99)


def _ticks(shortest: float, longest: float) -> tuple[float, ...]:
    """Return the ticks that enclose the times from ``shortest`` to ``longest``, two at least."""
    first = max(bisect_right(TICKS, shortest) - 1, 0)
    last = min(max(bisect_left(TICKS, longest), first + 1), len(TICKS) - 1)
    return TICKS[min(first, last - 1) : last + 1]


def _height(seconds: float | None, bottom: float, top: float) -> float:
    """Return how far from the top ``seconds`` are, in units of HEIGHT."""
    if not seconds:
        return HEIGHT
    share = math.log(seconds / bottom) / math.log(top / bottom)
    return round(HEIGHT * (1 - min(1.0, max(0.0, share))), 2)
