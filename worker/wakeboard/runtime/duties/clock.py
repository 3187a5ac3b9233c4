"""The clock duty: after the database's clock was ahead, it corrects the times that were written meanwhile.

The lease of a silent worker lasts as if it had been renewed now, and the worker was seen just too long ago. A
schedule returns to the next fire of its rule, and a retry waits as long as its backoff says. Fires stay
unique, so no schedule fires twice. What live workers write corrects itself within a heartbeat.

Leases, workers, loops, schedules and operations are checked each time, the rules of schedules every ten
minutes. Waiting runs are walked over only after a time ahead was found or the clock was seen to jump. A walk
goes a slice at a time, because its thread fires schedules and reaps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic

import psycopg
from psycopg.rows import dict_row

from wakeboard.config import log
from wakeboard.core import leases
from wakeboard.core.states import CLAIM_REFUSED, Status
from wakeboard.core.time import clock_skew
from wakeboard.core.time.clock_skew import MARGIN_SECONDS, is_ahead
from wakeboard.reporting.diagnosis.wait_reasons import COUNT_CAP
from wakeboard.reporting.heartbeats import MARGIN_SECONDS as LATE_SECONDS
from wakeboard.schedules.planner import is_too_late

# A poll's finding may be two seconds old by then, so all is corrected within ten seconds.
CLOCK_SECONDS = 8.0
# How often the rules of schedules are checked while nothing is known to be wrong.
WALK_SECONDS = 600.0
SLICE, PAUSE_SECONDS = 1000, 0.05
# The slowest pace of an operation lets one run a minute.
OPERATION_SECONDS = 120

_SEEN_AHEAD = is_ahead("greatest(started_at, seen_at, stopped_at)")
_LOOKED_AHEAD = f"is_open AND {is_ahead('look_at', OPERATION_SECONDS)}"
# A part of each poll.
IS_ANYTHING_AHEAD = f"""
SELECT EXISTS (SELECT FROM wakeboard.job_runs WHERE status = 'running' AND {is_ahead("locked_until")})
    OR EXISTS (SELECT FROM wakeboard.workers WHERE {_SEEN_AHEAD})
    OR EXISTS (SELECT FROM wakeboard.loops WHERE {is_ahead("last_success_at")})
    OR EXISTS (SELECT FROM wakeboard.job_definitions WHERE {is_ahead("settled_at")})
    OR EXISTS (SELECT FROM wakeboard.missed_fires WHERE {is_ahead("noted_at")})
    OR EXISTS (SELECT FROM wakeboard.operations WHERE {_LOOKED_AHEAD})
"""
# Only of silent workers: a live one renews, and may have a longer lease than is published.
_LEASES = f"""
UPDATE wakeboard.job_runs AS r SET locked_until = now() + make_interval(secs => long.seconds)
FROM (
    SELECT r.id, r.lease_epoch, {leases.SECONDS} AS seconds
    FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
    LEFT JOIN wakeboard.workers AS w ON w.id = r.locked_by
    WHERE r.status = 'running' AND {is_ahead("r.locked_until")} AND {leases.is_silent("r")}
        AND {is_ahead("r.locked_until", leases.SECONDS)}
    LIMIT {COUNT_CAP} FOR NO KEY UPDATE OF r SKIP LOCKED
) AS long
WHERE r.id = long.id AND r.lease_epoch = long.lease_epoch AND (r.status || '') = 'running'
"""
# All move by the same amount, so a worker that died stays before its successor.
_WORKERS = f"""
UPDATE wakeboard.workers AS w SET seen_at = heard.at,
    started_at = least(heard.at, CASE WHEN {is_ahead("w.started_at")}
        THEN w.started_at - (w.seen_at - heard.at) ELSE w.started_at END),
    stopped_at = CASE WHEN w.stopped_at > now() THEN now() ELSE w.stopped_at END
