"""What a row of the fault table is made of: its marker, its scale, and the line that tells its result.

Knows neither pytest's hooks (``reporting``) nor the product.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import pytest

T = TypeVar("T")
HEADINGS = ("fault", "injected", "expected", "measured", "verdict", "seconds", "seed")


def fault(number: str, *, injected: str, expected: str) -> pytest.MarkDecorator:
    """Mark a test as a row of the fault table: its number, what is done, and what must come of it."""
    return pytest.mark.fault(number, injected=injected, expected=expected)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a row does: a little in every test run, all of it in ``bin/faults``."""

    full: bool

    def times(self, small: T, full: T) -> T:
        """Return a number of repetitions, or of seconds, for this run."""
        return full if self.full else small


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One line of the table. ``verdict`` is 'held', 'BROKEN' or 'not run'."""

    number: str
    injected: str
    expected: str
    measured: str
    verdict: str
    seconds: float
    seed: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Return its texts in the order of ``HEADINGS``."""
        told = (self.number, self.injected, self.expected, self.measured, self.verdict)
        return (*told, f"{self.seconds:.0f}", self.seed)


def in_order(rows: Sequence[FaultRow]) -> list[FaultRow]:
    """Return the rows by letter and number, F2 before F10."""
    return sorted(rows, key=lambda row: (row.number[0], int(row.number[1:]), row.injected))


def as_markdown(rows: Sequence[FaultRow]) -> str:
    """Return the table for a page, with the day and the machine it was measured on."""
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    lines = [
        f"Measured on {today} on {machine}, Python {platform.python_version()}.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
        *(f"| {' | '.join(cell.replace('|', '/') for cell in row.cells)} |" for row in in_order(rows)),
    ]
    return "\n".join(lines) + "\n"
