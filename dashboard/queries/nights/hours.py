"""What the minutes of a window say, of which the whole hours that cannot change any more are remembered.

A window of the last day moves on with each minute, its settled hours change twice an hour: a request sums the
minutes before and after them, an hour or two. Reads only.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from dashboard.queries.errors import Window
from dashboard.queries.settled import Settled
from dashboard.words.night import MINUTE
from worker.hours import HOUR, SETTLED
from worker.nights import Ask, minutes
from worker.nights.minutes import Minutes
from worker.nights.usual import BEFORE, Usual, usual_until
from worker.retention.keep import STATISTICS_DAYS

# So many windows have their hours kept: about 150 kB each of sixty types, three times that of two hundred.
MOST_HOURS = 4
# Retention removes minutes of statistics; a window is told with what was usual before it.
STAY = timedelta(days=STATISTICS_DAYS - 1) - BEFORE


def minutes_of(
    ask: Ask, window: Window, usual: Mapping[str, Usual], now: datetime, kept: Settled
) -> list[Minutes]:
    """Return what the minutes of ``window`` say: of its settled hours, before them and after them."""
    step = minutes.slice_length(window)

    def summed(since: datetime, until: datetime) -> Minutes:
        return minutes.summed(ask, Window(since, until), usual, step)

    begin, end = settled_hours(window, now)
    if begin >= end:
        return [summed(window.since, window.until)]
    # What was usual is that before the hour in which the window begins: it says what is slow.
    question = begin, end, step, usual_until(window.since)
    middle = kept.get(question, lambda: summed(begin, end))
    edges = (window.since, begin), (end, window.until)
    return [middle, *(summed(since, until) for since, until in edges if since < until)]


def settled_hours(window: Window, now: datetime) -> tuple[datetime, datetime]:
    """Return where the whole hours of ``window`` begin and end of which nothing can change any more.

    There are none where the beginning is not before the end.
    """
    if not stay(window, now):
        return window.until, window.since
    return _hour(window.since + HOUR - MINUTE), min(_hour(window.until), _hour(now - SETTLED) + HOUR)


def stay(window: Window, now: datetime) -> bool:
    """Return whether retention removes none of the minutes that ``window`` is told by."""
    return now < window.since + STAY


def _hour(moment: datetime) -> datetime:
    """Return when the hour of ``moment`` began, by the clock of UTC as slices are."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
