"""How long runs of each type usually take, for pages that show what runs: as the pages of types tell it.

The statistics of the last day, read at most once a minute in each process: a page that is polled asks memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from flask import current_app, g

from wakeboard_dashboard.pages.kept import kept
from wakeboard_dashboard.queries import hourly, hours
from wakeboard_dashboard.queries.types import Pace, pace_of
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.replica import late_seconds

KEPT = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Day:
    """What each type did in each hour of the last day; ``paces`` fills as it is asked."""

    by_hour: Mapping[datetime, hours.Hour]
    paces: dict[str, Pace] = field(default_factory=dict)

    def pace(self, name: str) -> Pace:
        """Return how the attempts of type ``name`` went."""
        if name not in self.paces:
            self.paces[name] = pace_of(hours.bars_of(self.by_hour, name))
        return self.paces[name]

    def is_of(self, found: Mapping[datetime, hours.Hour]) -> bool:
        """Return whether the hours ``found`` are these, without looking into them."""
        return self.by_hour.keys() == found.keys() and all(
            hour is found[start] or not (hour or found[start]) for start, hour in self.by_hour.items()
        )


def last_day() -> Day:
    """Return the last day; asked once in a request, and the same as before while nothing ended."""
    if "last_day" not in g:
        memory: hourly.Memory[hours.Hour] = kept("wakeboard_type_hours", hourly.Memory)
        found = hours.last_day(reading(), as_of(), memory)
        known = current_app.extensions.get("wakeboard_day_of_types")
        g.last_day = known if isinstance(known, Day) and known.is_of(found) else Day(found)
        if late_seconds() is None:
            current_app.extensions["wakeboard_day_of_types"] = g.last_day
    day: Day = g.last_day
    return day


@dataclass(frozen=True, slots=True)
class Memory:
    """The last day as it was at a moment of the database's clock."""

    at: datetime
    day: Day


def paces(names: Iterable[str] | None = None) -> dict[str, Pace]:
    """Return how long the runs of ``names`` (None: of every type that ran) took, up to a minute old.

    A type of which nothing succeeded in the last day is left out.
    """
    day = _memory().day
    if names is None:
        names = {name for hour in day.by_hour.values() for name in hour}
    return {name: pace for name in names if (pace := day.pace(name)).runs}


def _memory() -> Memory:
    memory = current_app.extensions.get("wakeboard_usual")
    if not isinstance(memory, Memory) or not timedelta() <= as_of() - memory.at < KEPT:
        memory = Memory(as_of(), last_day())
        if late_seconds() is None:
            current_app.extensions["wakeboard_usual"] = memory
    return memory
