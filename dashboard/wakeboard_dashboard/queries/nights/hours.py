"""What the minutes of a window say, of which those that cannot change any more are remembered.

A window of the last day moves on with each minute, its settled hours change twice an hour. The minutes before
them are settled too, and are summed once for each window. Those after them, an hour or two, are summed again
when rows came to them or retention took some, as those of a window are that has no settled hours; the newest,
which are in no slice that is over, by each request. Reads only.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from wakeboard.maintenance.retention.keep import STATISTICS_DAYS
from wakeboard.reporting.activity_report import Ask, minutes
from wakeboard.reporting.activity_report.minutes import Minutes
from wakeboard.reporting.activity_report.usual import BEFORE, Usual, usual_until
from wakeboard.reporting.hourly_rollups import HOUR, SETTLED, floored
from wakeboard_dashboard.queries.errors import Window
from wakeboard_dashboard.queries.settled import Settled
from wakeboard_dashboard.text.night import MINUTE

# So many windows have their hours kept: about 150 kB each of sixty types, three times that of two hundred,
# and as much again for the lanes that were drawn, where all have pauses; so many have their beginnings, which
# are shorter than an hour; and so many their ends, or all that retention may take from.
MOST_HOURS = 4
# Retention removes minutes of statistics; a window is told with what was usual before it.
STAY = timedelta(days=STATISTICS_DAYS - 1) - BEFORE
# After so long most of a minute is in the roll-ups (wakeboard.reporting.statistics).
MERGED = timedelta(minutes=2)
# Why it tells whether they are as they were: wakeboard_dashboard.queries.steps.
_ROWS = """
SELECT count(*) AS rows, EXISTS (
    SELECT FROM wakeboard.statistics_deltas WHERE minute >= :since AND minute < :until
) AS is_moving
FROM wakeboard.statistics_rollups WHERE minute >= :since AND minute < :until"""


@dataclass(frozen=True, slots=True)
class KeptMinutes:
    """What is remembered from one request to the next: settled hours, what windows had before and after them.

    Apart, for a window that moves on has another beginning with each minute, and another end with each slice.
    """

    hours: Settled = field(default_factory=lambda: Settled(MOST_HOURS))
    beginnings: Settled = field(default_factory=lambda: Settled(MOST_HOURS))
    ends: Settled = field(default_factory=lambda: Settled(MOST_HOURS))


def minutes_of(
    ask: Ask, window: Window, usual: Mapping[str, Usual], now: datetime, kept: KeptMinutes
) -> list[Minutes]:
    """Return what the minutes of ``window`` say: of its settled hours, before them and after them."""
    step = minutes.slice_length(window)

    def summed(since: datetime, until: datetime) -> Minutes:
        return minutes.summed(ask, Window(since, until), usual, step)

    def summed_once(since: datetime, until: datetime, kept: Settled, mark: Hashable = None) -> Minutes:
        # What was usual is that before the hour in which the window begins: it says what is slow.
        question = since, until, step, usual_until(window.since)
        return kept.get(question, lambda: summed(since, until), mark)

    def of_end(since: datetime) -> list[Minutes]:
        until = floored(min(window.until, now - MERGED), step)
        if until <= since:
            return [summed(since, window.until)] if since < window.until else []
        (there,) = ask(_ROWS, {"since": since, "until": until})
        if there["is_moving"]:
            return [summed(since, window.until)]
        before = summed_once(since, until, kept.ends, there["rows"])
        return [before, summed(until, window.until)] if until < window.until else [before]

    begin, end = settled_hours(window, now)
    if begin >= end:
        return of_end(window.since)
    parts = [summed_once(begin, end, kept.hours)]
    if window.since < begin:
        parts.append(summed_once(window.since, begin, kept.beginnings))
    return parts + of_end(end)


def settled_hours(window: Window, now: datetime) -> tuple[datetime, datetime]:
    """Return where the whole hours of ``window`` begin and end of which nothing can change any more.

    There are none where the beginning is not before the end.
    """
    if not stay(window, now):
        return window.until, window.since
    return floored(window.since + HOUR - MINUTE, HOUR), min(
        floored(window.until, HOUR), floored(now - SETTLED, HOUR) + HOUR
    )


def stay(window: Window, now: datetime) -> bool:
    """Return whether retention removes none of the minutes that ``window`` is told by."""
    return now < window.since + STAY
