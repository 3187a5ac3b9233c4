"""What was odd about a run of a schedule, in a word and a sentence each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any, NamedTuple

from wakeboard_dashboard.text.formats import duration
from wakeboard_dashboard.text.schedule import wall, zone_of

MEANINGS = {
    "late": "started more than a minute after its time",
    "overlapping": "started while a run before it was under way",
    "twice": "its work was done more than once",
    "missed": "a fire for which no run was made",
}
# No zone changes its clocks and changes them back again in less time, from 1995 to 2060 as far as is known: a
# week lies between two changes at Recife in October 2000, and at Gaza in October 2040.
BETWEEN_CHANGES = timedelta(days=6)


class Odd(NamedTuple):
    """One thing about one run: ``word`` is a key of MEANINGS, ``late_seconds`` of a late one, where known."""

    word: str
    told: str = ""
    late_seconds: float | None = None

    @property
    def sentence(self) -> str:
        """What it was; lists of a thousand runs say the word alone."""
        if self.told or self.late_seconds is None:
            return self.told or MEANINGS[self.word]
        return f"started {duration(self.late_seconds)} after its time"


_OVERLAPPING = Odd("overlapping", MEANINGS["overlapping"])
_CAME_BACK = Odd("twice", "a worker that had lost it came back with success as well")
_RAN_AGAIN = Odd("twice", "somebody ran it again after it had succeeded")


def oddities(runs: Sequence[Mapping[Any, Any]], timezone: str) -> dict[int, list[Odd]]:
    """Return by run id what is odd about the runs of one schedule, as ``fires.latest`` or ``read`` has them.

    ``timezone`` is the schedule's: a time that its clocks show twice is told.
    """
    moments = [run["scheduled_for"] for run in runs if run["scheduled_for"]]
    shown_twice = _shown_twice(moments, zone_of(timezone))
    found = {run["id"]: list(_odd(run, shown_twice)) for run in runs}
    return {run_id: odd for run_id, odd in found.items() if odd}


def counted(odd: Mapping[int, Sequence[Odd]]) -> dict[str, int]:
    """Return how many runs are late, overlapping and twice, those that are none left out."""
    words = Counter([word for each in odd.values() for word in dict.fromkeys([one.word for one in each])])
    return {word: words[word] for word in MEANINGS if words[word]}


def may_repeat(first_at: datetime, last_at: datetime, zone: tzinfo) -> bool:
    """Return whether the clocks of ``zone`` may have been set back between two moments."""
    if last_at - first_at > BETWEEN_CHANGES:
        return True
    return first_at.astimezone(zone).utcoffset() != last_at.astimezone(zone).utcoffset()


def _shown_twice(moments: Sequence[datetime], zone: tzinfo) -> dict[datetime, str]:
    """Return in words what the clocks of ``zone`` showed at those of ``moments`` that have it in common."""
    if not moments or not may_repeat(min(moments), max(moments), zone):
        return {}
    walls = {moment: moment.astimezone(zone).replace(tzinfo=None) for moment in moments}
    times = Counter(walls.values())
    return {moment: wall(shown) for moment, shown in walls.items() if times[shown] > 1}


def _odd(run: Mapping[Any, Any], shown_twice: Mapping[datetime, str]) -> Iterator[Odd]:
    if run["is_late"]:
        yield Odd("late", late_seconds=run.get("seconds"))
    if run["is_beside"]:
        yield _OVERLAPPING
    if run["came_back"]:
        yield _CAME_BACK
    if run["ran_again"]:
        yield _RAN_AGAIN
    if run["scheduled_for"] in shown_twice:
        yield Odd("twice", f"the clocks showed {shown_twice[run['scheduled_for']]} twice")
