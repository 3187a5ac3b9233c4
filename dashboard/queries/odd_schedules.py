"""Which schedules have a late, overlapping or twice done run among their latest, as their badges say."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, RowMapping

from dashboard.params import Filters
from dashboard.queries import fires, schedules
from dashboard.words.oddities import Odd, oddities

# Their runs are judged one by one: more schedules than this are not looked at for one page.
MOST_JUDGED = 500


def judge(connection: Connection, zones: dict[int, str]) -> dict[int, dict[int, list[Odd]]]:
    """Return by definition id what is odd about its latest runs, by run id; ``zones`` are theirs."""
    judged = fires.judged(connection, list(zones))
    return {each: oddities(runs, zones[each]) for each, runs in judged.items()}


def matching(connection: Connection, filters: Filters, words: Collection[str]) -> tuple[list[int], bool]:
    """Return the ids of definitions that have runs of one of ``words``, and whether all were looked at."""
    found: list[RowMapping] = schedules.candidates(connection, filters, MOST_JUDGED + 1)
    zones = {row["id"]: row["timezone"] for row in found[:MOST_JUDGED]}
    odd = judge(connection, zones) if zones else {}
    ids = [
        definition
        for definition, runs in odd.items()
        if any(one.word in words for each in runs.values() for one in each)
    ]
    return ids, len(found) <= MOST_JUDGED
