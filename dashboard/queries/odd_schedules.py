"""Which schedules have a late, overlapping or twice done run among their latest, as their badges say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping

from dashboard.params import Filters
from dashboard.queries import fires, schedules
from dashboard.words.oddities import Odd, may_repeat, oddities
from dashboard.words.schedule import zone_of

# More schedules than this are not looked at for one page.
MOST_JUDGED = 500
# So many are looked at first: they may fill the page.
FIRST_JUDGED = 100


def matching(connection: Connection, filters: Filters, words: Collection[str]) -> tuple[list[int], bool]:
    """Return the ids of definitions that have runs of one of ``words``, and whether none is left unjudged.

    They are those of the page that ``filters`` ask for, at least: a first page that is full needs no others.
    """
    found = schedules.candidates(connection, filters, MOST_JUDGED + 1)
    judged = found[:MOST_JUDGED]
    ids = _odd(connection, judged[:FIRST_JUDGED], words)
    if filters.cursor_text is not None or len(ids) <= filters.limit:
        ids += _odd(connection, judged[FIRST_JUDGED:], words)
    return ids, len(found) <= MOST_JUDGED


def _odd(connection: Connection, judged: Sequence[RowMapping], words: Collection[str]) -> list[int]:
    """Return the ids of those of ``judged`` that have runs of one of ``words``."""
    zones = {row["id"]: row["timezone"] for row in judged}
    rows = fires.odd(connection, list(zones), words) if zones else []
    ids = [row["id"] for row in rows if row["is_odd"]]
    if "twice" in words:
        unsure = [row["id"] for row in rows if not row["is_odd"] and _may_repeat(row, zones[row["id"]])]
        runs = fires.latest(connection, unsure) if unsure else {}
        ids += [each for each in unsure if _is_twice(oddities(runs[each], zones[each]))]
    return ids


def _may_repeat(row: Mapping[Any, Any], timezone: str) -> bool:
    """Return whether the clocks may have shown one time of a row of ``fires.odd`` twice.

    That takes two runs within a day, as no clocks were set back by more since 1900, and a change between.
    """
    return bool(row["is_near"]) and may_repeat(row["first_at"], row["last_at"], zone_of(timezone))


def _is_twice(odd: Mapping[int, list[Odd]]) -> bool:
    return any(one.word == "twice" for each in odd.values() for one in each)
