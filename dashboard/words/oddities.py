"""What was odd about a run of a schedule, in a word and a sentence each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.formats import duration
from dashboard.queries.fires import is_late
from dashboard.words.schedule import wall

MEANINGS = {
    "late": "started more than a minute after its time",
    "overlapping": "started while a run before it was under way",
    "twice": "its work was done more than once",
    "missed": "a fire for which no run was made",
}


@dataclass(frozen=True, slots=True)
class Odd:
    """One thing about one run: ``word`` is a key of MEANINGS."""

    word: str
    sentence: str


def oddities(runs: Sequence[Mapping[Any, Any]], timezone: str) -> dict[int, list[Odd]]:
    """Return by run id what is odd about the runs of one schedule, as ``fires.judged`` gives them.

    ``timezone`` is the schedule's: a time that its clocks show twice is told.
    """
    walls = Counter(wall(run["scheduled_for"], timezone) for run in runs if run["scheduled_for"])
    found = {run["id"]: list(_odd(run, walls, timezone)) for run in runs}
    return {run_id: odd for run_id, odd in found.items() if odd}


def counted(odd: Mapping[int, Sequence[Odd]]) -> dict[str, int]:
    """Return how many runs are late, overlapping and twice, those that are none left out."""
    words = Counter(word for each in odd.values() for word in {one.word for one in each})
    return {word: words[word] for word in MEANINGS if words[word]}


def _odd(run: Mapping[Any, Any], walls: Mapping[str, int], timezone: str) -> Iterator[Odd]:
    if is_late(run):
        yield Odd("late", f"started {duration(run['seconds'])} after its time")
    if run["is_beside"]:
        yield Odd("overlapping", MEANINGS["overlapping"])
    if run["came_back"]:
        yield Odd("twice", "a worker that had lost it came back with success as well")
    if run["ran_again"]:
        yield Odd("twice", "somebody ran it again after it had succeeded")
    if run["scheduled_for"] and walls[wall(run["scheduled_for"], timezone)] > 1:
        yield Odd("twice", f"the clocks showed {wall(run['scheduled_for'], timezone)} twice")
