"""The next fires of a schedule, with a note on each unexpected one. Pure; bounded in fires and in time.

Unexpected is what a person would not read out of the five fields: a wall time that the clocks skip or repeat
(noted by ``core.time.cron``), a month without the day, and a day that matches only one of two day fields.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime
from itertools import islice, takewhile
from time import monotonic

from wakeboard.core.time.cron import Cron, Fire, ordinal

FIRES = 10
# The fires of a rare schedule are searched day by day; a preview ends before a person gives up.
MOST_SECONDS = 5.0
# So many months without the day are named.
MOST_MONTHS = 4


def preview(
    cron: Cron,
    timezone: str,
    after: datetime,
    *,
    until: datetime | None = None,
    most: int = FIRES,
    seconds: float = MOST_SECONDS,
) -> list[Fire]:
    """Return the fires later than `after` (aware), at most `most`, with a note on each unexpected one.

    until: the last instant of interest, None for any. seconds: how long the search may take.
    Raises ValueError as ``Cron.fires`` does.
    """
    deadline = monotonic() + seconds
    fires = takewhile(
        lambda fire: (until is None or fire.at <= until) and monotonic() < deadline,
        _with_notes(cron, timezone, after),
    )
    return list(islice(fires, most))


def _with_notes(cron: Cron, timezone: str, after: datetime) -> Iterator[Fire]:
    before: date | None = None
    for fire in cron.fires(timezone, after):
        day = fire.local.date()
        before = before or after.astimezone(fire.local.tzinfo).date()
        notes = [note for note in (fire.note, missing_days(cron, before, day), either_day(cron, day)) if note]
        yield replace(fire, note="; ".join(notes) or None)
        before = day


def missing_days(cron: Cron, before: date, day: date) -> str | None:
    """Return which months between two fires lack a day of the month that the schedule names.

    before: the day of the fire before, or the first day of the search; day: of this fire.
    """
    days = cron.days
    if days is None or not days.day_and or days.parts[3].startswith("*") or len(days.days) == 31:
        return None
    months_by_days: dict[tuple[int, ...], list[str]] = {}
    year, month = before.year, before.month
    while (year, month) < (day.year, day.month):
        length = calendar.monthrange(year, month)[1]
        missing = tuple(sorted(number for number in days.days if number > length))
        if missing and month in days.months:
            months_by_days.setdefault(missing, []).append(f"{calendar.month_name[month]} {year}")
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
    return "; ".join(_describe(months, missing) for missing, months in months_by_days.items()) or None


def either_day(cron: Cron, day: date) -> str | None:
    """Return which of the two day fields matches, where both are set and only one does."""
    days = cron.days
    # Both match, or neither does: then the clocks moved the fire to another day.
    if days is None or days.day_and or days.match_dom(day) == days.match_dow(day):
        return None
    which = f"it is a {day:%A}" if days.match_dow(day) else f"it is the {ordinal(day.day)}"
    return f"fires because {which}: where day of month and day of week are both set, either is enough"


def _describe(months: list[str], days: tuple[int, ...]) -> str:
    names, more = months[:MOST_MONTHS], len(months) - MOST_MONTHS
    if more > 0:
        names.append(f"{more} more")
    verb = "has" if len(months) == 1 else "have"
    return f"{_enumerate(names, 'and')} {verb} no {_enumerate([ordinal(day) for day in days], 'or')}"


def _enumerate(words: list[str], conjunction: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {conjunction} {words[-1]}"
