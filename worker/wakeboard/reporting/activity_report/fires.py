"""The fires of schedules in a time window: late and overlapping runs, and missed fires.

The first claim of a run writes ``late_by`` and ``overlapped``. Both are in the index of the fires, so that no
row is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.core.states import CLAIMABLE, sql_list
from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow
from wakeboard.reporting.activity_report.failures import MAX_SHOWN

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# A fire becomes a run within seconds while any worker lives, and starts when a slot is free.
LATE = timedelta(minutes=1)
# At most so many missed fires are counted; in a night without a worker each fire of each schedule may be one.
MAX_MISSED = 200_000
MAX_MISSED_LINES = 100
# The SQL of how many seconds a run ``r`` is late: at its first start, or up to now while it waits for that.
LATE_BY = f"""coalesce(r.late_by, CASE WHEN r.status IN ({sql_list(CLAIMABLE)})
        THEN date_part('epoch', now() - r.scheduled_for) END)"""


class ScheduleFires(NamedTuple):
    """The fires of one schedule that became runs: how many, how many started late, how many overlapped.

    ``late_seconds`` is the longest delay, ``late_run_id`` its run. ``beside`` fires started beside the run
    before; ``beside_run_id`` is the newest of them.
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
    """The schedules with fires that started late or beside the run before, by name."""

    schedules: Sequence[ScheduleFires]

    @property
    def late(self) -> int:
        """How many fires started late."""
        return sum(each.late for each in self.schedules)

    @property
    def overlapping(self) -> int:
        """How many fires started beside the run before."""
        return sum(each.beside for each in self.schedules)

    @property
    def latest(self) -> list[ScheduleFires]:
        """The schedules with late fires, the longest delay first."""
        late = [each for each in self.schedules if each.late]
        return sorted(late, key=lambda each: -(each.late_seconds or 0))

    @property
    def most_overlapping(self) -> list[ScheduleFires]:
        """The schedules with overlapping fires, those with most first."""
        return sorted((each for each in self.schedules if each.beside), key=lambda each: -each.beside)

    @property
    def worst(self) -> list[ScheduleFires]:
        """The schedules with the longest delays and those with most overlaps, by name."""
        shown = {*self.latest[:MAX_SHOWN], *self.most_overlapping[:MAX_SHOWN]}
        return sorted(shown, key=lambda each: each.name)


_WITHIN = """r.definition_id = ANY (ARRAY(SELECT id FROM wakeboard.job_definitions))
        AND r.scheduled_for >= %(since)s AND r.scheduled_for < %(until)s"""
# The latest start and the newest overlap are the greatest arrays (time, run). As floats they hold a time to
# the microsecond and an id up to 2 to the 53rd.
_FIRES = f"""
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
_HAS_FIRES = f"SELECT EXISTS (SELECT FROM wakeboard.job_runs AS r WHERE {_WITHIN}) AS has_fires"


class _HasFires(NamedTuple):
    has_fires: bool


def find_fires(connection: Connection, window: TimeWindow) -> Fires:
    """Return the schedules with late or overlapping fires in ``window``, of fires that became runs."""
    values = {"since": window.since, "until": window.until, "late": LATE.total_seconds()}
    return Fires(read_all(connection, _FIRES, ScheduleFires, values))


def has_fires(connection: Connection, window: TimeWindow) -> bool:
    """Return whether a fire of ``window`` became a run, of a schedule that still exists."""
    values = {"since": window.since, "until": window.until}
    return read_all(connection, _HAS_FIRES, _HasFires, values)[0].has_fires


class MissedFires(NamedTuple):
    """The fires of one schedule that were missed for one reason; ``is_many``: a row stands for very many."""

    name: str
    reason: str
    fires: int
    is_many: bool
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class MissedFireCounts:
    """How many fires were missed, in so many ``lines`` by schedule and reason; the ``worst`` of these.

    ``is_cut``: there were more fires, because a row stands for very many or because counting stopped.
    """

    fires: int
    lines: int
    is_cut: bool
    worst: Sequence[MissedFires]


# Rows that stand for very many are found by the index of until_at, those of removed schedules by the index of
# scheduled_for.
_MISSED = """
SELECT coalesce(d.name, m.schedule_name) AS name, m.reason, count(*) AS fires,
    bool_or(m.until_at IS NOT NULL) AS is_many,
    min(m.scheduled_for) AS first_at, max(coalesce(m.until_at, m.scheduled_for)) AS last_at,
    sum(count(*)) OVER ()::bigint AS all_fires, count(*) OVER () AS lines,
    bool_or(bool_or(m.until_at IS NOT NULL)) OVER () AS are_many
FROM (
    (SELECT f.definition_id, f.schedule_name, f.reason, f.scheduled_for, f.until_at
     FROM wakeboard.missed_fires AS f
     WHERE f.definition_id = ANY (ARRAY(SELECT id FROM wakeboard.job_definitions))
        AND f.scheduled_for >= %(since)s AND f.scheduled_for < %(until)s
     ORDER BY f.definition_id, f.scheduled_for
     LIMIT %(many)s)
    UNION ALL
    (SELECT f.definition_id, f.schedule_name, f.reason, f.scheduled_for, f.until_at
     FROM wakeboard.missed_fires AS f
     WHERE f.definition_id IS NULL AND f.scheduled_for >= %(since)s AND f.scheduled_for < %(until)s
     ORDER BY f.scheduled_for
     LIMIT %(many)s)
    UNION ALL
    (SELECT f.definition_id, f.schedule_name, f.reason, f.scheduled_for, f.until_at
     FROM wakeboard.missed_fires AS f
     WHERE f.until_at > %(since)s AND f.scheduled_for < %(since)s
     LIMIT %(many)s)
) AS m
LEFT JOIN wakeboard.job_definitions AS d ON d.id = m.definition_id
GROUP BY 1, m.reason
ORDER BY count(*) DESC, 1, m.reason
LIMIT %(most)s
"""


class _MissedRow(NamedTuple):
    """A row of _MISSED: the fields of MissedFires, and the counts over all rows."""

    name: str
    reason: str
    fires: int
    is_many: bool
    first_at: datetime
    last_at: datetime
    all_fires: int
    lines: int
    are_many: bool


def find_missed_fires(connection: Connection, window: TimeWindow) -> MissedFireCounts:
    """Return the fires of ``window`` that made no run, by schedule and reason, most first."""
    values = {"since": window.since, "until": window.until, "many": MAX_MISSED, "most": MAX_MISSED_LINES}
    rows = read_all(connection, _MISSED, _MissedRow, values)
    if not rows:
        return MissedFireCounts(0, 0, False, ())
    worst = [
        MissedFires(row.name, row.reason, row.fires, row.is_many, row.first_at, row.last_at) for row in rows
    ]
    total = rows[0].all_fires
    return MissedFireCounts(total, rows[0].lines, rows[0].are_many or total >= MAX_MISSED, worst)
