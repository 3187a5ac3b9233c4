"""Hours of a window, each from where it costs least: memory, the sums that workers make, or the minutes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Generic, TypeVar

from sqlalchemy import Connection

from wakeboard.reporting.hourly_rollups import HOUR, SETTLED
from wakeboard_dashboard.queries.steps import Steps

# One statement reads so many minutes: a busy day is 0.45 s of work in pieces of three hours, and 1 s in one
# piece, which sorts on disk. A busy week that no worker has summed is read so once after a restart.
AT_ONCE = timedelta(hours=3)
Told = TypeVar("Told")


@dataclass(frozen=True, slots=True)
class Memory(Generic[Told]):
    """What is kept from one request to the next: hours that cannot change, and steps of the latest two.

    ``open_hours`` are those two, each with the steps that it was made of.
    """

    hours: dict[datetime, Told] = field(default_factory=dict)
    steps: Steps[Told] = field(default_factory=Steps)
    open_hours: dict[datetime, tuple[Sequence[Told], Told]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source(Generic[Told]):
    """Where hours are from. ``summed`` reads those of some span that a worker has summed, ``by_minutes`` any.

    ``together`` says what an hour is whose steps are told; ``nothing`` one in which nothing ended.
    """

    summed: Callable[[Connection, datetime, datetime], Mapping[datetime, Told]]
    by_minutes: Callable[[Connection, datetime, datetime, timedelta], dict[datetime, Told]]
    together: Callable[[datetime, Sequence[Told]], Told]
    nothing: Callable[[datetime], Told]


def hourly(
    connection: Connection,
    starts: Sequence[datetime],
    now: datetime,
    source: Source[Told],
    memory: Memory[Told],
    keep_from: datetime,
) -> dict[datetime, Told]:
    """Return what is told of each hour that begins at ``starts``, which ascend, none left out.

    ``memory`` is this function's own; hours before ``keep_from`` leave it.
    """
    known = {start: told for start in starts if (told := memory.hours.get(start)) is not None}
    if settled := [start for start in starts if start not in known and start + SETTLED <= now]:
        known |= source.summed(connection, settled[0], settled[-1] + HOUR)
        for first, until in _spans(start for start in settled if start not in known):
            known |= source.by_minutes(connection, first, until, HOUR)
    if open_hours := [start for start in starts if start + SETTLED > now]:
        known |= _by_steps(connection, open_hours, source, memory)
    found = {start: known[start] if start in known else source.nothing(start) for start in starts}
    memory.hours.update({start: told for start, told in found.items() if start + SETTLED <= now})
    for start in [start for start in list(memory.hours) if start < keep_from]:
        memory.hours.pop(start, None)
    return found


def _by_steps(
    connection: Connection, starts: Sequence[datetime], source: Source[Told], memory: Memory[Told]
) -> dict[datetime, Told]:
    """Return what is told of the hours that begin at ``starts``, one after the other."""
    by_minutes = partial(source.by_minutes, connection)
    steps = memory.steps.read(connection, starts[0], starts[-1] + HOUR, by_minutes)
    found: dict[datetime, Told] = {}
    for start in starts:
        if within := [told for begun, told in sorted(steps.items()) if start <= begun < start + HOUR]:
            parts, told = memory.open_hours.get(start, ((), None))
            if told is None or not _are_same(parts, within):
                told = source.together(start, within)
                memory.open_hours[start] = within, told
            found[start] = told
    for start in [start for start in list(memory.open_hours) if start not in starts]:
        memory.open_hours.pop(start, None)
    return found


def _are_same(these: Sequence[Told], those: Sequence[Told]) -> bool:
    """Return whether both have the very same things in one order, without looking into them."""
    return len(these) == len(those) and all(map(operator.is_, these, those))


def _spans(starts: Iterable[datetime]) -> list[tuple[datetime, datetime]]:
    """Return the hours that begin at ascending ``starts`` as spans, from and until, of AT_ONCE at most."""
    found: list[tuple[datetime, datetime]] = []
    for start in starts:
        if found and found[-1][1] == start < found[-1][0] + AT_ONCE:
            found[-1] = found[-1][0], start + HOUR
        else:
            found.append((start, start + HOUR))
    return found
