"""Runs that have run far longer than runs of their type usually take: the rule, and who breaks it.

A stuck run is told of as one: it does not run longer, for all that anybody knows. What is usual is what the
statistics tell of a type's last day.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from wakeboard.core import leases
from wakeboard.core.states import Status
from wakeboard_dashboard.queries.overview import GROUPS
from wakeboard_dashboard.queries.running import LONG_MINUTES
from wakeboard_dashboard.queries.types import TypePace, paces
from wakeboard_dashboard.text.verdict import CAP

# The rule: over TIMES what 95 % of those that succeeded took, and over LEAST_SECONDS; of at least FEWEST.
TIMES = 5
LEAST_SECONDS = 60.0 * LONG_MINUTES
FEWEST = 20

_LONG = f"""
    SELECT r.job_type, r.started_at FROM wakeboard.job_runs AS r
    WHERE r.status = '{Status.RUNNING.value}' AND r.started_at < now() - make_interval(secs => :least)
        AND NOT {leases.is_stuck("r")}
    LIMIT {CAP + 1}"""
_TYPES = text(f"SELECT DISTINCT job_type FROM ({_LONG}) AS old")
_BEYOND = text(f"""
SELECT old.job_type, count(*) AS runs, min(old.started_at) AS since_at
FROM ({_LONG}
) AS old
JOIN unnest(CAST(:names AS text[]), CAST(:seconds AS float8[])) AS usual (name, seconds)
    ON usual.name = old.job_type
WHERE old.started_at < now() - make_interval(secs => usual.seconds)
GROUP BY old.job_type ORDER BY runs DESC, old.job_type LIMIT {GROUPS}
""")


@dataclass(frozen=True, slots=True)
class OverlongRuns:
    """So many runs of one type have run far longer than usual, the first of them since when."""

    job_type: str
    count: int
    since_at: datetime
    pace: TypePace


def limit_seconds(pace: TypePace) -> float | None:
    """Return after how many seconds a run has run far longer than usual; None where too few are known."""
    if pace.runs < FEWEST or pace.p95 is None:
        return None
    return max(LEAST_SECONDS, TIMES * pace.p95)


def is_overlong(started_at: datetime, now: datetime, pace: TypePace | None) -> bool:
    """Return whether a run that runs since ``started_at`` has run far longer than ``pace`` at ``now``."""
    limit = None if pace is None else limit_seconds(pace)
    return limit is not None and (now - started_at).total_seconds() > limit


def usual_paces(connection: Connection, now: datetime, names: Collection[str]) -> dict[str, TypePace]:
    """Return how long runs of ``names`` took in the last day; types of which none succeeded are left out."""
    return {name: pace for name, pace in paces(connection, now, names).items() if pace.runs} if names else {}


def overlong(connection: Connection, now: datetime) -> list[OverlongRuns]:
    """Return the types of which runs have run far longer than usual, at most GROUPS, most runs first."""
    names = connection.execute(_TYPES, {"least": LEAST_SECONDS}).scalars().all()
    usual = usual_paces(connection, now, names)
    limits = {name: limit for name, pace in usual.items() if (limit := limit_seconds(pace)) is not None}
    if not limits:
        return []
    values = {"least": LEAST_SECONDS, "names": list(limits), "seconds": list(limits.values())}
    return [
        OverlongRuns(row.job_type, row.runs, row.since_at, usual[row.job_type])
        for row in connection.execute(_BEYOND, values)
    ]
