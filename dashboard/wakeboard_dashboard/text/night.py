"""The window of a night, and its verdict. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, tzinfo

from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.verdict import NightNumbers, verdict

EVENING, MORNING = time(18), time(8)
NIGHT = timedelta(hours=14)
LONGEST = timedelta(days=3)
MINUTE = timedelta(minutes=1)


def last_night(now: datetime, zone: tzinfo) -> TimeWindow:
    """Return yesterday 18:00 to today 08:00 in ``zone``; before 08:00 that is the night under way."""
    today = now.astimezone(zone).date()
    evening = datetime.combine(today - timedelta(days=1), EVENING, zone)
    return TimeWindow(evening.astimezone(UTC), datetime.combine(today, MORNING, zone).astimezone(UTC))


def shift_window(window: TimeWindow, days: int, zone: tzinfo) -> TimeWindow:
    """Return ``window`` moved by whole days at the same time of the clocks of ``zone``."""

    def move(moment: datetime) -> datetime:
        there = moment.astimezone(zone).replace(tzinfo=None) + timedelta(days=days)
        return there.replace(tzinfo=zone).astimezone(UTC)

    return TimeWindow(move(window.since), move(window.until))


def whole_minutes(since: datetime, until: datetime) -> TimeWindow:
    """Return the window widened to whole minutes: statistics are kept by the minute."""
    start = since.replace(second=0, microsecond=0)
    end = until.replace(second=0, microsecond=0)
    return TimeWindow(start, end if end == until else end + MINUTE)


__all__ = ["NightNumbers", "last_night", "shift_window", "verdict", "whole_minutes"]
