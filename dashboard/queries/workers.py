"""What the page of workers asks: every process that claims runs, and how it stands."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Integer, any_, case, func, literal, or_, select

from dashboard.params import Filters
from dashboard.queries.keyset import Rows, keyset_page
from dashboard.queries.overview import ALIVE
from worker.tables import workers

# In the order in which they are listed.
STATES = ("silent", "stopping", "draining", "busy", "idle", "stopped", "gone")
# Unless asked for, workers that stopped longer ago are left out: ticks alone make one each minute.
RECENTLY = timedelta(hours=1)
# Who fell silent so long ago has ended without a word; its runs were taken over within a minute.
GONE = timedelta(days=1)

columns = workers.c
rank = case(
    *(
        (condition, literal(place, Integer, literal_execute=True))
        for place, condition in (
            (5, columns.stopped_at.is_not(None)),
            (6, columns.seen_at < func.now() - GONE),
            (0, ~ALIVE),
            (1, or_(columns.stopping_at.is_not(None), columns.stop_requested_at.is_not(None))),
            (2, columns.drain_requested_at.is_not(None)),
            (3, columns.running > 0),
        )
    ),
    else_=literal(4, Integer, literal_execute=True),
).label("rank")


def page(connection: Connection, filters: Filters) -> Rows:
    """Return workers, silent ones first: the columns of workers and rank, an index of STATES.

    Without a filter by state, those that stopped more than RECENTLY ago are left out.
    """
    statement: Any = select(workers, rank)
    if wanted := filters.get("state"):
        statement = statement.where(rank.in_([STATES.index(state) for state in wanted]))
    else:
        lately = columns.stopped_at >= func.now() - RECENTLY
        statement = statement.where(or_(columns.stopped_at.is_(None), lately))
    if words := filters.get("q"):
        named = (columns.id, columns.name, columns.hostname)
        statement = statement.where(or_(*(each.icontains(words, autoescape=True) for each in named)))
    if job_type := filters.get("type"):
        statement = statement.where(literal(job_type) == any_(columns.job_types))
    return keyset_page(connection, statement, [rank, columns.id], filters, ascending=True)


_VERSIONS = select(columns.version).distinct().where(ALIVE, columns.version.is_not(None))


def versions(connection: Connection) -> list[str]:
    """Return the versions that live workers run."""
    return sorted(connection.execute(_VERSIONS).scalars())
