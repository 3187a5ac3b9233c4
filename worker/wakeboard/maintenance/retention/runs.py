"""One batch of ended runs: look at a stretch of ids, remove what expired with its attempts and output.

The look decides nothing for good: the removal locks each run, skipping what somebody holds, and names the
end as read, so a run that was retried in between (its end is gone, or another) stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from random import shuffle
from typing import Any

import psycopg
from psycopg.rows import class_row

from wakeboard.database.poison_rows import RowBatches
from wakeboard.maintenance.retention.keep import Keep, OfType
from wakeboard.maintenance.retention.zones import Zone, Zones

Connection = psycopg.Connection[Any]

LOOK_ROWS = 2000
# Small, because a claim that comes meanwhile shares the processors with the batch.
REMOVE_ROWS = 400
# Ids that one look may pass. Under a long open snapshot removed rows stay in the index, and a look that
# asked for rows alone would walk over all of them at once.
LOOK_IDS = 20_000
DAY_SECONDS = 86_400.0
MOST_REFUSED = 8

POLICIES = """
SELECT name, keep_succeeded_days AS succeeded_days, keep_dead_days AS dead_days FROM wakeboard.job_types
WHERE keep_succeeded_days IS NOT NULL OR keep_dead_days IS NOT NULL ORDER BY name
"""
NEXT_ID = "SELECT r.id FROM wakeboard.job_runs AS r WHERE r.id > %s ORDER BY r.id LIMIT 1"
# By the primary key: an index on the end of runs would cost every finish. Who has not ended, or is kept for
# ever, has no expires_at. A stretch is cut behind the last run that fits into one removal.
LOOK = """
WITH looked AS MATERIALIZED (
    SELECT r.id, r.finished_at, r.created_at,
        r.finished_at + make_interval(days => CASE r.status
            WHEN 'succeeded' THEN coalesce(t.keep_succeeded_days, %(succeeded)s::int)
            ELSE coalesce(t.keep_dead_days, %(dead)s::int) END) AS expires_at
    FROM (
        SELECT id, job_type, status, finished_at, created_at FROM wakeboard.job_runs
        WHERE id > %(from_id)s AND id <= %(to_id)s ORDER BY id LIMIT %(rows)s
    ) AS r LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
), placed AS (
    SELECT *, count(*) FILTER (WHERE expires_at <= now()) OVER (ORDER BY id) AS place FROM looked
)
SELECT count(*) AS rows, max(id) AS last_id,
    coalesce(array_agg(id) FILTER (WHERE expires_at <= now()), '{}') AS ids,
    coalesce(array_agg(finished_at) FILTER (WHERE expires_at <= now()), '{}') AS ends,
    extract(epoch FROM min(expires_at) FILTER (WHERE expires_at > now()))::float8 AS next_expiry_at,
    extract(epoch FROM min(finished_at) FILTER (WHERE (expires_at <= now()) IS NOT TRUE))::float8
        AS oldest_at,
    coalesce(bool_or(least(created_at, finished_at) <= now() - make_interval(days => %(shortest)s)), false)
        AS is_old
FROM placed WHERE place <= %(most)s
"""
REMOVE = """
WITH expired AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)s::bigint[], %(ends)s::timestamptz[]) AS e (id, finished_at)
), held AS MATERIALIZED (
    SELECT mine.id
    FROM expired AS e
    CROSS JOIN LATERAL (
        SELECT r.id FROM wakeboard.job_runs AS r
        WHERE r.id = e.id AND r.finished_at = e.finished_at
        FOR UPDATE OF r SKIP LOCKED
    ) AS mine
), gone AS (
    DELETE FROM wakeboard.job_runs AS r USING held AS h
    WHERE r.id = h.id AND r.finished_at IS NOT NULL
    RETURNING r.id
), history AS (
    DELETE FROM wakeboard.job_attempts AS a USING gone AS g WHERE a.run_id = g.id RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM history)
"""


@dataclass(frozen=True, slots=True)
class EndedRuns:
    """What a look found: see LOOK."""

    rows: int
    last_id: int | None
    ids: list[int]
    ends: list[datetime]
    next_expiry_at: float | None
    oldest_at: float | None
    is_old: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch did: removed runs and attempts, and the id to go on behind (None: the pass is through).

    ``oldest_at``: the earliest end of the ended runs that the batch kept, None without one. ``refused``: why
    the database would not let a run go, None where it let all.
    """

    cursor: int | None
    runs: int = 0
    attempts: int = 0
    oldest_at: float | None = None
    refused: str | None = None


