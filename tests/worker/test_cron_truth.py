"""Cron against another opinion: the product's fires are the oracle's, whatever the clocks do.

Here two years of wall times, and the months of changes for intervals; all of 20 years is a row of the faults.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest

from tests.support.workers import cron_oracle
from tests.support.workers.cron_oracle import INTERVALS, MINUTE, WALL_TIMES, ZONES
from wakeboard.core.time.cron import Cron

NEW_YORK, PARIS = "America/New_York", "Europe/Paris"
LORD_HOWE, CASABLANCA = "Australia/Lord_Howe", "Africa/Casablanca"


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def ours(text: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    fires = (fire.at for fire in Cron.parse(text).fires(zone, start - MINUTE))
    return list(takewhile(lambda at: at < end, fires))


def differences(text: str, zone: str, start: datetime, end: datetime) -> set[datetime]:
    """Return the instants that only one of the two names."""
    found, wanted = ours(text, zone, start, end), list(cron_oracle.fires(text, zone, start, end))
    assert len(set(found)) == len(found), f"{text} in {zone} fires twice at one instant"
    return set(found) ^ set(wanted)


@pytest.mark.parametrize(
    ("zone", "year"), [*((zone, 2026) for zone in ZONES), ("Pacific/Apia", 2011), ("America/St_Johns", 2011)]
)
def test_wall_times_of_a_year_are_as_the_oracle_says(zone: str, year: int) -> None:
    for text in WALL_TIMES:
        assert not differences(text, zone, utc(year, 1, 1), utc(year + 1, 1, 1)), text


@pytest.mark.parametrize("zone", ZONES)
def test_intervals_in_the_months_of_changes_are_as_the_oracle_says(zone: str) -> None:
    for text in INTERVALS:
        for start, end in ((utc(2026, 3, 1), utc(2026, 4, 10)), (utc(2026, 10, 1), utc(2026, 11, 10))):
            assert not differences(text, zone, start, end), text


@pytest.mark.parametrize(
    ("text", "zone"), [("30 2 * * *", "America/New_York"), ("0 3 * * *", "Africa/Cairo")]
)
def test_the_oracle_by_the_day_is_the_oracle_by_the_minute(text: str, zone: str) -> None:
    start, end = utc(2026, 2, 1), utc(2026, 6, 1)
    by_minute = list(cron_oracle.every_minute(text, zone, start, end))
    assert list(cron_oracle.fires(text, zone, start, end)) == by_minute
    assert len(by_minute) in (119, 120)


@pytest.mark.parametrize(
    ("text", "zone", "start", "end", "local"),
    [
        # Gap: fires once, right after.
        ("30 2 * * *", NEW_YORK, utc(2026, 3, 8), utc(2026, 3, 9, 12), ["08 03:00 -0400", "09 02:30 -0400"]),
        ("30 2 * * *", PARIS, utc(2026, 3, 29), utc(2026, 3, 30, 12), ["29 03:00 +0200", "30 02:30 +0200"]),
        ("15 2 * * *", LORD_HOWE, utc(2026, 10, 3), utc(2026, 10, 4), ["04 02:30 +1100"]),
        # Fold: fires once, the first time.
        ("30 1 * * *", NEW_YORK, utc(2026, 11, 1), utc(2026, 11, 2, 9), ["01 01:30 -0400", "02 01:30 -0500"]),
        ("30 2 * * *", PARIS, utc(2026, 10, 25), utc(2026, 10, 26, 12), ["25 02:30 +0200", "26 02:30 +0100"]),
        ("45 1 * * *", LORD_HOWE, utc(2026, 4, 4), utc(2026, 4, 5), ["05 01:45 +1100"]),
        # A day that never was: its fires come together, at the first moment of the next.
        (
            "0,30 9 * * *", "Pacific/Apia", utc(2011, 12, 29), utc(2012, 1, 1),
            ["29 09:00 -1000", "29 09:30 -1000", "31 00:00 +1400", "31 09:00 +1400", "31 09:30 +1400",
             "01 09:00 +1400", "01 09:30 +1400"],
        ),
        # Clocks that go back for Ramadan and ahead after it, from what is called standard time.
        ("30 2 * * *", CASABLANCA, utc(2026, 2, 14), utc(2026, 2, 16), ["14 02:30 +0100", "15 02:30 +0100"]),
        ("30 2 * * *", CASABLANCA, utc(2026, 3, 21, 12), utc(2026, 3, 23), ["22 03:00 +0100"]),
        ("30 6 * * *", "Asia/Kathmandu", utc(2026, 6, 1), utc(2026, 6, 2), ["01 06:30 +0545"]),
        # Intervals go by elapsed time.
        (
            "*/30 1-3 * * *", NEW_YORK, utc(2026, 3, 8), utc(2026, 3, 9),
            ["08 01:00 -0500", "08 01:30 -0500", "08 03:00 -0400", "08 03:30 -0400"],
        ),
        (
            "*/30 1 * * *", NEW_YORK, utc(2026, 11, 1), utc(2026, 11, 2),
            ["01 01:00 -0400", "01 01:30 -0400", "01 01:00 -0500", "01 01:30 -0500"],
        ),
    ],
)  # fmt: skip
def test_the_named_days_are_as_written_down(
    text: str, zone: str, start: datetime, end: datetime, local: list[str]
) -> None:
    for fires in (ours(text, zone, start, end), list(cron_oracle.fires(text, zone, start, end))):
        assert [f"{at.astimezone(ZoneInfo(zone)):%d %H:%M %z}" for at in fires] == local
