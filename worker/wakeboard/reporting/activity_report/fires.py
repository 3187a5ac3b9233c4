"""Finds late and overlapping runs of schedules in a window of time.

The first claim of a run writes both (``late_by``, ``overlapped``), and the index of the fires holds them: no
row is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.core.states import CLAIMABLE, sql_list
from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.faults import MOST_SHOWN

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# A fire is made within seconds of its time while any worker lives, and started when a slot is free.
LATE = timedelta(minutes=1)
# By how many seconds a run ``r`` is late: at its first start, or up to now while it waits for that.
LATE_BY = f"""coalesce(r.late_by, CASE WHEN r.status IN ({sql_list(CLAIMABLE)})
        THEN date_part('epoch', now() - r.scheduled_for) END)"""


class ScheduleFires(NamedTuple):
    """The fires of one schedule: how many, how many started late, how many beside the run before.

    ``late_seconds`` is the worst delay, ``late_run_id`` its run; ``beside_run_id`` the newest of those.
    """

    name: str
    overlap: str
    fires: int
    late: int
    late_seconds: float | None
    late_run_id: int | None
    beside: int
    beside_run_id: int | None


@dataclass(frozen=True, slots=True)
class Fires:
    """The schedules of which fires started late or beside the run before, by name."""

    schedules: Sequence[ScheduleFires]

    @property
    def late(self) -> int:
        """How many fires started late."""
        return sum(each.late for each in self.schedules)

    @property
    def beside(self) -> int:
        """How many fires started beside the run before."""
        return sum(each.beside for each in self.schedules)

    @property
    def latest(self) -> list[ScheduleFires]:
        """The schedules of which fires started late, the latest first."""
        late = [each for each in self.schedules if each.late]
        return sorted(late, key=lambda each: -(each.late_seconds or 0))

    @property
    def most_beside(self) -> list[ScheduleFires]:
        """The schedules of which fires started beside the run before, those with most first."""
        return sorted((each for each in self.schedules if each.beside), key=lambda each: -each.beside)

    @property
    def worst(self) -> list[ScheduleFires]:
        """The schedules with the worst delays and those with most overlaps, by name."""
        shown = {*self.latest[:MOST_SHOWN], *self.most_beside[:MOST_SHOWN]}
        return sorted(shown, key=lambda each: each.name)


_WITHIN = """r.definition_id = ANY (ARRAY(SELECT id FROM wakeboard.job_definitions))
        AND r.scheduled_for >= %(since)s AND r.scheduled_for < %(until)s"""
# The latest start and the newest overlap are the greatest of (which, run), as floats: they say a time to the
# microsecond and an id up to 2 to the 53rd.
_FIRED = f"""
SELECT d.name, d.overlap, fires, late, latest[1] AS late_seconds, latest[2]::bigint AS late_run_id,
    beside, newest[2]::bigint AS beside_run_id
FROM (
    SELECT definition_id, count(*) AS fires, count(*) FILTER (WHERE late_by > %(late)s) AS late,
        max(ARRAY[late_by, id]) FILTER (WHERE late_by > %(late)s) AS latest,
        count(*) FILTER (WHERE overlapped) AS beside,
        max(ARRAY[date_part('epoch', scheduled_for), id]) FILTER (WHERE overlapped) AS newest
    FROM (
        SELECT r.definition_id, r.id, r.scheduled_for, r.overlapped, {LATE_BY} AS late_by
        FROM wakeboard.job_runs AS r WHERE {_WITHIN}
    ) AS fire
    GROUP BY definition_id
) AS schedule JOIN wakeboard.job_definitions AS d ON d.id = definition_id
WHERE late > 0 OR beside > 0
ORDER BY d.name
"""
_ANY = f"SELECT EXISTS (SELECT FROM wakeboard.job_runs AS r WHERE {_WITHIN}) AS is_any"


def fired(connection: Connection, window: TimeWindow) -> Fires:
    """Return how the fires of ``window`` began for which a run was made."""
    values = {"since": window.since, "until": window.until, "late": LATE.total_seconds()}
    return Fires(read_all(connection, _FIRED, ScheduleFires, values))


class _Any(NamedTuple):
    """The answer of _ANY."""

    is_any: bool


def is_any(connection: Connection, window: TimeWindow) -> bool:
    """Return whether a run was made for a fire of ``window``, of a schedule that is still there."""
    return read_all(connection, _ANY, _Any, {"since": window.since, "until": window.until})[0].is_any
