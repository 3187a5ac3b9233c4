"""How long runs of each type usually take, for pages that show what runs: as the pages of types tell it.

The statistics of the last day, read at most once a minute in each process: a page that is polled asks memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from flask import current_app, g

from dashboard.connection import as_of, reading
from dashboard.kept import kept
from dashboard.queries import hourly, hours
from dashboard.queries.types import Pace, pace_of
from dashboard.replica import late_seconds

KEPT = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Memory:
    """What was usual at a moment of the database's clock, by type; ``paces`` fills as it is asked."""

    at: datetime
    day: Mapping[datetime, hours.Hour]
    paces: dict[str, Pace] = field(default_factory=dict)


def last_day() -> Mapping[datetime, hours.Hour]:
    """Return what each type did in each hour of the last day; asked once in a request."""
    if "last_day" not in g:
        memory: hourly.Memory[hours.Hour] = kept("wakeboard_type_hours", hourly.Memory)
        g.last_day = hours.last_day(reading(), as_of(), memory)
    day: Mapping[datetime, hours.Hour] = g.last_day
    return day


def paces(names: Iterable[str] | None = None) -> dict[str, Pace]:
    """Return how long the runs of ``names`` (None: of every type that ran) took, up to a minute old.

    A type of which nothing succeeded in the last day is left out.
    """
    memory = _memory()
    if names is None:
        names = {name for hour in memory.day.values() for name in hour}
    return {name: pace for name in names if (pace := _pace(memory, name)).runs}


def _memory() -> Memory:
    memory = current_app.extensions.get("wakeboard_usual")
    if not isinstance(memory, Memory) or not timedelta() <= as_of() - memory.at < KEPT:
        memory = Memory(as_of(), last_day())
        if late_seconds() is None:
            current_app.extensions["wakeboard_usual"] = memory
    return memory


def _pace(memory: Memory, name: str) -> Pace:
    if name not in memory.paces:
        memory.paces[name] = pace_of(hours.bars_of(memory.day, name))
    return memory.paces[name]