FROM (
    SELECT id, CASE WHEN NOT {is_ahead("seen_at")} THEN seen_at WHEN id = %(me)s THEN now()
        ELSE seen_at - (SELECT max(seen_at) FROM wakeboard.workers WHERE id <> %(me)s)
            + now() - make_interval(secs => 2 * heartbeat_seconds + {MARGIN_SECONDS}) END AS at
    FROM wakeboard.workers
    WHERE {_SEEN_AHEAD}
    FOR NO KEY UPDATE SKIP LOCKED
) AS heard
WHERE w.id = heard.id
"""
_LOOPS = f"""
UPDATE wakeboard.loops AS l
SET last_success_at = now() - make_interval(secs => 3 * l.interval_seconds + {LATE_SECONDS})
FROM (
    SELECT process_id, name FROM wakeboard.loops WHERE process_id <> %(me)s AND {is_ahead("last_success_at")}
    FOR NO KEY UPDATE SKIP LOCKED
) AS ahead
WHERE l.process_id = ahead.process_id AND l.name = ahead.name
"""
# The scheduler then finds the rule's next fire. Fires still to come were not missed.
_RESET = """), unmissed AS (
    DELETE FROM wakeboard.missed_fires AS m USING ahead
    WHERE m.definition_id = ahead.id AND m.scheduled_for > now()
)
UPDATE wakeboard.job_definitions AS d SET settled_at = least(d.settled_at, now()), error = NULL,
    next_fire_at = CASE WHEN d.next_fire_at <= now() THEN d.next_fire_at END
