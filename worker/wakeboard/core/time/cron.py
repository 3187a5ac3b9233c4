"""Cron: five fields of text and a time zone → the instants of a schedule. Pure: reads no clock.

The rule for the days on which clocks change is Debian's. A schedule whose minute and hour are both fixed
fires once for each wall time: right after a jump that swallowed it, and only the first time when it comes
twice. A schedule whose minute or hour starts with `*` is an interval: it fires at every minute that passes
and matches, so twice where a wall time comes twice, and not at all where it is missing.

cronsim reads and explains the fields. This module walks the times itself: cronsim 2.8 loses 02:00 and 02:15
of `*/15 2 * * *` on the day Lord Howe steps back half an hour, and asked between the two 01:30s of a day it
answers with the first.
"""

import calendar
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from wakeboard.core.time.zones import (
    check_timezone,
    describe_missing,
    describe_repeated,
    find_clock_change,
    offset_of,
)

LONGEST_TEXT = 200
# 29 February on one given weekday can be 40 years away; a schedule without a fire in this time has none.
HORIZON_YEARS = 50
EARLIEST_YEAR, LATEST_YEAR = 1900, 9000

ALIASES = {
    "@hourly": ("0 * * * *", "Every hour, on the hour"),
    "@daily": ("0 0 * * *", "Every day at 00:00"),
    "@midnight": ("0 0 * * *", "Every day at 00:00"),
    "@weekly": ("0 0 * * 0", "Every Sunday at 00:00"),
    "@monthly": ("0 0 1 * *", "On the first day of every month at 00:00"),
    "@yearly": ("0 0 1 1 *", "Every year on 1 January at 00:00"),
    "@annually": ("0 0 1 1 *", "Every year on 1 January at 00:00"),
}
FIELDS = ("minute", "hour", "day of month", "month", "day of week")
RANGES = (
    "0 to 59",
    "0 to 23",
    "1 to 31",
    "1 to 12 or jan to dec",
    "0 to 7 (0 and 7 are Sunday) or sun to sat",
)
SPANS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
# The period in which the steps of each field begin anew, and what to write for a longer interval.
PERIODS = ("hour", "day", "month", "year", "week")
LONGER_INTERVALS = (
    "For every 90 minutes write two schedules, '0 */3 * * *' and '30 1-23/3 * * *'.",
    "For every second day write '*/2' as day of month.",
    "For every second month write '*/2' as month.",
    "No schedule counts years.",
    "No schedule counts weeks: let the job look which week it is.",
)
_NAMES: tuple[dict[str, int], ...] = (
    {},
    {},
    {},
    {name.upper(): number for number, name in enumerate(calendar.month_abbr) if name},
    {name.upper(): (number + 1) % 7 for number, name in enumerate(calendar.day_abbr)},
)

# Two digits and a bounded step: a term that matches costs cronsim at most a few hundred numbers.
_VALUE = r"(?:[0-9]{1,2}|[A-Z]{3})"
_TERM = re.compile(rf"(?:\*|{_VALUE}(?:-{_VALUE})?)(?:/[0-9]{{1,3}})?|L|LW|[0-7]L|{_VALUE}#[1-5]")
_STEPPED = re.compile(rf"(\*|{_VALUE})(?:-({_VALUE}))?/([0-9]{{1,3}})")
# Up to so many values of a step are listed: "every 45th minute" hides that it is the 0th and the 45th.
_MOST_LISTED = 2
_ORDINAL = re.compile(r"\b([0-9]+)th\b")
# A schedule that fires at all fires within 50 years of it.
_ANY_DAY = datetime(2000, 1, 1, tzinfo=UTC)
_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)


class CronError(ValueError):
    """A schedule that cannot be read; the text is a sentence for the person who wrote it."""


@dataclass(frozen=True, slots=True)
class Fire:
    """One fire of a schedule.

    at: when, in UTC.
    local: the same instant in the schedule's zone.
    note: a sentence when the clocks change around it, else None.
    """

    at: datetime
    local: datetime
    note: str | None


