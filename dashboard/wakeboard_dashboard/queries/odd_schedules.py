"""Which schedules have a late, overlapping or twice done run among their latest, as their badges say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping

from wakeboard_dashboard.queries import fires, schedules
from wakeboard_dashboard.text.oddities import Odd, may_repeat, oddities
from wakeboard_dashboard.text.schedule import zone_of
from wakeboard_dashboard.web.params import Filters

# More schedules than this are not looked at for one page.
MOST_JUDGED = 500
# So many are looked at together first, and those after them only where the page is not full yet.
FIRST = 100


class Matching(NamedTuple):
    """Definitions that have odd runs: their ids, and whether none is left unjudged.

    ``latest`` is what ``fires.strips`` tells of those that were looked at whole: nobody asks again.
    """

    ids: Sequence[int]
    is_all: bool
    latest: dict[int, RowMapping]


NONE = Matching([], True, {})


def matching(connection: Connection, filters: Filters, words: Collection[str]) -> Matching:
    """Return which definitions have runs of one of ``words``.

    They are those of the page that ``filters`` ask for, at least: a first page that is full needs no others.
    """
    found = schedules.candidates(connection, filters, MOST_JUDGED + 1)
    zones = {row["id"]: row["timezone"] for row in found[:MOST_JUDGED]}
    is_first, wanted = filters.cursor_text is None, filters.limit + 1
    ids: list[int] = []
    latest: dict[int, RowMapping] = {}
    end = 0
    while end < len(zones) and (not is_first or len(ids) < wanted):
        begin, end = end, end + (_more(end, len(ids), wanted) if is_first else MOST_JUDGED)
        judged = _judged(connection, list(zones)[begin:end], words)
        latest |= {each: row for each, row in judged.items() if "runs" in row}
        ids += _odd(connection, judged, zones, words)
    return Matching(ids, len(found) <= MOST_JUDGED, latest)


def _more(judged: int, found: int, wanted: int) -> int:
    """Return how many to look at next: what would do as things went so far and a fifth more.

    It is half of those before at least: few goes find the last one of very few.
    """
    if not judged:
        return FIRST
    if not found:
        return MOST_JUDGED
    return max(judged // 2, ceil(1.2 * (wanted - found) * judged / found))


def _judged(connection: Connection, ids: Sequence[int], words: Collection[str]) -> dict[int, RowMapping]:
    """Return rows of ``fires`` by id: those of ``surveyed``, and of ``strips`` where one may be odd."""
    found = fires.surveyed(connection, ids, words)
    return found | fires.strips(connection, [each for each, row in found.items() if row["is_odd"]])


def _odd(
    connection: Connection, judged: Mapping[int, RowMapping], zones: Mapping[int, str], words: Collection[str]
) -> list[int]:
    """Return which of ``judged`` (rows of ``fires`` by id) have runs of one of ``words``; ``zones`` by id."""
    ids = [each for each, row in judged.items() if "runs" in row and any(row[word] for word in words)]
    if "twice" in words:
        unsure = _that_may_repeat(connection, {e: r for e, r in judged.items() if e not in ids}, zones)
        untold = [each for each, row in unsure.items() if "runs" not in row]
        told = unsure | fires.strips(connection, untold)
        ids += [
            each for each, row in told.items() if _is_twice(oddities(fires.read(row["runs"]), zones[each]))
        ]
    return ids


def _that_may_repeat(
    connection: Connection, judged: Mapping[int, RowMapping], zones: Mapping[int, str]
) -> dict[int, RowMapping]:
    """Return those of ``judged`` (rows of ``fires`` by id) of which the clocks may have shown a time twice.

    That takes two fires within a day, as no clocks were set back by more since 1900, and a change between.
    """
    changed = {
        each: row
        for each, row in judged.items()
        if row["first_at"] and may_repeat(row["first_at"], row["last_at"], zone_of(zones[each]))
    }
    far = [each for each, row in changed.items() if not row["is_near"]]
    near = fires.near(connection, far)
    return {each: row for each, row in changed.items() if row["is_near"] or each in near}


def _is_twice(odd: Mapping[int, list[Odd]]) -> bool:
    return any(one.word == "twice" for each in odd.values() for one in each)