def policy(connection: Connection, keep: Keep) -> Keep:
    """Return ``keep`` with what operators decided for single types."""
    with connection.cursor(row_factory=class_row(OfType)) as cursor:
        return keep.with_types(cursor.execute(POLICIES).fetchall())


def remove_batch(
    connection: Connection, keep: Keep, zones: Zones, cursor: int, *, now: float, backlog: bool
) -> Batch:
    """Remove the next expired runs behind the id ``cursor``, inside the caller's transaction.

    ``now``: the transaction's, in seconds. ``backlog``: the batch before was full, so this one probably will
    be, and looks no further than that.
    """
    if keep.shortest_days is None:
        return Batch(None)
    from_id, known_to = zones.next(cursor, now)
    to_id = from_id + LOOK_IDS if known_to is None else min(known_to, from_id + LOOK_IDS)
    most = REMOVE_ROWS if backlog else LOOK_ROWS
    found = _look(connection, keep, from_id, to_id, most)
    if not found.rows and known_to is None:
        following = connection.execute(NEXT_ID, (from_id,)).fetchone()
        if following is None:
            return Batch(None)
        to_id = max(to_id, following[0] - 1)
    elif not found.is_old and known_to is None:
        # Whatever was enqueued later than the newest run that may go cannot have ended before it.
        return Batch(None, oldest_at=found.oldest_at)
    # In any order: the runs that are refused are not always the same ones that are tried.
    expired = [*zip(found.ids, found.ends, strict=True)]
    shuffle(expired)
    removed = remove(connection, expired)
    is_cut = known_to is None or found.rows == most or len(found.ids) == REMOVE_ROWS
    # Never past the newest id: what comes later was not looked at.
    end = found.last_id if is_cut and found.last_id is not None else to_id
    zones.put(from_id, _zone(found, end, removed.runs, now, keep.shortest_days))
    return Batch(end, removed.runs, removed.attempts, found.oldest_at, removed.refused)


def _look(connection: Connection, keep: Keep, from_id: int, to_id: int, most: int) -> EndedRuns:
    values = {
        "from_id": from_id, "to_id": to_id, "rows": most, "most": REMOVE_ROWS,
        "succeeded": keep.succeeded_days, "dead": keep.dead_days, "shortest": keep.shortest_days,
    }  # fmt: skip
    with connection.cursor(row_factory=class_row(EndedRuns)) as cursor:
        found = cursor.execute(LOOK, values).fetchone()
    assert found is not None
    return found


def _zone(found: EndedRuns, to_id: int, removed: int, now: float, shortest_days: int) -> Zone:
    """Return the zone that a look leaves: what has not ended yet can expire in ``shortest_days`` at best."""
    soonest = now + shortest_days * DAY_SECONDS
    if removed < len(found.ids):
        soonest = now
    due_at = min(soonest, found.next_expiry_at or soonest)
    return Zone(to_id, found.rows - removed, due_at, found.oldest_at)


@dataclass(slots=True)
class RemovedRuns:
    """How many runs and attempts went, and why the database would not let a run go, None where it let all."""

    runs: int = 0
    attempts: int = 0
    refused: str | None = None


def remove(connection: Connection, expired: Sequence[tuple[int, datetime]]) -> RemovedRuns:
    """Remove runs by id and end as read.

    Where a lock on an attempt or on the output is in the way, or a foreign key of somebody's own table, the
    batch is halved; what is left is skipped. It goes on until the database has refused MOST_REFUSED runs:
    each of them costs some statements, and where another table refers to all runs each run is one.
    """
    removed, refused = RemovedRuns(), 0
    parts = RowBatches(expired)
    for part in parts:
        if refused >= MOST_REFUSED:
            break
        ids, ends = zip(*part, strict=True)
        try:
            with connection.transaction():
                values = {"ids": list(ids), "ends": list(ends)}
                ((runs, attempts),) = connection.execute(REMOVE, values).fetchall()
        except psycopg.errors.LockNotAvailable:
            parts.split(part)
        except psycopg.Error as failure:
            if not parts.halve(part, failure):
                refused += 1
                removed.refused = failure.diag.message_primary
        else:
            removed.runs += runs
            removed.attempts += attempts
    return removed