@dataclass(frozen=True, slots=True)
class Cron:
    """A schedule that has been read and checked.

    text: as written, spaces collapsed.
    is_interval: fires by elapsed time instead of by wall time, see the module.
    """

    text: str
    is_interval: bool = field(compare=False)
    _minutes: tuple[int, ...] = field(compare=False, repr=False)
    _hours: tuple[int, ...] = field(compare=False, repr=False)
    _months: frozenset[int] = field(compare=False, repr=False)
    # None when no month of the schedule has its day, as in 31 February.
    _days: CronSim | None = field(compare=False, repr=False)

    @classmethod
    def parse(cls, expression: str) -> Self:
        """Read a schedule: five fields, or one of the names in ALIASES.

        Raises CronError, a sentence that names the field.
        """
        text = _normalise(expression)
        fields = ALIASES[text.lower()][0].split() if text.lower() in ALIASES else text.upper().split()
        _check_count(text, fields)
        minute, hour, _, month, _ = (_read_field(index, part) for index, part in enumerate(fields))
        try:
            days = CronSim(" ".join(fields), datetime(2000, 1, 1))
        except CronSimError:
            # Each field was read alone, so what is left is a day that none of the months has.
            days = None
        return cls(
            text=text,
            is_interval=fields[0].startswith("*") or fields[1].startswith("*"),
            _minutes=tuple(sorted(minute.minutes)),
            _hours=tuple(sorted(hour.hours)),
            _months=frozenset(month.months),
            _days=days,
        )

    @property
    def days(self) -> CronSim | None:
        """The fields as cronsim read them, for questions about days; None when no day ever matches."""
        return self._days

    def describe(self) -> str:
        """Return the schedule in words, as in "At 02:30 every day"."""
        if self.text.lower() in ALIASES:
            return ALIASES[self.text.lower()][1]
        if self._days is None:
            return "Never: none of its months has that day"
        # cronsim 2.8 says 22th and 31th.
        words = _list_few_steps(self.text, self._days).explain()
        return _ORDINAL.sub(lambda match: ordinal(int(match[1])), words)

    def next_fire(self, timezone: str, after: datetime) -> datetime | None:
        """Return the first fire later than `after` (aware) in UTC, or None when there is none in 50 years.

        timezone: name of the zone whose wall clock the fields mean. Raises as `fires` does.
        """
        fire = next(self.fires(timezone, after), None)
        return None if fire is None else fire.at

    def fires(self, timezone: str, after: datetime) -> Iterator[Fire]:
        """Yield the fires later than `after` (aware), in order.

        Ends when the next one is more than 50 years off.
        Raises ValueError for an unknown zone, a naive `after`, or one outside the years 1900 to 9000.
        """
        zone = check_timezone(timezone)
        if after.tzinfo is None:
            raise ValueError("The time after which to look for fires needs a time zone: give it in UTC.")
        if not EARLIEST_YEAR <= after.year <= LATEST_YEAR:
            raise ValueError(
                f"{after} is outside the years {EARLIEST_YEAR} to {LATEST_YEAR} that schedules know."
            )
        start = after.astimezone(UTC)
        return self._by_elapsed_time(zone, start) if self.is_interval else self._by_wall_time(zone, start)

    def _by_wall_time(self, zone: ZoneInfo, after: datetime) -> Iterator[Fire]:
        # Wall times with fold=0, and with gaps collapsed to their end, never go backwards in UTC: the order
        # holds, and those before the wall time of `after` are over.
        now = after.astimezone(zone).replace(tzinfo=None, fold=0, second=0, microsecond=0)
        walls = (wall for wall in self._wall_times(now.date()) if wall > now)
        for at, together in itertools.groupby(walls, key=lambda wall: _instant(wall, zone)):
            if at > after:
                yield Fire(at=at, local=at.astimezone(zone), note=_wall_note(list(together), zone))

    def _by_elapsed_time(self, zone: ZoneInfo, after: datetime) -> Iterator[Fire]:
        missing: str | None = None
        for before, local in self._candidate_minutes(zone, after.replace(second=0, microsecond=0) + _MINUTE):
            if offset_of(local) > offset_of(before):
                missing = self._missing_note(before, zone)
            wall = local.replace(tzinfo=None, fold=0)
            if wall.minute in self._minutes and wall.hour in self._hours and self._matches_day(wall.date()):
                yield Fire(local.astimezone(UTC), local, missing or _twice_note(local, zone))
                missing = None

    def _candidate_minutes(self, zone: ZoneInfo, moment: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield (an earlier minute, a minute that may match), in the zone.

        Where the clocks change these are all minutes, each with the one right before it; elsewhere minutes,
        hours and days without a match are left out.
        """
        while True:
            first, last = (moment - _MINUTE).astimezone(zone), (moment + 59 * _MINUTE).astimezone(zone)
            if offset_of(first) != offset_of(last):
                locals_ = [first, *((moment + minute * _MINUTE).astimezone(zone) for minute in range(60))]
                yield from itertools.pairwise(locals_)
            elif self._matches_hour(first) or self._matches_hour(last):
                for minute in range(60):
                    if (first.minute + 1 + minute) % 60 in self._minutes:
                        yield first, (moment + minute * _MINUTE).astimezone(zone)
            moment += 60 * _MINUTE
            # From the day before: clocks that go back at midnight return to it.
            day = next(self._dates(last.date() - _DAY), None)
            if day is None:
                return
            # No zone is a whole day away from UTC.
            moment = max(moment, datetime(day.year, day.month, day.day, tzinfo=UTC) - _DAY)

    def _matches_hour(self, local: datetime) -> bool:
        return local.hour in self._hours and self._matches_day(local.date())

    def _matches_day(self, day: date) -> bool:
        return self._days is not None and day.month in self._months and self._days.match_day(day)

    def _dates(self, first: date) -> Iterator[date]:
        day, last_year = first, first.year + HORIZON_YEARS
        while self._days is not None and day.year <= last_year:
            if day.month not in self._months:
                day = (day.replace(day=1) + timedelta(days=31)).replace(day=1)
                continue
            if self._days.match_day(day):
                last_year = day.year + HORIZON_YEARS
                yield day
            day += _DAY

    def _wall_times(self, first: date) -> Iterator[datetime]:
        for day in self._dates(first):
            for hour, minute in itertools.product(self._hours, self._minutes):
                yield datetime(day.year, day.month, day.day, hour, minute)

    def _missing_note(self, before: datetime, zone: ZoneInfo) -> str | None:
        """Return which wall times of this schedule the jump right after `before` skips."""
        first = before.replace(tzinfo=None, fold=0) + _MINUTE
        change = find_clock_change(first, zone)
        if change is None:
            return None
        gap = [first + minute * _MINUTE for minute in range((change.after - first) // _MINUTE)]
        walls = [
            w
            for w in gap
            if w.minute in self._minutes and w.hour in self._hours and self._matches_day(w.date())
        ]
        if not walls:
            return None
        fact = f"{describe_missing(walls, zone)}: {change.describe()}"
        return f"{fact}; an interval leaves out what does not exist"


def read_schedule(text: str) -> Cron:
    """Parse a new schedule: it must fire at some time, and its steps must not reach past their range.

    Raises CronError as ``read_existing`` does, and for a step after which nothing comes.
    """
    cron = read_existing(text)
    if cron.text.lower() not in ALIASES:
        for index, part in enumerate(cron.text.upper().split()):
            for term in part.split(","):
                _check_step(index, term)
    return cron


def read_existing(text: str) -> Cron:
    """Parse a schedule that exists: it must fire at some time. A schedule that fires in one zone does in all.

    Raises CronError as ``Cron.parse`` does, and for a text that never fires.
    """
    cron = Cron.parse(text)
    if cron.next_fire("UTC", _ANY_DAY) is None:
        raise CronError(f"'{cron.text}' never comes: none of its months has that day.")
    return cron


def ordinal(number: int) -> str:
    """Return ``1st``, ``2nd``, ``13th`` and so on."""
    ending = "th" if 11 <= number % 100 <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _normalise(expression: str) -> str:
    if len(expression) > LONGEST_TEXT:
        raise CronError(
            f"A schedule of {len(expression)} characters is too long: {LONGEST_TEXT} are allowed."
        )
    text = " ".join(expression.split())
    if text.lower() == "@reboot":
        raise CronError(
            "'@reboot' is not a time: start it from the machine's own start-up, systemd for example."
        )
    if text.startswith("@") and text.lower() not in ALIASES:
        raise CronError(f"{text!r} is not a known name: write five fields or one of {', '.join(ALIASES)}.")
    return text


def _check_count(text: str, fields: list[str]) -> None:
    if len(fields) != len(FIELDS):
        plural = "" if len(fields) == 1 else "s"
        raise CronError(
            f"{text!r} has {len(fields)} field{plural}, a schedule has five: {', '.join(FIELDS)}, "
            "as in '30 2 * * *' for 02:30 every day."
        )


def _read_field(index: int, part: str) -> CronSim:
    """Parse one field alone, the others being `*`, so that an error can name it."""
    where = f"The {FIELDS[index]} field {part.lower()!r}"
    if not all(_TERM.fullmatch(term) for term in part.split(",")):
        raise CronError(
            f"{where} cannot be read: write *, numbers from {RANGES[index]}, ranges (1-5), "
            "steps (*/10) or lists of them (1,15)."
        )
    try:
        return CronSim(
            " ".join(part if index == i else "*" for i in range(len(FIELDS))), datetime(2000, 1, 1)
        )
    except CronSimError:
        raise CronError(
            f"{where} is out of range: it takes {RANGES[index]}, ranges that do not run backwards, "
            "and steps of at least 1."
        ) from None


@dataclass(frozen=True, slots=True)
class _Step:
    """A term with a step, of values from `first` to `last`; `is_range` when both are written."""

    first: int
    last: int
    step: int
    is_range: bool

    @classmethod
    def read(cls, index: int, term: str) -> Self | None:
        match = _STEPPED.fullmatch(term)
        if match is None:
            return None
        lowest, highest = SPANS[index]
        first = lowest if match[1] == "*" else _number(index, match[1])
        last = highest if match[2] is None else _number(index, match[2])
        return cls(first, max(first, last), int(match[3]), match[2] is not None)

    @property
    def count(self) -> int:
        return self.last - self.first + 1


def _number(index: int, word: str) -> int:
    return int(word) if word.isdigit() else _NAMES[index][word]


def _check_step(index: int, term: str) -> None:
    """Raise CronError for a step that leaves the first value alone: its author meant a longer interval."""
    step = _Step.read(index, term)
    if step is None:
        return
    where = f"The {FIELDS[index]} field {term.lower()!r}"
    if step.is_range and step.count == 1:
        raise CronError(
            f"{where} has a step and a range of one value: write {step.first} for that one, or a range that "
            "ends later."
        )
    if step.step > step.count:
        raise CronError(
            f"{where} has a step of {step.step} and a range of {step.count} values, and begins anew each "
            f"{PERIODS[index]}: it would fire at {FIELDS[index]} {step.first} alone. Write {step.first} for "
            f"that. {LONGER_INTERVALS[index]}"
        )


def _list_few_steps(text: str, days: CronSim) -> CronSim:
    """Return the same schedule with steps of few values written as lists, for its words."""
    fields = text.upper().split()
    parts = fields.copy()
    # With a star in front of a day field both days must match: that star has to stay.
    must_both_match = parts[2] == "*" or parts[4] == "*"
    for index, part in enumerate(parts):
        if must_both_match or index not in (2, 4):
            parts[index] = ",".join(_list_values(index, term) for term in part.split(","))
    return days if parts == fields else CronSim(" ".join(parts), datetime(2000, 1, 1))


def _list_values(index: int, term: str) -> str:
    step = _Step.read(index, term)
    # cronsim 2.8 takes 10-10/5 for 10/5.
    if step is not None and step.is_range and step.count == 1:
        return f"{step.first}/{step.step}"
    if step is None or step.step == 0:
        return term
    values = range(step.first, step.last + 1, step.step)
    return ",".join(map(str, values)) if len(values) <= _MOST_LISTED else term


def _instant(wall: datetime, zone: ZoneInfo) -> datetime:
    change = find_clock_change(wall, zone)
    if change is not None and change.is_jump:
        return change.at
    return (wall - offset_of(wall.replace(tzinfo=zone))).replace(tzinfo=UTC)


def _wall_note(walls: list[datetime], zone: ZoneInfo) -> str | None:
    """Return why ``walls`` fire when they do. They fire at one instant, so only a jump gathers several."""
    change = find_clock_change(walls[0], zone)
    if change is None:
        return None
    if not change.is_jump:
        return f"{describe_repeated(walls[0], zone)}: {change.describe()}; it fires the first time only"
    missing = [wall for wall in walls if wall < change.after]
    fires = "it fires" if len(missing) == 1 else "they fire once,"
    return f"{describe_missing(missing, zone)}: {change.describe()}; {fires} right after"


def _twice_note(local: datetime, zone: ZoneInfo) -> str | None:
    wall = local.replace(tzinfo=None, fold=0)
    change = find_clock_change(wall, zone)
    if change is None:
        return None
    turn = "second" if local.fold else "first"
    fact = f"{describe_repeated(wall, zone)}: {change.describe()}"
    return f"{fact}; an interval fires both times, this is the {turn}"
