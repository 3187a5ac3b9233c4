"""Hours of a window, each from where it costs least: memory, the sums that workers make, or the minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from worker.hours import HOUR, SETTLED

# One statement reads so many minutes: a busy day is 0.45 s of work in pieces of three hours, and 1 s in one
# piece, which sorts on disk. A busy week that no worker has summed is read so once after a restart.
AT_ONCE = timedelta(hours=3)
Told = TypeVar("Told")
# Returns what is known of the hours from one moment to another, by where each begins.
Reader = Callable[[datetime, datetime], dict[datetime, Told]]


def hourly(
    starts: Sequence[datetime],
    now: datetime,
    closed: dict[datetime, Told],
    *,
    summed: Reader[Told],
    by_minutes: Reader[Told],
    nothing: Callable[[datetime], Told],
    keep_from: datetime,
) -> dict[datetime, Told]:
    """Return what is told of each hour that begins at ``starts``, which ascend, none left out.

    ``summed`` reads the hours that a worker has summed, ``by_minutes`` all others; ``nothing`` says what an
    hour is in which nothing ended. ``closed`` keeps the hours that cannot change any more, from one call to
    the next, those before ``keep_from`` no longer; it is this function's own.
    """
    known = {start: told for start in starts if (told := closed.get(start)) is not None}
    if settled := [start for start in starts if start not in known and start + SETTLED <= now]:
        known |= summed(settled[0], settled[-1] + HOUR)
    for first, until in _spans(start for start in starts if start not in known):
        known |= by_minutes(first, until)
    found = {start: known[start] if start in known else nothing(start) for start in starts}
    closed.update({start: told for start, told in found.items() if start + SETTLED <= now})
    for start in [start for start in list(closed) if start < keep_from]:
        closed.pop(start, None)
    return found


def _spans(starts: Iterable[datetime]) -> list[tuple[datetime, datetime]]:
    """Return the hours that begin at ascending ``starts`` as spans, from and until, of AT_ONCE at most."""
    found: list[tuple[datetime, datetime]] = []
    for start in starts:
        if found and found[-1][1] == start < found[-1][0] + AT_ONCE:
            found[-1] = found[-1][0], start + HOUR
        else:
            found.append((start, start + HOUR))
    return found
