"""When the report of a night is due: once a day by the site's clocks, late rather than never, never twice."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from wakeboard.alerts.report_schedule import DROPPED_AFTER, ReportTimes, plan_report
from wakeboard.core.rule_types import KINDS

PARIS = ZoneInfo("Europe/Paris")
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
EIGHT = ReportTimes(8 * 60, 18 * 60, PARIS)
MINUTE = timedelta(minutes=1)


def paris(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=PARIS).astimezone(UTC)


def sent(times: ReportTimes, begin: datetime, days: int) -> list[datetime]:
    """Return when reports are written by somebody who looks every minute."""
    told: date | None = None
    found = []
    for minute in range(days * 1440):
        now = begin + minute * MINUTE
        due = plan_report(times, now, last_day=told, enabled_at=LONG_AGO if found else begin).due
        if due is not None:
            found.append(now)
            told = due.day
    return found


def test_it_is_due_at_eight_by_the_clocks_and_tells_from_the_evening_before() -> None:
    found = plan_report(EIGHT, paris("2026-11-21T08:00"), last_day=None, enabled_at=LONG_AGO)
    assert found.due is not None
    assert (found.due.since_at, found.due.due_at) == (paris("2026-11-20T18:00"), paris("2026-11-21T08:00"))
    assert found.next.due_at == paris("2026-11-22T08:00")


def test_it_comes_once_a_day_at_the_same_time_where_clocks_change() -> None:
    for begin in ("2026-03-27T12:00", "2026-10-23T12:00"):
        walls = [moment.astimezone(PARIS) for moment in sent(EIGHT, paris(begin), 4)]
        assert [(wall.hour, wall.minute) for wall in walls] == [(8, 0)] * 4
        assert len({wall.date() for wall in walls}) == 4


@pytest.mark.parametrize(
    ("begin", "utc"),
    [
        # 02:30 is skipped: the moment after the jump, which clocks call 03:30.
        ("2026-03-28T12:00", "2026-03-29T01:30+00:00"),
        # 02:30 comes twice: the first of the two.
        ("2026-10-24T12:00", "2026-10-25T00:30+00:00"),
    ],
)
def test_a_time_that_is_skipped_or_comes_twice_is_told_once(begin: str, utc: str) -> None:
    assert sent(ReportTimes(150, 18 * 60, PARIS), paris(begin), 1) == [datetime.fromisoformat(utc)]


def test_a_night_in_which_the_clocks_change_is_told_whole() -> None:
    lengths = [EIGHT.report_of(day) for day in (date(2026, 3, 29), date(2026, 10, 25), date(2026, 11, 21))]
    assert [each.due_at - each.since_at for each in lengths] == [timedelta(hours=h) for h in (13, 15, 14)]


def test_what_was_due_while_nobody_was_there_is_due_until_it_is_long_past() -> None:
    eight, told = paris("2026-11-21T08:00"), date(2026, 11, 20)
    assert plan_report(EIGHT, eight + DROPPED_AFTER, last_day=told, enabled_at=LONG_AGO).due is not None
    late = plan_report(EIGHT, eight + DROPPED_AFTER + MINUTE, last_day=told, enabled_at=LONG_AGO)
    assert late.due is None and late.left_out is not None
    assert (late.left_out.day, late.next.day) == (date(2026, 11, 21), date(2026, 11, 22))
    assert (
        plan_report(EIGHT, eight + timedelta(days=1), last_day=told, enabled_at=LONG_AGO).due is not None
    ), "the next day"


def test_who_switches_it_on_after_its_time_gets_the_next_one() -> None:
    found = plan_report(EIGHT, paris("2026-11-21T10:05"), last_day=None, enabled_at=paris("2026-11-21T10:00"))
    assert (found.due, found.left_out) == (None, None)
    assert found.next.due_at == paris("2026-11-22T08:00")


def test_a_time_that_is_moved_brings_no_second_one_on_the_same_day() -> None:
    told, moved = date(2026, 11, 21), ReportTimes(10 * 60, 18 * 60, PARIS)
    for now in ("2026-11-21T09:00", "2026-11-21T10:00"):
        found = plan_report(moved, paris(now), last_day=told, enabled_at=LONG_AGO)
        assert found.due is None and found.next.due_at == paris("2026-11-22T10:00")
    assert plan_report(moved, paris("2026-11-22T10:00"), last_day=told, enabled_at=LONG_AGO).due is not None


def test_it_may_tell_of_a_whole_day_or_of_some_hours() -> None:
    whole, some = ReportTimes(480, 480, PARIS), ReportTimes(20 * 60, 18 * 60, PARIS)
    now = paris("2026-11-21T21:00")
    assert whole.latest_report(now).since_at == paris("2026-11-20T08:00")
    assert some.latest_report(now).since_at == paris("2026-11-21T18:00")


def test_a_time_of_day_is_read_and_shown_as_clocks_show_it() -> None:
    at = KINDS["morning_report"].own[0]
    assert [at.read(text) for text in ("08:00", " 7:30 ", "00:00", "23:59")] == [480, 450, 0, 1439]
    assert at.shown(450) == "07:30"
    for wrong in ("24:00", "8", "8h", "", "07:60", "nan", "٠٧:٣٠", "-1:00"):
        with pytest.raises(ValueError, match="allowed: 00:00 to 23:59"):
            at.read(wrong)
