"""Finds what is odd about the runs of a schedule: a word and a sentence each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from wakeboard.reporting.activity_report.fires import LATE
from wakeboard_dashboard.text.formats import duration
from wakeboard_dashboard.text.schedule import wall, zone_of

MEANINGS = {
    "late": "started more than a minute after its time",
    "overlapping": "started while a run before it was under way",
    "twice": "its work was done more than once",
    "missed": "a fire for which no run was made",
}
# From 1995 to 2060 no known zone changes its clocks twice in less time: a week lies between two changes at
# Recife in October 2000, and at Gaza in October 2040.
BETWEEN_CHANGES = timedelta(days=6)


class LatestRun(NamedTuple):
    """A run of a schedule: what its mark shows, and what may be odd about it.

    ``late_by`` is in seconds, up to now where it still waits for its start. ``came_back`` and ``ran_again``:
    its work was done twice.
    """

    id: int
    status: str
    scheduled_for: datetime | None
    run_at: datetime
    changed_at: datetime
    error_code: str | None
    late_by: float | None
    overlapped: bool
    came_back: bool
    ran_again: bool


class Oddity(NamedTuple):
    """One thing about one run: ``word`` is a key of MEANINGS."""

    word: str
    sentence: str


def find_oddities(runs: Sequence[LatestRun], timezone: str) -> dict[int, list[Oddity]]:
    """Return by run id what is odd about the runs of one schedule.

    ``timezone`` is the schedule's: a time that its clocks show twice is odd.
    """
    repeated = find_repeated_times([run.scheduled_for for run in runs if run.scheduled_for], timezone)
    found = {run.id: list(_odd(run, repeated)) for run in runs}
    return {run_id: odd for run_id, odd in found.items() if odd}


def count_oddities(odd: Mapping[int, Sequence[Oddity]]) -> dict[str, int]:
    """Return the number of runs by word of MEANINGS, without zeros."""
    words = Counter([word for each in odd.values() for word in dict.fromkeys([one.word for one in each])])
    return {word: words[word] for word in MEANINGS if words[word]}


def _may_repeat(first_at: datetime, last_at: datetime, zone: tzinfo) -> bool:
    """Return whether the clocks of ``zone`` may have been set back between two moments."""
    if last_at - first_at > BETWEEN_CHANGES:
        return True
    return first_at.astimezone(zone).utcoffset() != last_at.astimezone(zone).utcoffset()


def find_repeated_times(moments: Sequence[datetime], timezone: str) -> dict[datetime, str]:
    """Return, by moment, what the clocks of a zone showed, for ``moments`` at which they showed the same."""
    zone = zone_of(timezone)
    if not moments or not _may_repeat(min(moments), max(moments), zone):
        return {}
    walls = {moment: moment.astimezone(zone).replace(tzinfo=None) for moment in moments}
    times = Counter(walls.values())
    return {moment: wall(shown) for moment, shown in walls.items() if times[shown] > 1}


def _odd(run: LatestRun, repeated: Mapping[datetime, str]) -> Iterator[Oddity]:
    if run.late_by is not None and run.late_by > LATE.total_seconds():
        yield Oddity("late", f"started {duration(run.late_by)} after its time")
    if run.overlapped:
        yield Oddity("overlapping", MEANINGS["overlapping"])
    if run.came_back:
        yield Oddity("twice", "a worker that had lost it came back with success as well")
    if run.ran_again:
        yield Oddity("twice", "somebody ran it again after it had succeeded")
    if run.scheduled_for and run.scheduled_for in repeated:
        yield Oddity("twice", f"the clocks showed {repeated[run.scheduled_for]} twice")
