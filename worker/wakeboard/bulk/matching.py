"""Previews of operations: the runs that a filter matches, counted by what would happen to each. Reads only.

Imports SQLAlchemy, which writes the statements of filters; no worker imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple

from psycopg import Connection

from wakeboard.bulk import rules
from wakeboard.core.states import Status
from wakeboard.database.read import read_all
from wakeboard.reporting.filters.paging import SearchPage, read_ids, read_page
from wakeboard.reporting.filters.runs import states_of
from wakeboard.reporting.filters.search import Start, search
from wakeboard.reporting.filters.values import LARGEST_ID, FilterValues

# A filter without an index reads so many windows of reporting.filters.search.WINDOW runs, newest first.
WINDOWS = 5
# Runs that are skipped for their state are counted up to this number in each state.
CAP = 10_000
EXAMPLES = 5

COUNT_VERDICTS = f"""
SELECT verdict, status, job_type, count(*)::int AS runs, (array_agg(id))[1:{{examples}}] AS examples
FROM (
    SELECT r.id, r.status, r.job_type, {{verdict}} AS verdict
    FROM {rules.RUNS_BY_ID}
) AS judged
GROUP BY 1, 2, 3
"""


class VerdictCount(NamedTuple):
    """How many runs of a status and a type have a verdict, and the ids of some."""

    verdict: str
    status: str
    job_type: str
    runs: int
    examples: list[int]


@dataclass(frozen=True, slots=True)
class MatchingRuns:
    """Ids of runs, newest first. ``is_all``: no others match; ``is_cut_short``: WINDOWS ended the search."""

    ids: list[int]
    is_all: bool = True
    is_cut_short: bool = False


@dataclass(frozen=True, slots=True)
class SkippedRuns:
    """Runs that are skipped: ``why`` is a key of rules.SKIP_REASONS; ``has_more``: these are not all."""

    why: str
    runs: int
    status: str | None = None
    has_more: bool = False
    examples: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """What ``verb`` would do to which runs: ``moves`` of them are moved.

    ``states`` and ``types`` count those that are moved.
    """

    verb: str
    moves: int
    matched: MatchingRuns
    states: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    examples: Sequence[int] = ()
    skipped: Sequence[SkippedRuns] = ()

    @property
    def highest(self) -> int:
        """The id of the newest matching run; 1 when there is none."""
        return self.matched.ids[0] if self.matched.ids else 1

    @property
    def skipped_runs(self) -> int:
        """How many match and are skipped."""
        return sum(each.runs for each in self.skipped)


def preview(
    connection: Connection, verb: str, filters: FilterValues, as_of: datetime, also: Sequence[str] = ()
) -> Preview:
    """Return what ``verb`` would do now to all the runs of ``filters``, at ``as_of``, the database's now."""
    runs = matching(connection, verb, filters, as_of)
    others = [state for state in _states(filters) if state not in rules.sources(verb)]
    return _judge(connection, verb, runs, as_of, also, _skipped_by_state(connection, filters, others, as_of))


def preview_of(
    connection: Connection, verb: str, ids: Sequence[int], as_of: datetime, also: Sequence[str] = ()
) -> Preview:
    """Return what ``verb`` would do now to the runs ``ids``."""
    chosen = sorted(set(ids), reverse=True)
    result = _judge(connection, verb, MatchingRuns(chosen), as_of, also, [])
    missing = len(chosen) - result.moves - result.skipped_runs
    if not missing:
        return result
    return replace(result, skipped=[*result.skipped, SkippedRuns("missing", missing)])


def matching(
    connection: Connection, verb: str, filters: FilterValues, as_of: datetime, highest: int | None = None
) -> MatchingRuns:
    """Return the runs of ``filters`` in states that ``verb`` moves, from the id ``highest`` down.

    At most MOST_RUNS, the newest. Ages in the filter count from ``as_of``.
    """
    states = [state for state in _states(filters) if state in rules.sources(verb)]
    if not states:
        return MatchingRuns([])
    ids: list[int] = []
    below = None if highest is None else min(highest + 1, LARGEST_ID)
    for _ in range(WINDOWS):
        page = _page(connection, filters, states, as_of, rules.MOST_RUNS - len(ids), below)
        ids += page.ids
        if not page.is_cut:
            return MatchingRuns(ids, is_all=page.below is None)
        below = page.below
    return MatchingRuns(ids, is_all=False, is_cut_short=True)


def _states(filters: FilterValues) -> Sequence[str]:
    """Return the states that the filter allows."""
    return states_of(filters) or [state.value for state in Status]


def _page(
    connection: Connection,
    filters: FilterValues,
    states: Sequence[str],
    as_of: datetime,
    limit: int,
    below: int | None = None,
) -> SearchPage:
    """Return the newest runs of ``filters`` in ``states``, in one window of the search."""
    narrowed = FilterValues({**filters.values, "status": tuple(states)}, filters.texts)
    start = None if below is None else Start(below)
    query = search(narrowed, as_of, partial(read_ids, connection), start=start)
    return read_page(connection, query, limit, below)


def _skipped_by_state(
    connection: Connection, filters: FilterValues, states: Sequence[str], as_of: datetime
) -> list[SkippedRuns]:
    """Return how many match in each of the ``states``, counted up to CAP and in one window."""
    skipped = []
    for state in states:
        page = _page(connection, filters, [state], as_of, CAP)
        if page.rows or page.is_cut:
            has_more = page.below is not None
            skipped.append(SkippedRuns("state", len(page.rows), state, has_more, page.ids[:EXAMPLES]))
    return skipped


def _judge(
    connection: Connection,
    verb: str,
    matched: MatchingRuns,
    as_of: datetime,
    also: Sequence[str],
    by_state: Sequence[SkippedRuns],
) -> Preview:
    """Return the preview of the runs ``matched``, each judged by the rules."""
    statement = COUNT_VERDICTS.format(examples=EXAMPLES, verdict=rules.verdict(verb))
    values = {"ids": matched.ids, "as_of": as_of, "also": list(also)}
    counts = read_all(connection, statement, VerdictCount, values) if matched.ids else []
    states: dict[str, int] = {}
    types: dict[str, int] = {}
    moved: list[int] = []
    skipped: dict[tuple[str, str | None], SkippedRuns] = {}
    for count in counts:
        if count.verdict == "moves":
            states[count.status] = states.get(count.status, 0) + count.runs
            types[count.job_type] = types.get(count.job_type, 0) + count.runs
            moved += count.examples
            continue
        key = (count.verdict, count.status if count.verdict == "state" else None)
        so_far = skipped.get(key) or SkippedRuns(count.verdict, 0, key[1])
        examples = [*so_far.examples, *count.examples][:EXAMPLES]
        skipped[key] = replace(so_far, runs=so_far.runs + count.runs, examples=examples)
    return Preview(
        verb,
        sum(states.values()),
        matched,
        dict(sorted(states.items(), key=lambda each: -each[1])),
        dict(sorted(types.items(), key=lambda each: (-each[1], each[0]))),
        moved[:EXAMPLES],
        [*sorted(skipped.values(), key=lambda each: -each.runs), *by_state],
    )
