"""When a report is due: once for each day of the site's calendar, at a time that its clocks show. Pure.

A time that the clocks skip is the moment after the jump, one that comes twice is the first of the two. What
was due while nobody was there is due still, for LATEST; a day's report that is older is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

# From this long after its time a report says that it is late.
LATE = timedelta(minutes=10)
LATEST = timedelta(hours=12)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Clocks:
    """When reports are sent and from when on they tell, in minutes since midnight of ``zone``."""

    at: int
    since: int
    zone: tzinfo

    def morning(self, day: date) -> Morning:
        """Return the report of ``day``. It tells from the last ``since`` before it: a whole day if equal."""
        begin = day if self.since < self.at else day - DAY
        return Morning(day, self._moment(begin, self.since), self._moment(day, self.at))

    def latest(self, now: datetime) -> Morning:
        """Return the last one whose time has come."""
        found = self.morning(now.astimezone(self.zone).date())
        return found if found.due_at <= now else self.morning(found.day - DAY)

    def _moment(self, day: date, minutes: int) -> datetime:
        return datetime.combine(day, time(minutes // 60, minutes % 60), self.zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Morning:
    """The report of one ``day``: it is due at ``due_at`` and tells what was from ``since_at`` until then."""

    day: date
    since_at: datetime
    due_at: datetime


@dataclass(frozen=True, slots=True)
class ReportPlan:
    """What is to be done: ``due`` now if anything, which comes next, and the last one if it was left out."""

    due: Morning | None
    next: Morning
    left_out: Morning | None = None


def plan(clocks: Clocks, now: datetime, *, told: date | None, since: datetime) -> ReportPlan:
    """Return what is to be done at ``now``. ``told``: the day of the last report that was written; ``since``:
    when reports were switched on, from before which none is due."""
    latest = clocks.latest(now)
    is_open = latest.due_at > since and (told is None or latest.day > told)
    following = clocks.morning(max(latest.day, told or latest.day) + DAY)
    if not is_open:
        return ReportPlan(None, following)
    if now - latest.due_at > LATEST:
        return ReportPlan(None, following, latest)
    return ReportPlan(latest, following)