FROM ahead WHERE d.id = ahead.id
"""
_SCHEDULES = f"""
WITH ahead AS MATERIALIZED (
    SELECT id FROM wakeboard.job_definitions WHERE {is_ahead("settled_at")} FOR NO KEY UPDATE SKIP LOCKED
{_RESET}"""
# Alerts and pages show what was missed lately.
_MISSED = f"UPDATE wakeboard.missed_fires SET noted_at = now() WHERE {is_ahead('noted_at')}"
_OPERATIONS = f"""
UPDATE wakeboard.operations SET look_at = now(), paced_at = least(paced_at, now())
WHERE {_LOOKED_AHEAD}
"""
# Leases first: their statement finds silent workers by the times that come next.
_CORRECTIONS = {
    "leases": _LEASES,
    "workers": _WORKERS,
    "loops": _LOOPS,
    "schedules": _SCHEDULES,
    "missed_fires": _MISSED,
    "operations": _OPERATIONS,
}

_WAITING_SCHEDULES = f"""
SELECT id, name, schedule, timezone, next_fire_at, settled_at, now() AS now
FROM wakeboard.job_definitions
WHERE id > %(after)s AND enabled AND schedule IS NOT NULL AND next_fire_at > now()
ORDER BY id LIMIT {SLICE}
"""
_TOO_LATE = f"""
WITH ahead AS MATERIALIZED (
    SELECT d.id FROM wakeboard.job_definitions AS d
    JOIN unnest(%(ids)s::bigint[], %(fires)s::timestamptz[]) AS late (id, fire) USING (id)
    WHERE d.next_fire_at = late.fire FOR NO KEY UPDATE OF d SKIP LOCKED
{_RESET}"""


def _waiting_runs(status: Status) -> str:
    """Return the statement that corrects a slice of waiting runs of ``status``, newest first, before an id.

    A retry waits as long as its backoff says. A run that was enqueued to be due at once is due. One that was
    enqueued for a certain time stays: nobody knows whether that time was computed with the wrong clock.
    """
    return f"""
WITH looked AS MATERIALIZED (
    SELECT id FROM wakeboard.job_runs
    WHERE status = ANY ('{{{status}}}') AND id < %(after)s
    ORDER BY status DESC, id DESC LIMIT {SLICE}
), moved AS (
    UPDATE wakeboard.job_runs AS r SET run_at = least(r.run_at, late.at), updated_at = now()
    FROM (
        SELECT r.id, now() + greatest(interval '0', r.run_at - r.updated_at) AS at
        FROM looked JOIN wakeboard.job_runs AS r USING (id)
        WHERE r.status = '{status}' AND {is_ahead("r.updated_at")} AND r.run_at > now()
            AND (r.status = '{Status.FAILED}' OR r.error_code = '{CLAIM_REFUSED}'
                OR r.run_at IN (r.created_at, r.updated_at))
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ) AS late
    WHERE r.id = late.id
    RETURNING r.id
)
SELECT (SELECT count(*) FROM looked), (SELECT min(id) FROM looked), (SELECT count(*) FROM moved)
"""


# One slice of a walk: takes where it starts; returns where the next starts (None at the end) and its count.
Slice = Callable[[psycopg.Connection, int], tuple[int | None, int]]


class Clock:
    """The duty of one worker process; ``pause_seconds``: when to continue, None for the usual time."""

    def __init__(self, worker_id: str) -> None:
        self.pause_seconds: float | None = None
        self._worker_id = worker_id
        self._walk_at = 0.0
        self._is_clear = False
        self._slices: deque[tuple[str, Slice, int]] = deque()

    def walk(self) -> None:
        """Walk over all schedules and waiting runs: the clock has jumped, or a time ahead was found."""
        self._walk_at = monotonic() + WALK_SECONDS
        self._slices = deque((("schedules", _schedules, 0), *_RUNS))

    def note_poll(self, *, is_anything_ahead: bool) -> None:
        """Note a poll's answer to IS_ANYTHING_AHEAD, so that the next step need not ask when nothing is."""
        self._is_clear = not is_anything_ahead

    def step(self, connection: psycopg.Connection) -> Mapping[str, int]:
        """Correct times that lie ahead; return how many rows of which kind."""
        counts = {} if self._is_clear else correct_times(connection, self._worker_id)
        self._is_clear = False
        if counts:
            self.walk()
        elif monotonic() >= self._walk_at:
            self._walk_at = monotonic() + WALK_SECONDS
            self._slices.append(("schedules", _schedules, 0))
        self._walk_slice(connection, counts)
        self.pause_seconds = PAUSE_SECONDS if self._slices else None
        if counts:
            log.warn(f"{clock_skew.AHEAD}; what it wrote is counted as past.", **counts)
        return counts

    def _walk_slice(self, connection: psycopg.Connection, counts: dict[str, int]) -> None:
        """Walk over the next slice, and add to ``counts``."""
        if not self._slices:
            return
        name, correct, after = self._slices.popleft()
        following, corrected = correct(connection, after)
        if following is not None:
            self._slices.appendleft((name, correct, following))
        if corrected:
            counts[name] = counts.get(name, 0) + corrected


def correct_times(connection: psycopg.Connection, worker_id: str) -> dict[str, int]:
    """Correct times that lie further ahead than they can; return how many rows of which kind.

    ``worker_id``: the worker that does so. It is alive, so its next poll corrects its own rows.
    """
    counts: dict[str, int] = {}
    if connection.execute(IS_ANYTHING_AHEAD.encode()).fetchone() == (False,):
        return counts
    for name, statement in _CORRECTIONS.items():
        values = {"me": worker_id} if "%(me)s" in statement else None
        if found := connection.execute(statement.encode(), values).rowcount:
            counts[name] = found
    return counts


def _schedules(connection: psycopg.Connection, after: int) -> tuple[int | None, int]:
    """Reset a slice of schedules whose next fire lies beyond the one that their rule gives."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_WAITING_SCHEDULES.encode(), {"after": after}).fetchall()
    names = ("schedule", "timezone", "next_fire_at", "settled_at", "now")
    late = [row for row in rows if is_too_late(**{name: row[name] for name in names})]
    found = 0
    if late:
        values = {"ids": [row["id"] for row in late], "fires": [row["next_fire_at"] for row in late]}
        found = connection.execute(_TOO_LATE.encode(), values).rowcount
    return (rows[-1]["id"] if len(rows) == SLICE else None), found


def _runs(status: Status) -> Slice:
    """Return the walk over the waiting runs of ``status``, the newest first."""
    statement = _waiting_runs(status).encode()

    def correct(connection: psycopg.Connection, after: int) -> tuple[int | None, int]:
        looked, last, found = connection.execute(statement, {"after": after}).fetchone() or (0, None, 0)
        return (last if looked == SLICE else None), found

    return correct


_NEWEST = 2**63 - 1
_RUNS = tuple(("runs", _runs(status), _NEWEST) for status in (Status.FAILED, Status.QUEUED))
