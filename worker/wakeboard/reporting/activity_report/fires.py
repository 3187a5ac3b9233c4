"""What the page of a night asks of the fires of schedules: which were late, or ran beside the one before.

A plain fire (``database.index_predicates``) was not late, and none was beside it. The others are in two
indexes of their own, those under way and those that ended, so that a night costs what was odd in it, however
many fires it had. At most CAP of each are read one by one, and MANY walked over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from wakeboard.database.index_predicates import IS_ODD_FIRE, IS_UNDER_WAY
from wakeboard.reporting.activity_report import Ask, Window
from wakeboard.reporting.activity_report.faults import MOST_SHOWN as MOST_TOLD

CAP, MANY = 20_000, 200_000
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


@dataclass(frozen=True, slots=True)
class Fires:
    """How the fires of a window began: how many ``late`` or ``beside`` the run before, of how many schedules.

    Looked at were those ``under_way`` and the odd ones that had ``ended``; ``walked`` over were those while
    another took long. ``worst`` are the schedules with the worst delays and those with most fires beside
    another, by name, at most MOST_TOLD of each.
    """

    late: int
    late_schedules: int
    beside: int
    beside_schedules: int
    under_way: int
    ended: int
    walked: int
    worst: Sequence[Fired]

    @property
    def is_cut(self) -> bool:
        """Whether there may be more than were looked at."""
        return max(self.under_way, self.ended) >= CAP or self.walked >= MANY


# When a run ``r`` was through. Of a dead one that somebody cancelled later, finished_at is that cancel: its
# last attempt, after which none was to come, tells.
THROUGH_AT = """CASE WHEN r.attempts > 0 AND r.status = 'cancelled' THEN coalesce((
                SELECT CASE WHEN a.next_run_at IS NULL AND a.outcome <> 'released' THEN a.finished_at END
                FROM wakeboard.job_attempts AS a
                WHERE a.run_id = r.id ORDER BY a.lease_epoch DESC LIMIT 1
            ), r.finished_at) ELSE r.finished_at END"""
# A run's started_at is that of its latest attempt; the first one's is in its history.
_FIRE = f"""r.definition_id, r.id, r.scheduled_for, {THROUGH_AT} AS through_at,
            CASE WHEN r.attempts > 1 THEN coalesce((
                SELECT a.started_at FROM wakeboard.job_attempts AS a
                WHERE a.run_id = r.id ORDER BY a.lease_epoch LIMIT 1
            ), r.started_at) ELSE r.started_at END AS first_started_at"""
_WITHIN = "r.scheduled_for >= :since AND r.scheduled_for < :until"
# Of those that wait there may be thousands: they are counted as they are read, in the order of their index.
# What began is judged run by run.
_UNDER_WAY = f"""
    SELECT definition_id, count(*) AS runs, count(*) FILTER (WHERE is_late) AS late,
        min(scheduled_for) FILTER (WHERE is_late) AS waits_since,
        array_agg(id) FILTER (WHERE started_at IS NOT NULL) AS begun
    FROM (
        SELECT r.definition_id, r.id, r.scheduled_for, r.started_at,
            r.started_at IS NULL AND r.scheduled_for < (SELECT now() - :late) AS is_late
        FROM wakeboard.job_runs AS r
        WHERE r.definition_id = ANY (ARRAY(SELECT id FROM wakeboard.job_definitions ORDER BY id LIMIT :cap))
            AND {IS_UNDER_WAY} AND {_WITHIN}
        ORDER BY r.definition_id, r.scheduled_for
        LIMIT :cap
    ) AS fire
    GROUP BY definition_id"""
_BEGUN = f"""
    SELECT {_FIRE}, false AS is_over
    FROM under_way CROSS JOIN unnest(begun) AS one (id) JOIN wakeboard.job_runs AS r ON r.id = one.id
    UNION ALL
    SELECT {_FIRE}, true
    FROM (
        SELECT r.definition_id, r.id, r.scheduled_for, r.status, r.attempts, r.started_at, r.finished_at
        FROM (SELECT * FROM wakeboard.job_runs WHERE {IS_ODD_FIRE}) AS r
        WHERE {_WITHIN}
        ORDER BY r.scheduled_for DESC
        LIMIT :cap
    ) AS r"""
_BEFORE = "ORDER BY scheduled_for ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
# Of one that took long it is asked first whether another was to begin meanwhile: mostly none was.
_LONG = """
    SELECT definition_id, scheduled_for, reach
    FROM (SELECT definition_id, scheduled_for, coalesce(through_at, now()) AS reach FROM begun) AS reaching
    WHERE reach > scheduled_for + :step AND EXISTS (
        SELECT FROM wakeboard.job_runs AS r
        WHERE r.definition_id = reaching.definition_id AND r.scheduled_for > reaching.scheduled_for
            AND r.scheduled_for < least(reach, :until)
    )"""
# What ran without a pause between, by schedule: only there can a fire have begun beside another.
_STRETCHES = f"""
    SELECT definition_id, min(scheduled_for) AS begin_at, max(reach) AS until_at
    FROM (
        SELECT *, count(*) FILTER (WHERE is_new)
            OVER (PARTITION BY definition_id ORDER BY scheduled_for) AS place
        FROM (
            SELECT *, coalesce(
                scheduled_for >= max(reach) OVER (PARTITION BY definition_id {_BEFORE}), true
            ) AS is_new
            FROM ({_LONG}
            ) AS long
        ) AS parted
    ) AS placed
    GROUP BY definition_id, place"""
# The latest start and the newest overlap are the greatest of (which, run), as floats: they say a time to the
# microsecond and an id up to 2 to the 53rd, and take less to make and to compare than ``numeric``.
_BESIDE = f"""
    SELECT definition_id, count(*) AS walked, count(*) FILTER (WHERE is_beside) AS beside,
        max(ARRAY[date_part('epoch', scheduled_for), id]) FILTER (WHERE is_beside) AS newest
    FROM (
        SELECT fire.* FROM stretches CROSS JOIN LATERAL (
            SELECT definition_id, id, scheduled_for, first_started_at < max(
                CASE WHEN first_started_at IS NOT NULL THEN coalesce(through_at, now()) END
            ) OVER ({_BEFORE}) AS is_beside
            FROM (
                SELECT {_FIRE}
                FROM wakeboard.job_runs AS r
                WHERE r.definition_id = stretches.definition_id AND r.scheduled_for >= begin_at
                    AND r.scheduled_for < least(until_at, :until)
            ) AS walked
        ) AS fire
        LIMIT :many
    ) AS fire
    GROUP BY definition_id"""
_JUDGED = f"""
WITH under_way AS ({_UNDER_WAY}
), begun AS MATERIALIZED ({_BEGUN}
), late AS (
    SELECT definition_id, count(*) AS late,
        max(ARRAY[date_part('epoch', first_started_at - scheduled_for), id]) AS latest
    FROM begun WHERE first_started_at > scheduled_for + :late GROUP BY definition_id
), stretches AS ({_STRETCHES}
), beside AS ({_BESIDE}
), told AS MATERIALIZED (
    SELECT d.id, d.name, d.overlap, coalesce(under_way.late, 0) + coalesce(late.late, 0) AS late, latest,
        waits_since, greatest(latest[1], date_part('epoch', now() - waits_since)) AS late_seconds,
        coalesce(beside, 0) AS beside, newest
    FROM under_way FULL JOIN late USING (definition_id) FULL JOIN beside USING (definition_id)
    JOIN wakeboard.job_definitions AS d ON d.id = definition_id
), worst AS (
    (SELECT * FROM told WHERE late > 0 ORDER BY late_seconds DESC, id LIMIT :most)
    UNION
    (SELECT * FROM told WHERE beside > 0 ORDER BY beside DESC, id LIMIT :most)
)
SELECT numbers.*,
    (SELECT coalesce(sum(runs), 0)::bigint FROM under_way) AS under_way,
    (SELECT count(*) FROM begun WHERE is_over) AS ended,
    (SELECT coalesce(sum(walked), 0)::bigint FROM beside) AS walked,
    (SELECT coalesce(json_agg(json_build_array(
        name, overlap, (
            SELECT count(*) FROM wakeboard.job_runs AS r WHERE r.definition_id = worst.id AND {_WITHIN}
        ), late, late_seconds, CASE WHEN latest[1] = late_seconds THEN latest[2]::bigint ELSE (
            SELECT r.id FROM wakeboard.job_runs AS r
            WHERE r.definition_id = worst.id AND r.scheduled_for = waits_since
        ) END, beside, newest[2]::bigint
    ) ORDER BY name), '[]') FROM worst) AS worst
