"""After the database's clock was ahead: what it wrote meanwhile is counted as past, written anew, and told.

A silent owner's lease lasts as if it had been renewed now. A silent worker was heard just too long ago.
Schedules come back to the next fire of their rule, and retries wait as long as they were to wait. Fires stay
unique, so no slot runs twice. What the living write corrects itself within a heartbeat.

Leases, workers, loops, schedules and operations are looked at each turn. Each schedule's rule is asked now
and then. Runs that wait are walked over only after something was found ahead or the clock was seen to jump.
Walks go a slice at a time, because this shares the thread of presence, schedules and reaping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import psycopg
from psycopg.rows import dict_row

from wakeboard.config import log
from wakeboard.core import leases
from wakeboard.core.states import CLAIM_REFUSED, Status
from wakeboard.core.time import clock_skew
from wakeboard.core.time.clock_skew import MARGIN_SECONDS, is_ahead
from wakeboard.reporting.diagnosis.wait_reasons import COUNT_CAP
from wakeboard.reporting.heartbeats import MARGIN_SECONDS as LATE_SECONDS
from wakeboard.schedules.planner import comes_too_late

Connection = psycopg.Connection[Any]

# What a look found may be two seconds old by then: within ten, all is put right.
CLOCK_SECONDS = 8.0
# Between two walks over the schedules while nothing is known to be wrong.
WALK_SECONDS = 600.0
SLICE, PAUSE_SECONDS = 1000, 0.05
# The slowest pace of an operation lets one run a minute.
OPERATION_SECONDS = 120

_HEARD_AHEAD = is_ahead("greatest(started_at, seen_at, stopped_at)")
_LOOKED_AHEAD = f"is_open AND {is_ahead('look_at', OPERATION_SECONDS)}"
# A part of each look, because an idle worker asks it as long as it lives. A lease that runs answers it too.
IS_ANYTHING_AHEAD = f"""
SELECT EXISTS (SELECT FROM wakeboard.job_runs WHERE status = 'running' AND {is_ahead("locked_until")})
    OR EXISTS (SELECT FROM wakeboard.workers WHERE {_HEARD_AHEAD})
    OR EXISTS (SELECT FROM wakeboard.loops WHERE {is_ahead("last_success_at")})
    OR EXISTS (SELECT FROM wakeboard.job_definitions WHERE {is_ahead("settled_at")})
    OR EXISTS (SELECT FROM wakeboard.missed_fires WHERE {is_ahead("noted_at")})
    OR EXISTS (SELECT FROM wakeboard.operations WHERE {_LOOKED_AHEAD})
"""
# Only of who is silent: who lives renews, and may know of a longer lease than anybody has published.
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
# All are moved alike: who died first had a successor, and stays before it.
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
    WHERE {_HEARD_AHEAD}
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
# Its next look gives the rule's next fire. What was told of slots that are still to come was not so.
_ANEW = """), untold AS (
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
{_ANEW}"""
# Alerts and pages ask what was missed lately.
_MISSED = f"UPDATE wakeboard.missed_fires SET noted_at = now() WHERE {is_ahead('noted_at')}"
_OPERATIONS = f"""
UPDATE wakeboard.operations SET look_at = now(), paced_at = least(paced_at, now())
WHERE {_LOOKED_AHEAD}
"""
# Leases first: who was silent is told by heartbeats that are still ahead.
_PUT_RIGHT = {
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
{_ANEW}"""


def _waiting_runs(status: Status) -> str:
    """Return the statement that walks over waiting runs of ``status``, newest first, from before an id.

    A retry waits as long as it was to wait. What was enqueued to be due at once is due. What was enqueued for
    a time of its own stays: nobody knows whether that was counted from now or read off a right clock.
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


# One slice of a walk: from where on → from where on next, None at the end, and how many were written anew.
Slice = Callable[[Connection, int], tuple[int | None, int]]


class Clock:
    """The duty of one worker process; ``pause_seconds`` is when to look again, None for the usual time."""

    def __init__(self, worker_id: str) -> None:
        self.pause_seconds: float | None = None
        self._worker_id = worker_id
        self._walk_at = 0.0
        self._is_clear = False
        self._slices: deque[tuple[str, Slice, int]] = deque()

    def walk(self) -> None:
        """Walk over all that waits for its time: the clock has jumped, or something was found ahead."""
        self._walk_at = monotonic() + WALK_SECONDS
        self._slices = deque((("schedules", _schedules, 0), *_RUNS))

    def looked(self, *, is_anything_ahead: bool) -> None:
        """A look has just answered IS_ANYTHING_AHEAD: where nothing is, the next step need not ask."""
        self._is_clear = not is_anything_ahead

    def step(self, connection: Connection) -> Mapping[str, int]:
        """Write anew what lies ahead; return how many rows of which kind."""
        counts = {} if self._is_clear else put_right(connection, self._worker_id)
        self._is_clear = False
        if counts:
            self.walk()
        elif monotonic() >= self._walk_at:
            self._walk_at = monotonic() + WALK_SECONDS
            self._slices.append(("schedules", _schedules, 0))
        self._go_on(connection, counts)
        self.pause_seconds = PAUSE_SECONDS if self._slices else None
        if counts:
            log.warn(f"{clock_skew.AHEAD}; what it wrote is counted as past.", **counts)
        return counts

    def _go_on(self, connection: Connection, counts: dict[str, int]) -> None:
        """Walk over the next slice, and add to ``counts``."""
        if not self._slices:
            return
        name, look, after = self._slices.popleft()
        following, found = look(connection, after)
        if following is not None:
            self._slices.appendleft((name, look, following))
        if found:
            counts[name] = counts.get(name, 0) + found


def put_right(connection: Connection, worker_id: str) -> dict[str, int]:
    """Write anew what lies further ahead than it can; return how many rows of which kind, none left out.

    worker_id: who does so, and so lives; its loops are written by its next look.
    """
    counts: dict[str, int] = {}
    if connection.execute(IS_ANYTHING_AHEAD.encode()).fetchone() == (False,):
        return counts
    for name, statement in _PUT_RIGHT.items():
        values = {"me": worker_id} if "%(me)s" in statement else None
        if found := connection.execute(statement.encode(), values).rowcount:
            counts[name] = found
    return counts


def _schedules(connection: Connection, after: int) -> tuple[int | None, int]:
    """Bring schedules back whose next fire lies beyond the one that their rule gives."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_WAITING_SCHEDULES.encode(), {"after": after}).fetchall()
    late = [row for row in rows if comes_too_late(row)]
    found = 0
    if late:
        values = {"ids": [row["id"] for row in late], "fires": [row["next_fire_at"] for row in late]}
        found = connection.execute(_TOO_LATE.encode(), values).rowcount
    return (rows[-1]["id"] if len(rows) == SLICE else None), found


def _runs(status: Status) -> Slice:
    """Return the walk over the runs of ``status``, the newest first."""
    statement = _waiting_runs(status).encode()

    def look(connection: Connection, after: int) -> tuple[int | None, int]:
        looked, last, found = connection.execute(statement, {"after": after}).fetchone() or (0, None, 0)
        return (last if looked == SLICE else None), found

    return look


_NEWEST = 2**63 - 1
_RUNS = tuple(("runs", _runs(status), _NEWEST) for status in (Status.FAILED, Status.QUEUED))
