"""A preview says why each odd fire is where it is, and comes to an end."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from wakeboard.core.time.cron import Cron
from wakeboard.schedules.next_fires import preview

EITHER = "where day of month and day of week are both set, either is enough"


def notes(
    text: str, zone: str = "UTC", after: tuple[int, ...] = (2026, 1, 1), most: int = 3
) -> list[str | None]:
    start = datetime(*after, tzinfo=UTC)  # type: ignore[misc,arg-type]
    return [fire.note for fire in preview(Cron.parse(text), zone, start, most=most)]


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("0 9 31 * *", (2026, 1, 31, 10), ["February 2026 has no 31st", "April 2026 has no 31st"]),
        ("0 9 30 * *", (2026, 1, 31), ["February 2026 has no 30th", None]),
        ("0 9 15,31 * *", (2026, 4, 1), [None, "April 2026 has no 31st"]),
        ("0 9 29-31 2-3 *", (2026, 1, 1), ["February 2026 has no 29th, 30th or 31st", None]),
        (
            "0 0 29 2 *",
            (2028, 3, 1),
            [
                "February 2029, February 2030 and February 2031 have no 29th",
                "February 2033, February 2034 and February 2035 have no 29th",
            ],
        ),
        ("0 9 31 3,5 *", (2026, 1, 1), [None, None]),
        ("0 9 */2 * *", (2026, 4, 28), [None, None]),
        ("0 9 L * *", (2026, 1, 1), [None, None]),
        ("0 9 1-31 * *", (2026, 4, 30), [None, None]),
        (
            "0 9 13 * fri",
            (2026, 2, 7),
            [None, f"fires because it is a Friday: {EITHER}"],
        ),
        ("0 9 10 * fri", (2026, 2, 7), [f"fires because it is the 10th: {EITHER}"]),
        ("0 9 */13 * fri", (2026, 2, 7), [None]),
        ("0 9 * * fri", (2026, 2, 7), [None]),
    ],
)  # fmt: skip
def test_an_odd_day_is_explained(text: str, after: tuple[int, ...], expected: list[str | None]) -> None:
    assert notes(text, after=after, most=len(expected)) == expected


def test_the_29th_of_february_over_a_century_is_not_a_list_of_years() -> None:
    (note,) = notes("0 0 29 2 *", after=(2096, 3, 1), most=1)
    assert note == "February 2097, February 2098, February 2099, February 2100 and 3 more have no 29th"


def test_clocks_and_calendar_are_both_told() -> None:
    (note, following) = notes("30 2 29 * *", "Europe/Paris", (2026, 2, 1), 2)
    assert note is not None
    assert note.startswith("02:30 does not exist on 29 March 2026 in Europe/Paris")
    assert note.endswith("; February 2026 has no 29th")
    assert following is None


def test_a_day_that_the_calendar_skipped_is_named() -> None:
    (note,) = notes("0 9 30 12 *", "Pacific/Apia", (2011, 12, 1), 1)
    assert note is not None
    assert "09:00 does not exist on 30 December 2011 in Pacific/Apia" in note


@pytest.mark.parametrize("text", ["* * * * *", "0 0 29 2 1#5", "0 0 31 2 *", "*/7 3 29 2 *"])
def test_a_preview_of_a_long_time_is_bounded(text: str) -> None:
    began = time.monotonic()
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(8000, 1, 1, tzinfo=UTC)
    found = preview(Cron.parse(text), "Europe/Paris", start, until=end, most=1000, seconds=1.0)
    assert len(found) <= 1000
    assert time.monotonic() - began < 3