FROM (
    SELECT coalesce(sum(late), 0)::bigint AS late, count(*) FILTER (WHERE late > 0) AS late_schedules,
        coalesce(sum(beside), 0)::bigint AS beside, count(*) FILTER (WHERE beside > 0) AS beside_schedules
    FROM told
) AS numbers
"""


def fired(ask: Ask, window: Window) -> Fires:
    """Return how the fires of ``window`` began for which a run was made."""
    values = {
        "since": window.since,
        "until": window.until,
        "cap": CAP,
        "many": MANY,
        "most": MOST_TOLD,
        "late": LATE,
        "step": STEP,
    }
    found = dict(ask(_JUDGED, values)[0])
    worst = [Fired._make(each) for each in found.pop("worst")]
    return Fires(**found, worst=worst)


_ANY = f"""
SELECT EXISTS (
    SELECT FROM wakeboard.job_runs AS r
    WHERE r.definition_id = ANY (ARRAY(SELECT id FROM wakeboard.job_definitions)) AND {_WITHIN}
) AS is_any
"""


def is_any(ask: Ask, window: Window) -> bool:
    """Return whether a run was made for a fire of ``window``, of a schedule that is still there."""
    return bool(ask(_ANY, {"since": window.since, "until": window.until})[0]["is_any"])


def late(found: Fires) -> list[Fired]:
    """Return the schedules of which fires started late, the latest first."""
    told = sorted((each for each in found.worst if each.late), key=lambda each: -(each.late_seconds or 0))
    return told[:MOST_TOLD]


def beside(found: Fires) -> list[Fired]:
    """Return the schedules of which fires started beside the run before, those with most first."""
    return sorted((each for each in found.worst if each.beside), key=lambda each: -each.beside)[:MOST_TOLD]
