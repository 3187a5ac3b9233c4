"""The columns of a small trend in a table's cell. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

WIDTH, HEIGHT = 4, 19
LEAST = 1.5


class Counted(Protocol):
    """What a column stands for."""

    @property
    def total(self) -> int:
        """How many."""

    @property
    def bad(self) -> int:
        """How many of them failed."""


def columns(bars: Sequence[Counted]) -> Iterator[tuple[int, float, bool]]:
    """Yield (x, height, is bad) of the columns that are not empty, the largest HEIGHT high."""
    top = max((bar.total for bar in bars), default=0)
    for place, bar in enumerate(bars):
        if bar.total:
            yield place * WIDTH, round(max(bar.total / top * HEIGHT, LEAST), 1), bool(bar.bad)
