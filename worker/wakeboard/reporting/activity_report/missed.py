"""What the page of a night asks of the fires that made no run: how many, of which schedules and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from wakeboard.database.read import read_all
from wakeboard.reporting.activity_report import TimeWindow

if TYPE_CHECKING:
    from wakeboard.database.read import Connection

# So many fires are counted; in a night without a worker each of each schedule may be one.
MANY = 200_000
MOST_TOLD = 100


class MissedFires(NamedTuple):
    """Fires of one schedule that were missed for one reason; ``is_many``: one stands for very many."""

    name: str
    reason: str
    fires: int
    is_many: bool
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class AllMissedFires:
    """How many fires were missed, in so many ``lines`` by schedule and reason; the ``worst`` MOST_TOLD.

    ``is_cut``: there are more, because one stands for very many or because counting stopped.
    """

    fires: int
    lines: int
    is_cut: bool
    worst: Sequence[MissedFires]


# Of a fire that stands for very many, until_at has an index; of schedules that were removed, scheduled_for.
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


class _Counted(NamedTuple):
    """One row of _MISSED: a MissedFires, and what is counted of all of them."""

    name: str
    reason: str
    fires: int
    is_many: bool
    first_at: datetime
    last_at: datetime
    all_fires: int
    lines: int
    are_many: bool


def missed(connection: Connection, window: TimeWindow) -> AllMissedFires:
    """Return by schedule and reason the fires that fell into ``window`` and were not made, most first."""
    values = {"since": window.since, "until": window.until, "many": MANY, "most": MOST_TOLD}
    rows = read_all(connection, _MISSED, _Counted, values)
    if not rows:
        return AllMissedFires(0, 0, False, ())
    worst = [
        MissedFires(row.name, row.reason, row.fires, row.is_many, row.first_at, row.last_at) for row in rows
    ]
    first = rows[0]
    return AllMissedFires(first.all_fires, first.lines, first.are_many or first.all_fires >= MANY, worst)
