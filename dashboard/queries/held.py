"""How what runs is held, by one walk over the leases.

Under load thousands of runs are claimed, and as many entries of the index are of runs that have just ended:
to walk over them once for each number would be most of what a page asks.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Select, and_, func, literal_column, not_, select

from worker import leases
from worker.filters.search import IS_RUNNING
from worker.tables import job_runs

runs = job_runs.c
# The order of job_runs_leased, which has what runs and nothing else.
LEASED = (runs.job_type, runs.locked_until)
STUCK = and_(IS_RUNNING, literal_column(leases.is_stuck(str(job_runs)), Boolean()))

_HAS_ENDED = literal_column(leases.is_ended(str(job_runs)), Boolean())
# Nobody is heard to work at it, but its lease lasts: until that ends no other worker takes it.
_IN_SILENCE = and_(not_(_HAS_ENDED), literal_column(leases.is_silent(str(job_runs)), Boolean()))


def standing(cap: int) -> Select[Any]:
    """Select one row: how many runs are ``running``, ``stuck`` and ``silent``, each ``cap`` at most.

    Those that are stuck run too, and the silent ones are stuck ones whose leases still last.
    """
    counted = (
        select(
            func.count().label("running"),
            func.count().filter(_HAS_ENDED).label("ended"),
            func.count().filter(_IN_SILENCE).label("silent"),
        )
        .where(IS_RUNNING)
        .subquery("leased")
        .c
    )
    numbers = {
        "running": counted.running,
        "stuck": counted.ended + counted.silent,
        "silent": counted.silent,
    }
    columns: list[Any] = [func.least(n, cap, type_=BigInteger).label(name) for name, n in numbers.items()]
    return select(*columns)
