"""What the page of a night asks of schedules: fires that were missed, late, or ran beside the one before.

Each schedule's fires come from the index of fires, which has all that is asked: at most PER_SCHEDULE of each,
CAP of all. One walk over them counts; schedules with a fire that was retried or took long get a second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from worker.nights import Ask, Window

CAP = 10_000
PER_SCHEDULE = 2000
MOST_SHOWN = 100
# A fire is made within seconds of its time while any worker lives, and started when a slot is free.
LATE = timedelta(minutes=1)
# Two fires of a schedule are at least this far apart: nothing in cron is finer.
STEP = timedelta(minutes=1)


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


# When a run ``r`` was through. Of a dead one that somebody cancelled later, finished_at is that cancel: its
# last attempt, after which none was to come, tells.
THROUGH_AT = """CASE WHEN r.attempts > 0 AND r.status = 'cancelled' THEN coalesce((
                SELECT CASE WHEN a.next_run_at IS NULL AND a.outcome <> 'released' THEN a.finished_at END
                FROM wakeboard.job_attempts AS a
                WHERE a.run_id = r.id ORDER BY a.lease_epoch DESC LIMIT 1
            ), r.finished_at) ELSE r.finished_at END"""
# A run's started_at is that of its latest attempt; the first one's is in its history.
_FIRE = f"""r.id, r.scheduled_for, r.status, {THROUGH_AT} AS through_at,
            CASE WHEN r.attempts > 1 THEN coalesce((
                SELECT a.started_at FROM wakeboard.job_attempts AS a
                WHERE a.run_id = r.id ORDER BY a.lease_epoch LIMIT 1
            ), r.started_at) ELSE r.started_at END AS first_started_at"""
_PLAIN = "r.definition_id, r.id, r.scheduled_for, r.status, r.attempts, r.started_at, r.finished_at"
# In the order of the index, schedule by schedule, nothing has to be sorted (PostgreSQL 17 and newer know it).
# Of the last schedule it may be that only the oldest are read: then it is left out.
_IN_ORDER = f"""
        SELECT {_PLAIN}
        FROM wakeboard.job_runs AS r
        WHERE r.definition_id = ANY (ARRAY(SELECT id FROM wakeboard.job_definitions ORDER BY id LIMIT :cap))
            AND r.scheduled_for >= :since AND r.scheduled_for < :until
        ORDER BY r.definition_id, r.scheduled_for
        LIMIT :cap"""
# The newest of each.
_NEWEST = f"""
        SELECT r.*
        FROM (
            SELECT id FROM wakeboard.job_definitions ORDER BY id LIMIT :cap
        ) AS d CROSS JOIN LATERAL (
            SELECT {_PLAIN}
            FROM wakeboard.job_runs AS r
            WHERE r.definition_id = d.id AND r.scheduled_for >= :since AND r.scheduled_for < :until
            ORDER BY r.scheduled_for DESC
            LIMIT :each
        ) AS r
        LIMIT :cap"""
# The latest start and the newest overlap are the greatest of (which, run): an aggregate with an order, or
# groups by name, would sort every fire. Numbers are made of the odd fires alone, as floats: they say a time
# to the microsecond and an id up to 2 to the 53rd, and take less to make and to compare than ``numeric``. Of
# the fires that wait there may be thousands, so the latest of these is found as the oldest.
_IS_LATE = "{start} > scheduled_for + :late"
_WAITS = "{start} IS NULL AND now() > scheduled_for + :late AND status IN ('queued', 'failed')"
_LATE = f"""
        count(*) FILTER (WHERE {_IS_LATE}) + count(*) FILTER (WHERE {_WAITS}) AS late,
        max(ARRAY[date_part('epoch', {{start}} - scheduled_for), id]) FILTER (WHERE {_IS_LATE})
            AS latest_start,
        min(scheduled_for) FILTER (WHERE {_WAITS}) AS waits_since"""
# Of a run that began once and was through within STEP the row tells all, and no other can have begun beside
# it. Schedules that have another kind are walked over once more, run by run with its past.
_IS_PLAIN = """attempts <= 1 AND (started_at IS NULL OR started_at >= scheduled_for
            AND coalesce(finished_at, now()) <= scheduled_for + :step)"""
_WALKED = f"""
    SELECT {_LATE.format(start="first_started_at")},
        count(*) FILTER (WHERE is_beside) AS beside,
        max(ARRAY[date_part('epoch', scheduled_for), id]) FILTER (WHERE is_beside) AS newest_beside
    FROM (
        SELECT *, first_started_at < max(
            CASE WHEN first_started_at IS NOT NULL THEN coalesce(through_at, now()) END
        ) OVER (ORDER BY scheduled_for ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS is_beside
        FROM (
            SELECT {_FIRE}
            FROM wakeboard.job_runs AS r
            WHERE r.definition_id = told.definition_id
                AND r.scheduled_for >= :since AND r.scheduled_for < :until
            ORDER BY r.scheduled_for DESC
            LIMIT told.to_walk
        ) AS newest
    ) AS in_turn"""
# Schedules are told in columns: rows of hundreds take Python as long as PostgreSQL this. OFFSET lets the
# latest be looked up once.
_JUDGED = f"""
WITH told AS (
    SELECT definition_id, count(*) AS fires,
        CASE WHEN bool_and({_IS_PLAIN}) THEN 0 ELSE count(*) END AS to_walk,
        {_LATE.format(start="started_at")}
    FROM ({{fires}}
    ) AS fire
    GROUP BY definition_id
)
SELECT array_agg(id) AS ids, array_agg(name) AS names, array_agg(overlap) AS overlaps,
    array_agg(fires) AS fires, array_agg(late) AS late, array_agg(latest[1]) AS late_seconds,
    array_agg(latest[2]::bigint) AS late_run_ids, array_agg(beside) AS beside,
    array_agg(newest_beside[2]::bigint) AS beside_run_ids
FROM (
    SELECT d.id, d.name, d.overlap, each.*,
        greatest(latest_start, CASE WHEN waits_since IS NOT NULL THEN ARRAY[
            date_part('epoch', now() - waits_since), (
                SELECT r.id FROM wakeboard.job_runs AS r
                WHERE r.definition_id = d.id AND r.scheduled_for = waits_since
            )
        ] END) AS latest
    FROM (
        SELECT told.definition_id, told.fires, walked.beside, walked.newest_beside,
            CASE WHEN to_walk = 0 THEN told.late ELSE walked.late END AS late,
            CASE WHEN to_walk = 0 THEN told.latest_start ELSE walked.latest_start END AS latest_start,
            CASE WHEN to_walk = 0 THEN told.waits_since ELSE walked.waits_since END AS waits_since
        FROM told CROSS JOIN LATERAL ({_WALKED}
        ) AS walked
    ) AS each
    JOIN wakeboard.job_definitions AS d ON d.id = each.definition_id
    ORDER BY d.name OFFSET 0
) AS named"""
_FIRED, _FIRED_NEWEST = (_JUDGED.format(fires=each) for each in (_IN_ORDER, _NEWEST))


def fired(ask: Ask, window: Window) -> list[Fired]:
    """Return by schedule the fires of ``window`` for which a run was made; all together at most CAP.

    Of each schedule the newest PER_SCHEDULE; schedules for which there is no room are left out. Where one has
    more than PER_SCHEDULE, of the last one the newest that there is room for.
    """
    values = {"since": window.since, "until": window.until, "cap": CAP, "late": LATE, "step": STEP}
    found = _fires(ask, _FIRED, values)
    if any(one.fires > PER_SCHEDULE for one in found.values()):
        found = _fires(ask, _FIRED_NEWEST, values | {"each": PER_SCHEDULE})
    elif sum(one.fires for one in found.values()) >= CAP:
        found.pop(max(found))
    return list(found.values())


def _fires(ask: Ask, sql: str, values: Mapping[str, object]) -> dict[int, Fired]:
    """Return the fires by the id of their schedule, in the order of names."""
    ids, *columns = ask(sql, values)[0].values()
    if ids is None:
        return {}
    names, overlaps, counts, late, seconds, *others = columns
    seconds = [each and round(each, 6) for each in seconds]
    told = zip(names, overlaps, counts, late, seconds, *others, strict=True)
    return dict(zip(ids, map(Fired._make, told), strict=True))


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
