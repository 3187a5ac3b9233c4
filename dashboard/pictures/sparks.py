"""The columns of a small trend in a table's cell: thousands in a list, so a colour is one path. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

WIDTH, HEIGHT, AXIS = 4, 19, 20
LEAST = 1.5


class Counted(Protocol):
    """What a column stands for."""

    @property
    def total(self) -> int:
        """How many."""

    @property
    def bad(self) -> int:
        """How many of them failed."""


def layers(bars: Sequence[Counted]) -> tuple[str, str]:
    """Return two SVG paths: a column for all of each bar, and one on top of it for what failed."""
    totals = [bar.total for bar in bars]
    top = max(totals, default=0)
    whole, failed = [], []
    for place, (bar, total) in enumerate(zip(bars, totals, strict=True)):
        if total:
            x, height = place * WIDTH, _height(total, top)
            whole.append(_column(x, height, height))
            if bar.bad:
                failed.append(_column(x, height, _height(bar.bad, top)))
    return "".join(whole), "".join(failed)


def _height(count: int, top: int) -> float:
    return round(max(count / top * HEIGHT, LEAST), 1)


# Few shapes make all columns: a page draws thousands, and where all failed each twice.
@lru_cache(8192)
def _column(x: int, top: float, height: float) -> str:
    """Return a column that hangs from ``top`` units above the axis."""
    return f"M{x} {AXIS - top:g}h{WIDTH - 1}v{height:g}h{1 - WIDTH}z"
