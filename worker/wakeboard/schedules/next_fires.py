"""When a schedule will fire, and why each odd fire is where it is. Pure; bounded in fires and in time.

Odd is what a person would not read out of the five fields: a wall time that the clocks skip or repeat (which
``core.time.cron`` tells), a month without the wanted day, and a day that matches only one of two day fields.
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
# A schedule of a far day is looked for day by day; a preview gives up in time for a person.
MOST_SECONDS = 5.0
# After so many months without the day the sentence says enough.
MONTHS_NAMED = 4


def preview(
    cron: Cron,
    timezone: str,
    after: datetime,
    *,
    until: datetime | None = None,
    most: int = FIRES,
    seconds: float = MOST_SECONDS,
) -> list[Fire]:
    """Return the fires later than `after` (aware), at most `most`, with a note on each odd one.

    until: the last instant of interest, None for any. seconds: how long to look at most.
    Raises ValueError as ``Cron.fires`` does.
    """
    deadline = monotonic() + seconds
    fires = takewhile(
        lambda fire: (until is None or fire.at <= until) and monotonic() < deadline,
        _noted(cron, timezone, after),
    )
    return list(islice(fires, most))


def _noted(cron: Cron, timezone: str, after: datetime) -> Iterator[Fire]:
    before: date | None = None
    for fire in cron.fires(timezone, after):
        day = fire.local.date()
        before = before or after.astimezone(fire.local.tzinfo).date()
        notes = [note for note in (fire.note, missing_days(cron, before, day), either_day(cron, day)) if note]
        yield replace(fire, note="; ".join(notes) or None)
        before = day


def missing_days(cron: Cron, before: date, day: date) -> str | None:
    """Say which months between two days in a row lack a day of the month that the schedule names.

    before: of the fire before, or the day from which is looked; day: of this fire.
    """
    days = cron.days
    if days is None or not days.day_and or days.parts[3].startswith("*") or len(days.days) == 31:
        return None
    lacking: dict[tuple[int, ...], list[str]] = {}
    year, month = before.year, before.month
    while (year, month) < (day.year, day.month):
        length = calendar.monthrange(year, month)[1]
        lost = tuple(sorted(number for number in days.days if number > length))
        if lost and month in days.months:
            lacking.setdefault(lost, []).append(f"{calendar.month_name[month]} {year}")
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
    return "; ".join(_lack(months, lost) for lost, months in lacking.items()) or None


def either_day(cron: Cron, day: date) -> str | None:
    """Say which of the two day fields made it fire, where both are set and one of them did."""
    days = cron.days
    # Alike where it is both, and where it is neither: the clocks moved that fire to another day.
    if days is None or days.day_and or days.match_dom(day) == days.match_dow(day):
        return None
    which = f"it is a {day:%A}" if days.match_dow(day) else f"it is the {ordinal(day.day)}"
    return f"fires because {which}: where day of month and day of week are both set, either is enough"


def _lack(months: list[str], lost: tuple[int, ...]) -> str:
    named, more = months[:MONTHS_NAMED], len(months) - MONTHS_NAMED
    if more > 0:
        named.append(f"{more} more")
    words = _joined(named, "and")
    verb = "has" if len(months) == 1 else "have"
    return f"{words} {verb} no {_joined([ordinal(number) for number in lost], 'or')}"


def _joined(words: list[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
