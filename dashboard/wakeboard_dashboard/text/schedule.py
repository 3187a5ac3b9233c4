"""A schedule in words: when it fires, in its own zone and in UTC, and what is odd about it. Pure.

Nothing is raised for a schedule that cannot be read: a page must show it too.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from wakeboard.core.time.cron import Cron, Fire
from wakeboard.core.time.zones import check_timezone
from wakeboard.reporting.diagnosis import standstill
from wakeboard.schedules.next_fires import preview as preview_of
from wakeboard_dashboard.text.formats import Row

# A page does not wait for a schedule that fires on a distant day.
PREVIEW_SECONDS = 0.5
MISFIRES = {
    "one": "the latest of them is made up for",
    "all": "all of them are made up for, up to 100",
    "none": "none of them is made up for",
}
OVERLAPS = {
    "skip": "the fire is skipped",
    "allow": "another run starts beside it",
    "wait": "one run is made when it has ended",
}
REASONS = {
    "misfire": "it was later than the grace allows",
    "overlap": "the run before had not ended, or a later fire took its place",
    "capped": "more than 100 fires were due at once",
    "paused": "the schedule was paused before any worker fired it",
}


@lru_cache(maxsize=1000)
def in_words(schedule: str | None) -> str:
    """Return ``At 02:30 every day``; without a schedule ``By hand only``."""
    if schedule is None:
        return "By hand only"
    try:
        return Cron.parse(schedule).describe()
    except ValueError as error:
        return f"Cannot be read: {error}"


def state(definition: Row) -> tuple[str, str]:
    """Return (colour, word) of a definition's badge."""
    if definition["error"]:
        return "failed", "cannot fire"
    if not definition["enabled"]:
        return "paused", "paused"
    if definition["schedule"] is None:
        return "queued", "by hand"
    return ("stuck", "overdue") if definition["is_overdue"] else ("succeeded", "on")


def standstill_reason(definition: Row) -> str:
    """Return why runs of the schedule cannot start, as ``its type mail is paused``; empty where they can."""
    why = definition["standstill"]
    return standstill.standstill_clause(why, definition["job_type"]) if why else ""


def standstill_badge(why: str) -> tuple[str, str]:
    """Return (colour, word) of the badge of a schedule whose runs wait, ``why`` as ``standstill`` says."""
    return "paused", standstill.WORDS[why].short


def in_zone(moment: datetime | None, timezone: str, reader: tzinfo = UTC) -> str:
    """Return ``Sat 21 Nov 2026 02:30 CET``, followed by `` = 01:30 UTC`` for a reader elsewhere."""
    if moment is None:
        return ""
    there = moment.astimezone(zone_of(timezone))
    text = there.strftime("%a %-d %b %Y %H:%M %Z")
    here = moment.astimezone(reader)
    if there.utcoffset() == here.utcoffset():
        return text
    return f"{text} = {here:%H:%M %Z}" if here.date() == there.date() else f"{text} = {here:%a %H:%M %Z}"


def wall(shown: datetime) -> str:
    """Return ``02:30 on 25 October 2026``: what the clocks of a zone show."""
    return f"{shown:%H:%M} on {shown.day} {shown:%B %Y}"


@lru_cache(maxsize=1000)
def zone_of(timezone: str) -> ZoneInfo:
    """Return the zone of a schedule; UTC when its name cannot be read."""
    try:
        return check_timezone(timezone)
    except ValueError:
        return ZoneInfo("UTC")


def preview(schedule: str | None, timezone: str, after: datetime) -> list[Fire]:
    """Return the next fires after ``after``, with what is odd about each; none when it cannot be read."""
    if schedule is None:
        return []
    try:
        return preview_of(Cron.parse(schedule), timezone, after, seconds=PREVIEW_SECONDS)
    except (ValueError, OverflowError):
        return []
