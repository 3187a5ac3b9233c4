"""How what runs is held: what is said of one run, and what is counted of all by one walk over the leases.

Under load thousands of runs are claimed, and as many entries of the index are of runs that have just ended:
to walk over them once for each number would be most of what a page asks.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Select, and_, func, literal_column, not_, select, text

from wakeboard.core import leases
from wakeboard.database.tables import job_runs
from wakeboard.reporting import worker_states
from wakeboard.reporting.filters.search import IS_RUNNING

_HAS_ENDED, _IS_SILENT, _IS_STUCK, _IS_FINISHING = (
    literal_column(of(str(job_runs)), Boolean())
    for of in (leases.is_ended, leases.is_silent, leases.is_stuck, worker_states.is_finishing)
)
# Whether a run may run far longer than usual is asked of these alone.
LONG_MINUTES = 10
_IS_LONG = job_runs.c.started_at < func.now() - text(f"interval '{LONG_MINUTES} minutes'")
IS_LEASE_ENDED = and_(IS_RUNNING, _HAS_ENDED)
IS_SILENT = and_(IS_RUNNING, _IS_SILENT)
IS_STUCK = and_(IS_RUNNING, _IS_STUCK)


def standing(cap: int) -> Select[Any]:
    """Select one row: how many runs are running, stuck, silent, finishing and long, each ``cap`` at most.

    Those that are stuck run too, and the silent ones are stuck ones whose leases still last: until these end
    no other worker takes them. The finishing ones are not stuck: their workers drain or stop. The long ones,
    of all, run for over LONG_MINUTES.
    """
    counted = (
        select(
            func.count().label("running"),
            func.count().filter(_HAS_ENDED).label("ended"),
            func.count().filter(not_(_HAS_ENDED), _IS_SILENT).label("silent"),
            func.count().filter(not_(_HAS_ENDED), _IS_FINISHING).label("finishing"),
            func.count().filter(_IS_LONG).label("long"),
        )
        .where(IS_RUNNING)
        .subquery("leased")
        .c
    )
    numbers = {
        "running": counted.running,
        "stuck": counted.ended + counted.silent,
        "silent": counted.silent,
        "finishing": counted.finishing,
        "long": counted.long,
    }
    columns: list[Any] = [func.least(n, cap, type_=BigInteger).label(name) for name, n in numbers.items()]
    return select(*columns)
