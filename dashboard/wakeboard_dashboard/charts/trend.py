"""A trend of failures: the hours or days of a zone, one bar each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class TrendBar:
    """One bar of the trend: an hour or a day of the operator's zone."""

    start_at: datetime
    label: str
    total: int

    @property
    def bad(self) -> int:
        """All of them are failures."""
        return self.total


def starts(since: datetime, until: datetime, step: str, zone: tzinfo) -> list[datetime]:
    """Return when each hour or day of ``zone`` between two moments began; a day may have 23 or 25 hours."""
    local = since.astimezone(zone).replace(minute=0, second=0, microsecond=0)
    if step == "day":
        local = local.replace(hour=0, fold=0)
        days = range((until.astimezone(zone).date() - local.date()).days + 1)
        found = [(local + timedelta(days=day)).astimezone(UTC) for day in days]
    else:
        first = local.astimezone(UTC)
        found = [first + hour * HOUR for hour in range(int((until - first) / HOUR) + 1)]
    return [start_at for start_at in found if start_at < until]
