"""When a report is due: once a day of the site's calendar, at a time that its clocks show. Pure.

A time that the clocks skip is the moment after the jump; of a time that comes twice it is the first. A report
that nobody could send is still due for DROPPED_AFTER; an older one is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

# A report that is sent so long after its time says that it is late.
LATE_AFTER = timedelta(minutes=10)
DROPPED_AFTER = timedelta(hours=12)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ReportTimes:
    """When reports are sent and where their window begins, in minutes since midnight of ``zone``."""

    at: int
    since: int
    zone: tzinfo

    def report_of(self, day: date) -> DailyReport:
        """Return the report of ``day``. It begins at the last ``since`` before it: a whole day if equal."""
        first_day = day if self.since < self.at else day - DAY
        return DailyReport(day, self._moment(first_day, self.since), self._moment(day, self.at))

    def latest_report(self, now: datetime) -> DailyReport:
        """Return the last report whose time has come."""
        report = self.report_of(now.astimezone(self.zone).date())
        return report if report.due_at <= now else self.report_of(report.day - DAY)

    def _moment(self, day: date, minutes: int) -> datetime:
        return datetime.combine(day, time(minutes // 60, minutes % 60), self.zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class DailyReport:
    """The report of one ``day``: about the time from ``since_at`` to ``due_at``, and due then."""

    day: date
    since_at: datetime
    due_at: datetime


@dataclass(frozen=True, slots=True)
class ReportPlan:
    """The report that is ``due`` now, the ``next`` one, and the last one if it was left out."""

    due: DailyReport | None
    next: DailyReport
    left_out: DailyReport | None = None


def plan_report(
    times: ReportTimes, now: datetime, *, last_day: date | None, enabled_at: datetime
) -> ReportPlan:
    """Return what is due at ``now``.

    ``last_day``: the day of the last report that was written. No report is due from before ``enabled_at``.
    """
    latest = times.latest_report(now)
    is_open = latest.due_at > enabled_at and (last_day is None or latest.day > last_day)
    following = times.report_of(max(latest.day, last_day or latest.day) + DAY)
    if not is_open:
        return ReportPlan(None, following)
    if now - latest.due_at > DROPPED_AFTER:
        return ReportPlan(None, following, latest)
    return ReportPlan(latest, following)
