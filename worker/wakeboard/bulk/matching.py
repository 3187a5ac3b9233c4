"""The runs that a filter matches for a verb, counted by what would happen to each. Reads only.

Imports SQLAlchemy, which writes the filters' statements; no worker imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import psycopg
from psycopg.rows import dict_row

from wakeboard.bulk import rules
from wakeboard.core.states import Status
from wakeboard.reporting.filters.pages import SearchPage, read_ids, read_page
from wakeboard.reporting.filters.runs import states_of
from wakeboard.reporting.filters.search import Start, search
from wakeboard.reporting.filters.values import LARGEST_ID, FilterValues

Connection = psycopg.Connection[Any]

# Filters that no index serves look at so many windows of reporting.filters.search.WINDOW runs, newest first.
WINDOWS = 5
# What is left for its state is counted up to here, a state.
CAP = 10_000
EXAMPLES = 5

COUNTED = f"""
SELECT verdict, status, job_type, count(*)::int AS runs, (array_agg(id))[1:{{examples}}] AS examples
FROM (
    SELECT r.id, r.status, r.job_type, {{verdict}} AS verdict
    FROM {rules.TAKEN}
) AS judged
GROUP BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True)
class MatchingRuns:
    """Ids of runs, newest first. ``is_all``: no other run matches; ``looked``: windows ended the search."""

    ids: list[int]
    is_all: bool = True
    looked: bool = False


@dataclass(frozen=True, slots=True)
class SkippedRuns:
    """Runs that are left as they are: ``why`` is a key of rules.LEFT, ``more`` that these are not all."""

    why: str
    runs: int
    status: str | None = None
    more: bool = False
    examples: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """What ``verb`` would do to which runs: ``moves`` are as many as will be moved.

    ``highest`` is the newest id that counts, ``states`` and ``types`` say how many of what are moved.
    """

    verb: str
    moves: int
    matched: MatchingRuns
    states: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    examples: Sequence[int] = ()
    left: Sequence[SkippedRuns] = ()

    @property
    def highest(self) -> int:
        """The newest run that was looked at; 1 when there is none."""
        return self.matched.ids[0] if self.matched.ids else 1

    @property
    def left_alone(self) -> int:
        """How many match and are left."""
        return sum(each.runs for each in self.left)


def preview(
    connection: Connection, verb: str, asked: FilterValues, as_of: datetime, also: Sequence[str] = ()
) -> Preview:
    """Return what ``verb`` would do now to all the runs of ``asked``, ``as_of`` being the database's now."""
    found = matching(connection, verb, asked, as_of)
    others = [state for state in _base(asked) if state not in rules.sources(verb)]
    return _judged(connection, verb, found, as_of, also, _left_by_state(connection, asked, others, as_of))


def preview_of(
    connection: Connection, verb: str, ids: Sequence[int], as_of: datetime, also: Sequence[str] = ()
) -> Preview:
    """Return what ``verb`` would do now to the runs ``ids``."""
    chosen = sorted(set(ids), reverse=True)
    found = _judged(connection, verb, MatchingRuns(chosen), as_of, also, [])
    missing = len(chosen) - found.moves - found.left_alone
    gone = [SkippedRuns("missing", missing)] if missing else []
    return Preview(
        verb, found.moves, found.matched, found.states, found.types, found.examples, [*found.left, *gone]
    )


def matching(
    connection: Connection, verb: str, asked: FilterValues, as_of: datetime, highest: int | None = None
) -> MatchingRuns:
    """Return the runs of ``asked`` in states that ``verb`` moves, from the id ``highest`` down.

    At most MOST_RUNS, the newest. Ages in the filter count from ``as_of``.
    """
    states = [state for state in _base(asked) if state in rules.sources(verb)]
    if not states:
        return MatchingRuns([])
    ids: list[int] = []
    below = None if highest is None else min(highest + 1, LARGEST_ID)
    for _ in range(WINDOWS):
        page = _page(connection, asked, states, as_of, rules.MOST_RUNS - len(ids), below)
        ids += page.ids
        if not page.is_cut:
            return MatchingRuns(ids, is_all=page.below is None)
        below = page.below
    return MatchingRuns(ids, is_all=False, looked=True)


def _base(asked: FilterValues) -> Sequence[str]:
    """Return the states in which the filter looks."""
    return states_of(asked) or [state.value for state in Status]


def _page(
    connection: Connection,
    asked: FilterValues,
    states: Sequence[str],
    as_of: datetime,
    limit: int,
    below: int | None = None,
) -> SearchPage:
    """Return the newest runs of ``asked`` in ``states``, of one window of the search."""
    narrowed = FilterValues({**asked.values, "status": tuple(states)}, asked.texts)
    start = None if below is None else Start(below)
    found = search(narrowed, as_of, partial(read_ids, connection), start=start)
    return read_page(connection, found, limit, below)


def _left_by_state(
    connection: Connection, asked: FilterValues, states: Sequence[str], as_of: datetime
) -> list[SkippedRuns]:
    """Return how many match in each of the ``states``, counted up to CAP and in one window."""
    found = []
    for state in states:
        page = _page(connection, asked, [state], as_of, CAP)
        if page.rows or page.is_cut:
            more = page.below is not None
            found.append(SkippedRuns("state", len(page.rows), state, more, page.ids[:EXAMPLES]))
    return found


def _judged(
    connection: Connection,
    verb: str,
    found: MatchingRuns,
    as_of: datetime,
    also: Sequence[str],
    by_state: Sequence[SkippedRuns],
) -> Preview:
    """Return the preview of the runs ``found``, each judged by the rules."""
    statement = COUNTED.format(examples=EXAMPLES, verdict=rules.verdict(verb))
    values = {"ids": found.ids, "as_of": as_of, "also": list(also)}
    with connection.cursor(row_factory=dict_row) as cursor:
        groups = cursor.execute(statement.encode(), values).fetchall() if found.ids else []
    states: dict[str, int] = {}
    types: dict[str, int] = {}
    left: dict[tuple[str, str | None], SkippedRuns] = {}
    for group in groups:
        if group["verdict"] == "moves":
            states[group["status"]] = states.get(group["status"], 0) + group["runs"]
            types[group["job_type"]] = types.get(group["job_type"], 0) + group["runs"]
            continue
        key = (group["verdict"], group["status"] if group["verdict"] == "state" else None)
        known = left.get(key, SkippedRuns(*_first(key)))
        examples = [*known.examples, *group["examples"]][:EXAMPLES]
        left[key] = SkippedRuns(known.why, known.runs + group["runs"], known.status, known.more, examples)
    moved = [group for group in groups if group["verdict"] == "moves"]
    return Preview(
        verb,
        sum(states.values()),
        found,
        dict(sorted(states.items(), key=lambda each: -each[1])),
        dict(sorted(types.items(), key=lambda each: (-each[1], each[0]))),
        [run_id for group in moved for run_id in group["examples"]][:EXAMPLES],
        [*sorted(left.values(), key=lambda each: -each.runs), *by_state],
    )


def _first(key: tuple[str, str | None]) -> tuple[str, int, str | None]:
    return key[0], 0, key[1]
