"""Which schedules have a late, overlapping or twice done run among their latest, as their badges say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from dashboard.params import Filters
from dashboard.queries import fires, schedules
from dashboard.words.oddities import Odd, oddities
from dashboard.words.schedule import zone_of

# More schedules than this are not looked at for one page.
MOST_JUDGED = 500
# No zone changes its clocks and changes them back again in less time, from 1995 to 2060 as far as is known: a
# week lies between two changes at Recife in October 2000, and at Gaza in October 2040.
BETWEEN_CHANGES = timedelta(days=6)


def matching(connection: Connection, filters: Filters, words: Collection[str]) -> tuple[list[int], bool]:
    """Return the ids of definitions that have runs of one of ``words``, and whether all were looked at."""
    found = schedules.candidates(connection, filters, MOST_JUDGED + 1)
    zones = {row["id"]: row["timezone"] for row in found[:MOST_JUDGED]}
    rows = fires.odd(connection, list(zones), words) if zones else []
    ids = [row["id"] for row in rows if row["is_odd"]]
    if "twice" in words:
        unsure = [row["id"] for row in rows if not row["is_odd"] and _may_repeat(row, zones[row["id"]])]
        runs = fires.latest(connection, unsure) if unsure else {}
        ids += [each for each in unsure if _is_twice(oddities(runs[each], zones[each]))]
    return ids, len(found) <= MOST_JUDGED


def _may_repeat(row: Mapping[Any, Any], timezone: str) -> bool:
    """Return whether the clocks may have shown one time of a row of ``fires.odd`` twice.

    That takes two runs within a day, as no clocks were set back by more since 1900, and a change between.
    """
    if not row["is_near"]:
        return False
    first_at: datetime = row["first_at"]
    last_at: datetime = row["last_at"]
    if last_at - first_at > BETWEEN_CHANGES:
        return True
    zone = zone_of(timezone)
    return first_at.astimezone(zone).utcoffset() != last_at.astimezone(zone).utcoffset()


def _is_twice(odd: Mapping[int, list[Odd]]) -> bool:
    return any(one.word == "twice" for each in odd.values() for one in each)
