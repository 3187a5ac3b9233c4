"""Stretches of time in which a type was busy, or failed: those close to each other are one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Stretch(NamedTuple):
    """Attempts of one type that ended in one stretch of time: its start, its end, all and those that failed.

    Both are seconds since the span began of which they are told, and may be before it. A first start is known
    to the minute: it is exact for what began with one, as what schedules make does, and may be up to a minute
    late for the rest.
    """

    start: float
    end: float
    attempts: int
    failed: int


class BusyTime(NamedTuple):
    """When a type was busy, from first starts to last ends, and the slices in which attempts failed.

    Without a pause of the length of a slice they are one stretch; in order.
    """

    stretches: Sequence[Stretch]
    failing: Sequence[Stretch]


def joined(stretches: Iterable[Stretch], pause: float) -> list[Stretch]:
    """Return ``stretches`` in order, those as one that are less than ``pause`` seconds apart."""
    found: list[Stretch] = []
    for each in sorted(stretches):
        if found and each.start - found[-1].end < pause:
            start, end, attempts, failed = found[-1]
            end = max(end, each.end)
            found[-1] = Stretch(start, end, attempts + each.attempts, failed + each.failed)
        else:
            found.append(each)
    return found
