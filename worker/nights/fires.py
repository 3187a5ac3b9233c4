"""What the page of a night asks of schedules: fires that were missed, late, or ran beside the one before.

Each schedule's fires come from the index of fires, which has all that is asked: at most PER_SCHEDULE of each,
CAP of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from worker.nights import Ask, Window

CAP = 10_000
PER_SCHEDULE = 2000
MOST_SHOWN = 100
# A fire is made within seconds of its time while any worker lives, and started when a slot is free.
LATE = timedelta(minutes=1)


class Fired(NamedTuple):
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


# A run's started_at is that of its latest attempt; the first one's is in its history.
_FIRES = """
WITH fire AS (
    SELECT d.id AS definition_id, r.id, r.scheduled_for, r.status, r.finished_at,
        CASE WHEN r.attempts > 1 THEN coalesce((
            SELECT a.started_at FROM wakeboard.job_attempts AS a
            WHERE a.run_id = r.id ORDER BY a.lease_epoch LIMIT 1
        ), r.started_at) ELSE r.started_at END AS first_started_at
    FROM (SELECT id FROM wakeboard.job_definitions ORDER BY id LIMIT :cap) AS d
    CROSS JOIN LATERAL (
        SELECT r.id, r.scheduled_for, r.status, r.attempts, r.started_at, r.finished_at
        FROM wakeboard.job_runs AS r
        WHERE r.definition_id = d.id AND r.scheduled_for >= :since AND r.scheduled_for < :until
        ORDER BY r.scheduled_for DESC
        LIMIT :each
    ) AS r
    LIMIT :cap
), judged AS (
    SELECT definition_id, id, scheduled_for,
        coalesce(first_started_at, CASE WHEN status IN ('queued', 'failed') THEN now() END) AS start_at,
        first_started_at < max(coalesce(finished_at, now())) FILTER (WHERE first_started_at IS NOT NULL)
            OVER (PARTITION BY definition_id ORDER BY scheduled_for
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS is_beside
    FROM fire
)"""
# The latest start and the newest overlap are the greatest of (which, run): an aggregate with an order, or
# groups by name, would sort every fire. Numbers are made of the odd fires alone, as floats: they say a time
# to the microsecond and an id up to 2 to the 53rd, and take less to make and to compare than ``numeric``.
_FIRED = f"""{_FIRES}
SELECT d.name, d.overlap, told.fires, told.late, round(told.latest[1]::numeric, 6)::float8 AS late_seconds,
    told.latest[2]::bigint AS late_run_id, told.beside, told.newest_beside[2]::bigint AS beside_run_id
FROM (
    SELECT definition_id, count(*) AS fires,
        count(*) FILTER (WHERE start_at > scheduled_for + :late) AS late,
        max(ARRAY[date_part('epoch', start_at - scheduled_for), id])
            FILTER (WHERE start_at > scheduled_for + :late) AS latest,
        count(*) FILTER (WHERE is_beside) AS beside,
        max(ARRAY[date_part('epoch', scheduled_for), id]) FILTER (WHERE is_beside) AS newest_beside
    FROM judged
    GROUP BY definition_id
) AS told
JOIN wakeboard.job_definitions AS d ON d.id = told.definition_id
ORDER BY d.name"""


def fired(ask: Ask, window: Window) -> list[Fired]:
    """Return by schedule the fires of ``window`` for which a run was made; all together at most CAP."""
    values = {
        "since": window.since,
        "until": window.until,
        "cap": CAP,
        "each": PER_SCHEDULE,
        "late": LATE,
    }
    return [Fired(*row.values()) for row in ask(_FIRED, values)]


def late(found: Iterable[Fired]) -> list[Fired]:
    """Return those of ``found`` of which fires started late, the latest first."""
    return sorted((each for each in found if each.late), key=lambda each: -(each.late_seconds or 0))


def beside(found: Iterable[Fired]) -> list[Fired]:
    """Return those of ``found`` of which fires started beside the run before, those with most first."""
    return sorted((each for each in found if each.beside), key=lambda each: -each.beside)


class Missed(NamedTuple):
    """Fires of one schedule that were missed for one reason; ``is_many``: one stands for very many."""

    name: str
    reason: str
    fires: int
    is_many: bool
    first_at: datetime
    last_at: datetime


_MISSED = """
SELECT d.name, m.reason, count(*) AS fires, bool_or(m.until_at IS NOT NULL) AS is_many,
    min(m.scheduled_for) AS first_at, max(coalesce(m.until_at, m.scheduled_for)) AS last_at
FROM (SELECT id, name FROM wakeboard.job_definitions ORDER BY id LIMIT :cap) AS d
CROSS JOIN LATERAL (
    (SELECT f.reason, f.scheduled_for, f.until_at FROM wakeboard.missed_fires AS f
     WHERE f.definition_id = d.id AND f.scheduled_for >= :since AND f.scheduled_for < :until
     ORDER BY f.scheduled_for DESC LIMIT :each)
    UNION ALL
    (SELECT before.* FROM (
        SELECT f.reason, f.scheduled_for, f.until_at FROM wakeboard.missed_fires AS f
        WHERE f.definition_id = d.id AND f.scheduled_for < :since
        ORDER BY f.scheduled_for DESC LIMIT 1
     ) AS before WHERE before.until_at > :since)
) AS m
GROUP BY d.name, m.reason
ORDER BY count(*) DESC, d.name, m.reason
LIMIT :most
"""


def missed(ask: Ask, window: Window) -> list[Missed]:
    """Return by schedule and reason the fires that fell into ``window`` and were not made, most first."""
    values = {
        "since": window.since,
        "until": window.until,
        "cap": CAP,
        "each": PER_SCHEDULE,
        "most": MOST_SHOWN,
    }
    return [Missed(*row.values()) for row in ask(_MISSED, values)]
