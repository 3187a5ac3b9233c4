"""When a schedule fires, found out the slow way: another opinion than the product's, with no line in common.

Every UTC minute around every change of a zone's clocks is turned into wall time and matched; so are whole
years, where asked for. Away from changes the offset is constant, and a day's fires are its date, hour and
minute less that offset. The rule for changes is the documented one: a fixed wall time that a jump swallows
fires once, right after; one that comes twice fires the first time; an interval (`*` first in minute or hour)
fires at every minute that passes and matches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

ZONES = (
    "America/New_York",
    "Europe/Paris",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "America/Sao_Paulo",
    "America/Santiago",
    "America/St_Johns",
    "Africa/Cairo",
    "Asia/Tehran",
    "Antarctica/Troll",
)
WALL_TIMES = (
    "30 2 * * *",
    "30 1 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "0,30 0-3 * * *",
    "0 9 31 * *",
    "15 2 29 2 *",
    "30 2 13 * 5",
    "30 2 */13 * fri",
    "5 0 1 jan,apr,jul,oct *",
    "45 1-3/2 * 3,4,9-11 sun",
)
INTERVALS = ("*/15 * * * *", "0 */2 * * 1-5", "*/20 1,2 * * 7", "10 * 1-7 * *")
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


@dataclass(frozen=True)
class Fields:
    """Five fields as sets of numbers; weekdays as `date.isoweekday` less Sunday's 7, which is 0."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    by_elapsed_time: bool

    def on(self, day: date) -> bool:
        """Whether the schedule fires on a date."""
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (of_month or of_week) if self.either_day else (of_month and of_week)

    def at(self, wall: datetime) -> bool:
        """Whether it fires at a wall time."""
        return wall.minute in self.minutes and wall.hour in self.hours and self.on(wall.date())


def read(text: str) -> Fields:
    """Read a schedule of lists, ranges, steps and names; nothing is checked."""
    minute, hour, day, month, weekday = text.lower().split()
    return Fields(
        minutes=_numbers(minute, 0, 59),
        hours=_numbers(hour, 0, 23),
        days=_numbers(day, 1, 31),
        months=_numbers(month, 1, 12, dict(zip(_MONTHS, range(1, 13), strict=True))),
        weekdays=frozenset(n % 7 for n in _numbers(weekday, 0, 7, dict(zip(_DAYS, range(7), strict=True)))),
        either_day=not day.startswith("*") and not weekday.startswith("*"),
        by_elapsed_time=minute.startswith("*") or hour.startswith("*"),
    )


def _numbers(text: str, low: int, high: int, names: dict[str, int] | None = None) -> frozenset[int]:
    found: set[int] = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        start = _number(first, names or {})
        found.update(range(start, (_number(last, names or {}) if last else start) + 1, int(step or 1)))
    return frozenset(found)


def _number(word: str, names: dict[str, int]) -> int:
    return names[word] if word in names else int(word)


@functools.cache
def changes(zone: str, start: datetime, end: datetime) -> tuple[datetime, ...]:
    """Return the UTC hours in which the zone's offset changes, by looking at each hour."""
    place, found, moment = ZoneInfo(zone), [], start
    before = moment.astimezone(place).utcoffset()
    while moment < end:
        moment += HOUR
        after = moment.astimezone(place).utcoffset()
        if after != before:
            found.append(moment - HOUR)
        before = after
    return tuple(found)


def every_minute(text: str, zone: str, start: datetime, end: datetime) -> Iterator[datetime]:
    """Give the fires in [start, end) by looking at each UTC minute; `start` is an ordinary moment."""
    fields = read(text)
    for moment, wall, reached in _wall_minutes(zone, start, end):
        if fields.at(wall) if fields.by_elapsed_time else any(map(fields.at, reached)):
            yield moment


# Every schedule is asked about the same stretches of a zone: the slow part is done once for all of them.
@functools.lru_cache(maxsize=128)
def _wall_minutes(
    zone: str, start: datetime, end: datetime
) -> list[tuple[datetime, datetime, tuple[datetime, ...]]]:
    """Return each UTC minute of [start, end) with its wall time, and the wall minutes that are reached then
    for the first time: one, many after a jump, none in a repeat."""
    place, moment, found = ZoneInfo(zone), start, []
    latest = (start - MINUTE).astimezone(place).replace(tzinfo=None)
    while moment < end:
        wall = moment.astimezone(place).replace(tzinfo=None, fold=0)
        reached = tuple(wall - minute * MINUTE for minute in range((wall - latest) // MINUTE))
        found.append((moment, wall, reached))
        latest, moment = max(latest, wall), moment + MINUTE
    return found


def fires(text: str, zone: str, start: datetime, end: datetime) -> Iterator[datetime]:
    """Give the fires in [start, end): by the minute around changes, by the day elsewhere."""
    moment = start
    for first, last in _around_changes(zone, start, end):
        yield from _by_the_day(text, zone, moment, first)
        yield from every_minute(text, zone, first, last)
        moment = last
    yield from _by_the_day(text, zone, moment, end)


def _around_changes(zone: str, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Return stretches from a day and a half before to as long after each change, those that touch joined."""
    stretches: list[tuple[datetime, datetime]] = []
    for change in changes(zone, start, end):
        first, last = max(start, change - 1.5 * DAY), min(end, change + 1.5 * DAY)
        if stretches and first <= stretches[-1][1]:
            first = stretches.pop()[0]
        stretches.append((first, last))
    return stretches


def _by_the_day(text: str, zone: str, start: datetime, end: datetime) -> Iterator[datetime]:
    if start >= end:
        return
    fields = read(text)
    offset = start.astimezone(ZoneInfo(zone)).utcoffset()
    assert offset is not None
    first, last = (start + offset).replace(tzinfo=None), (end + offset).replace(tzinfo=None)
    day = first.date()
    while day <= last.date():
        if fields.on(day):
            for hour in sorted(fields.hours):
                for minute in sorted(fields.minutes):
                    wall = datetime(day.year, day.month, day.day, hour, minute)
                    if first <= wall < last:
                        yield (wall - offset).replace(tzinfo=UTC)
        day += DAY
