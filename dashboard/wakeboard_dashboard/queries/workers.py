"""What the page of workers asks: every process that claims runs, and how it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Boolean, Connection, Integer, any_, literal, literal_column, or_, select, text

from wakeboard.core.states import Status
from wakeboard.database.tables import workers
from wakeboard.reporting import worker_states
from wakeboard_dashboard.queries.filters import Filters
from wakeboard_dashboard.queries.keyset import Rows, keyset_page
from wakeboard_dashboard.queries.overview import ALIVE

STATES = worker_states.NAMES
MOST_RUNNING = 1000
# Of what a worker runs, so many have a link of their own.
MOST_NAMED = 3

columns = workers.c
rank = literal_column(worker_states.rank(str(workers)), Integer()).label("rank")
_IS_RECENT = literal_column(worker_states.is_recent(str(workers)), Boolean())


def page(connection: Connection, filters: Filters) -> Rows:
    """Return workers, silent ones first: the columns of workers and rank, an index of STATES.

    Without a filter by state, those that stopped a while ago are left out.
    """
    statement: Any = select(workers, rank)
    if wanted := filters.get("state"):
        statement = statement.where(rank.in_([STATES.index(state) for state in wanted]))
    else:
        statement = statement.where(_IS_RECENT)
    if words := filters.get("q"):
        named = (columns.id, columns.name, columns.hostname)
        statement = statement.where(or_(*(each.icontains(words, autoescape=True) for each in named)))
    if job_type := filters.get("type"):
        statement = statement.where(literal(job_type) == any_(columns.job_types))
    return keyset_page(connection, statement, [rank, columns.id], filters, ascending=True)


# The limit is inside, ordered by the index of what runs, so that nothing else is read; a worker that runs
# hundreds at once is one row all the same.
_RUNNING = text(f"""
SELECT locked_by, array_agg(id ORDER BY started_at, id) AS ids,
    (array_agg(job_type ORDER BY started_at, id))[1 \\: {MOST_NAMED}] AS job_types
FROM (
    SELECT r.locked_by, r.id, r.job_type, r.started_at FROM wakeboard.job_runs AS r
    WHERE r.status = '{Status.RUNNING.value}' AND r.locked_by = ANY (CAST(:ids AS text[]))
    ORDER BY r.job_type, r.locked_until LIMIT {MOST_RUNNING + 1}
) AS held
GROUP BY locked_by
""")


@dataclass(frozen=True, slots=True)
class WorkerRuns:
    """What a worker runs, the longest first: the ``ids`` of all, the types of the first MOST_NAMED.

    ``is_cut``: there were too many to be read, and it may run others.
    """

    ids: Sequence[int] = ()
    job_types: Sequence[str] = ()
    is_cut: bool = False

    @property
    def first(self) -> list[tuple[int, str]]:
        """(id, type) of the first MOST_NAMED."""
        return list(zip(self.ids, self.job_types, strict=False))


def running(connection: Connection, ids: Sequence[str]) -> Mapping[str, WorkerRuns]:
    """Return by worker id what the workers ``ids`` run now, together not many more than MOST_RUNNING runs."""
    rows = connection.execute(_RUNNING, {"ids": list(ids)}).all() if ids else []
    is_cut = sum([len(row.ids) for row in rows]) > MOST_RUNNING
    found = {row.locked_by: WorkerRuns(row.ids, row.job_types, is_cut) for row in rows}
    return {each: found.get(each) or WorkerRuns(is_cut=is_cut) for each in ids}


_VERSIONS = select(columns.version).distinct().where(ALIVE, columns.version.is_not(None))


def versions(connection: Connection) -> list[str]:
    """Return the versions that live workers run."""
    return sorted(connection.execute(_VERSIONS).scalars())
