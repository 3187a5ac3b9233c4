"""Time zones: their names, the moments at which a zone's clocks change, and the words for such a change.

Pure: reads the time zone data, no clock and no database.
"""

import difflib
import functools
import re
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,2}")
# These name files of one machine: another host may read them differently or count leap seconds.
_LOCAL_NAMES = ("localtime", "posixrules", "Factory", "posix/", "right/")
_LONGEST_NAME = 64


def check_timezone(name: str) -> ZoneInfo:
    """Look a zone up by its name, such as "Europe/Paris" or "UTC".

    Returns the zone. Raises ValueError with a sentence that offers the closest names.
    """
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name) or name.startswith(_LOCAL_NAMES):
        raise ValueError(_unknown(name[:_LONGEST_NAME]))
    try:
        return ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(_unknown(name)) from None


def _unknown(name: str) -> str:
    names = _zone_names()
    if not names:
        return "No time zone data is installed on this machine: install the Python package tzdata."
    close = difflib.get_close_matches(name.lower().replace(" ", "_"), names, n=3, cutoff=0.75)
    suggestions = " or ".join(dict.fromkeys(names[match] for match in close))
    hint = (
        f"did you mean {suggestions}?"
        if suggestions
        else "write one like UTC, Europe/Paris or America/New_York."
    )
    return f"{name!r} is not a known time zone: {hint}"


@functools.cache
def _zone_names() -> dict[str, str]:
    """Return the names of zones by what people may write: the name or its city, in lower case."""
    names = sorted(name for name in zoneinfo.available_timezones() if not name.startswith(_LOCAL_NAMES))
    by_city = {name.rpartition("/")[2].lower(): name for name in names}
    return by_city | {name.lower(): name for name in names}


@dataclass(frozen=True, slots=True)
class ClockChange:
    """One change of a zone's clocks.

    at: the instant (UTC) from which the new offset holds.
    before, after: what the clocks show at that instant by the old and by the new offset (naive).
    """

    at: datetime
    before: datetime
    after: datetime

    @property
    def is_jump(self) -> bool:
        """True for a jump ahead (wall times are missing), False for a step back (wall times come twice)."""
        return self.after > self.before

    def describe(self) -> str:
        """Say what the clocks do, as in "the clocks jump from 02:00 to 03:00"."""
        verb = "jump" if self.is_jump else "go back"
        far = abs(self.after - self.before) >= timedelta(hours=12)
        start, end = (
            f"{wall:%H:%M}{f' on {_day(wall)}' if far else ''}" for wall in (self.before, self.after)
        )
        return f"the clocks {verb} from {start} to {end}"


def find_clock_change(wall: datetime, zone: ZoneInfo) -> ClockChange | None:
    """Find the change that makes a wall time (naive) of the zone missing or double, else None."""
    # In gaps and folds alike, fold=0 reads the offset before the change and fold=1 the one after (PEP 495).
    old, new = offset_of(wall.replace(tzinfo=zone)), offset_of(wall.replace(tzinfo=zone, fold=1))
    if old == new:
        return None
    at = _first_instant(new, zone, *sorted((wall - old, wall - new)))
    return ClockChange(at=at.replace(tzinfo=UTC), before=at + old, after=at + new)


def describe_repeated(wall: datetime, zone: ZoneInfo) -> str:
    """Say that a wall time (naive) comes twice."""
    return f"{wall:%H:%M} comes twice on {_day(wall)} in {zone.key}"


def describe_missing(walls: list[datetime], zone: ZoneInfo) -> str:
    """Say that wall times (naive, at least one, in order) do not exist."""
    where = f"on {_day(walls[0])} in {zone.key}"
    if len(walls) == 1:
        return f"{walls[0]:%H:%M} does not exist {where}"
    conjunction = "and" if len(walls) == 2 else "to"
    return f"{walls[0]:%H:%M} {conjunction} {walls[-1]:%H:%M} do not exist {where}"


def _day(wall: datetime) -> str:
    return f"{wall.day} {wall:%B %Y}"


def offset_of(moment: datetime) -> timedelta:
    """Return the offset from UTC of an aware time."""
    offset = moment.utcoffset()
    assert offset is not None, "the time carries a zone"
    return offset


def _first_instant(offset: timedelta, zone: ZoneInfo, before: datetime, by: datetime) -> datetime:
    """Bisect (before, by], both naive UTC, down to the second at which the zone takes on the offset."""
    while (span := (by - before) // timedelta(seconds=1)) > 1:
        middle = before + timedelta(seconds=span // 2)
        if offset_of(middle.replace(tzinfo=UTC).astimezone(zone)) == offset:
            by = middle
        else:
            before = middle
    return by
