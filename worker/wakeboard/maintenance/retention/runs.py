"""One batch of ended runs: scan a range of ids, remove what expired with its attempts and output.

The scan decides nothing for good: the removal locks each run, skips what somebody has locked, and names the
end as read. So a run that was retried in between (its end is gone, or another) stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from random import shuffle

import psycopg
from psycopg import Connection
from psycopg.rows import class_row

from wakeboard.database.poison_rows import RowBatches
from wakeboard.maintenance.retention.policy import RetentionPolicy, TypePolicy
from wakeboard.maintenance.retention.zone_map import Zone, ZoneMap

SCAN_ROWS = 2000
# Small, because a claim that comes meanwhile shares the processors with the batch.
REMOVE_ROWS = 400
# Ids that one scan may pass. Under a long open snapshot removed rows stay in the index, and a scan that
# asked for rows alone would walk over all of them at once.
SCAN_IDS = 20_000
DAY_SECONDS = 86_400.0
MOST_REFUSED = 8

TYPE_POLICIES = """
SELECT name, keep_succeeded_days AS succeeded_days, keep_dead_days AS dead_days FROM wakeboard.job_types
WHERE keep_succeeded_days IS NOT NULL OR keep_dead_days IS NOT NULL ORDER BY name
"""
NEXT_ID = "SELECT r.id FROM wakeboard.job_runs AS r WHERE r.id > %s ORDER BY r.id LIMIT 1"
# By the primary key: an index on the end of runs would cost every finish. A run that has not ended, or is
# kept for ever, has no expires_at. The range is cut behind the last run that fits into one removal.
SCAN = """
WITH scanned AS MATERIALIZED (
    SELECT r.id, r.finished_at, r.created_at,
        r.finished_at + make_interval(days => CASE r.status
            WHEN 'succeeded' THEN coalesce(t.keep_succeeded_days, %(succeeded)s::int)
            ELSE coalesce(t.keep_dead_days, %(dead)s::int) END) AS expires_at
    FROM (
        SELECT id, job_type, status, finished_at, created_at FROM wakeboard.job_runs
        WHERE id > %(from_id)s AND id <= %(to_id)s ORDER BY id LIMIT %(rows)s
    ) AS r LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
), numbered AS (
    SELECT *, count(*) FILTER (WHERE expires_at <= now()) OVER (ORDER BY id) AS position FROM scanned
)
SELECT count(*) AS rows, max(id) AS last_id,
    coalesce(array_agg(id) FILTER (WHERE expires_at <= now()), '{}') AS ids,
    coalesce(array_agg(finished_at) FILTER (WHERE expires_at <= now()), '{}') AS ends,
    extract(epoch FROM min(expires_at) FILTER (WHERE expires_at > now()))::float8 AS next_expiry_at,
    extract(epoch FROM min(finished_at) FILTER (WHERE (expires_at <= now()) IS NOT TRUE))::float8
        AS oldest_at,
    coalesce(bool_or(least(created_at, finished_at) <= now() - make_interval(days => %(shortest)s)), false)
        AS is_old
FROM numbered WHERE position <= %(most)s
"""
REMOVE = """
WITH expired AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)s::bigint[], %(ends)s::timestamptz[]) AS e (id, finished_at)
), locked AS MATERIALIZED (
    SELECT candidate.id
    FROM expired AS e
    CROSS JOIN LATERAL (
        SELECT r.id FROM wakeboard.job_runs AS r
        WHERE r.id = e.id AND r.finished_at = e.finished_at
        FOR UPDATE OF r SKIP LOCKED
    ) AS candidate
), removed AS (
    DELETE FROM wakeboard.job_runs AS r USING locked AS l
    WHERE r.id = l.id AND r.finished_at IS NOT NULL
    RETURNING r.id
), removed_attempts AS (
    DELETE FROM wakeboard.job_attempts AS a USING removed AS r WHERE a.run_id = r.id RETURNING 1
)
SELECT (SELECT count(*) FROM removed), (SELECT count(*) FROM removed_attempts)
"""


@dataclass(frozen=True, slots=True)
class ScannedRuns:
    """A row of SCAN."""

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


def read_policy(connection: Connection, policy: RetentionPolicy) -> RetentionPolicy:
    """Return ``policy`` with what operators have decided for single types by now."""
    with connection.cursor(row_factory=class_row(TypePolicy)) as cursor:
        return replace(policy, types=tuple(cursor.execute(TYPE_POLICIES)))


def remove_batch(
    connection: Connection, policy: RetentionPolicy, zones: ZoneMap, cursor: int, *, now: float, backlog: bool
) -> Batch:
    """Remove the next expired runs behind the id ``cursor``, inside the caller's transaction.

    ``now``: the transaction's, in seconds. ``backlog``: the batch before was full, so this one probably will
    be, and scans no further than that.
    """
    if policy.shortest_days is None:
        return Batch(None)
    from_id, zone_end = zones.next_range(cursor, now)
    to_id = from_id + SCAN_IDS if zone_end is None else min(zone_end, from_id + SCAN_IDS)
    most = REMOVE_ROWS if backlog else SCAN_ROWS
    scanned = scan(connection, policy, from_id, to_id, most)
    if not scanned.rows and zone_end is None:
        following = connection.execute(NEXT_ID, (from_id,)).fetchone()
        if following is None:
            return Batch(None)
        to_id = max(to_id, following[0] - 1)
    elif not scanned.is_old and zone_end is None:
        # Whatever was enqueued later than the newest run that may go cannot have ended before it.
        return Batch(None, oldest_at=scanned.oldest_at)
    # In any order: the runs that are refused are not always the same ones that are tried.
    expired = [*zip(scanned.ids, scanned.ends, strict=True)]
    shuffle(expired)
    removed = remove(connection, expired)
    is_cut = zone_end is None or scanned.rows == most or len(scanned.ids) == REMOVE_ROWS
    # Never past the newest id: what comes later was not scanned.
    end = scanned.last_id if is_cut and scanned.last_id is not None else to_id
    due_at = now
    if removed.runs == len(scanned.ids):
        # What has not ended yet can expire after the shortest time at best.
        soonest = now + policy.shortest_days * DAY_SECONDS
        due_at = min(soonest, scanned.next_expiry_at or soonest)
    zones.put(from_id, Zone(end, scanned.rows - removed.runs, due_at, scanned.oldest_at))
    return Batch(end, removed.runs, removed.attempts, scanned.oldest_at, removed.refused)


def scan(connection: Connection, policy: RetentionPolicy, from_id: int, to_id: int, most: int) -> ScannedRuns:
    """Find at most REMOVE_ROWS expired runs after ``from_id`` up to ``to_id`` among the first ``most``."""
    values = {
        "from_id": from_id, "to_id": to_id, "rows": most, "most": REMOVE_ROWS,
        "succeeded": policy.succeeded_days, "dead": policy.dead_days, "shortest": policy.shortest_days,
    }  # fmt: skip
    with connection.cursor(row_factory=class_row(ScannedRuns)) as cursor:
        (scanned,) = cursor.execute(SCAN, values)
    return scanned


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
