"""Firing schedules: what is due becomes a run or a missed fire, and the next fire is set, in one transaction.

Any number of processes may do this at once: definitions are locked with skip locked, and a fire is unique
by (definition, instant). Which instants are due, and which of them fire, is decided by ``schedules.planner``.

A run that the database refuses (a rule of its owner on the tables) holds up its own schedule alone: its fire
stays due, ``error`` says why, and it is tried again each minute. Once the rule lets it through it is as late
as it is, and ``error`` goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import dict_row

from wakeboard.config import log
from wakeboard.core.time.clock_skew import is_ahead, is_before
from wakeboard.database.index_predicates import IS_UNDER_WAY
from wakeboard.database.outage_log import WarningThrottle
from wakeboard.database.poison_rows import RowBatches, is_refusal, refusal_reason
from wakeboard.schedules.planner import Decision, DueDefinition, Missed, find_due, sort_fires

BATCH = 200
# After a long outage one look would take as long as all of it; the rest stays due for the next look.
MOST_SECONDS = 0.5
# Of the newest runs of a definition, the one that ended last is among so many.
NEWEST = 20
# Between two tries of a fire that the database refuses, by whichever process.
REFUSED_SECONDS = 60

DUE = f"""
SELECT id, name, job_type, schedule, timezone, enabled, misfire, grace_seconds, overlap, next_fire_at,
    settled_at, unsettled, now() AS now
FROM wakeboard.job_definitions
WHERE (unsettled IS NOT NULL OR (enabled AND schedule IS NOT NULL
        AND (next_fire_at <= now() OR (next_fire_at IS NULL AND error IS NULL))))
    AND NOT (overlap = 'wait' AND enabled AND (unsettled IS NOT NULL OR next_fire_at IS NOT NULL) AND EXISTS (
        SELECT 1 FROM wakeboard.job_runs AS r
        WHERE r.definition_id = job_definitions.id AND r.{IS_UNDER_WAY}
    ))
    AND (error IS NULL OR {is_before("settled_at", REFUSED_SECONDS)})
    AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s))
ORDER BY next_fire_at NULLS FIRST
LIMIT {BATCH}
FOR NO KEY UPDATE SKIP LOCKED
"""
UNDER_WAY = f"""
SELECT EXISTS (
    SELECT 1 FROM wakeboard.job_runs
    WHERE definition_id = %s AND {IS_UNDER_WAY}
)
"""
# Between, not =, lets the planner use the index that has the newest runs of a definition in order.
LAST_RUN = """
SELECT created_at, finished_at FROM (
    SELECT created_at, finished_at FROM wakeboard.job_runs WHERE definition_id BETWEEN %(id)s AND %(id)s
    ORDER BY definition_id DESC, id DESC LIMIT %(newest)s
) AS newest WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1
"""
FIRE = """
INSERT INTO wakeboard.job_runs (definition_id, scheduled_for, job_type, payload, priority, max_attempts,
    timeout_seconds, enqueued_by)
SELECT d.id, fire, d.job_type, d.payload, d.priority, d.max_attempts, d.timeout_seconds, 'schedule:' || d.name
FROM wakeboard.job_definitions AS d CROSS JOIN unnest(%s::timestamptz[]) AS fire
WHERE d.id = %s
ON CONFLICT (definition_id, scheduled_for) WHERE scheduled_for IS NOT NULL DO NOTHING
RETURNING id, scheduled_for
"""
MISS = """
INSERT INTO wakeboard.missed_fires (definition_id, scheduled_for, reason, until_at)
SELECT %(id)s, fire, reason, until
FROM unnest(%(fires)s::timestamptz[], %(reasons)s::text[], %(untils)s::timestamptz[])
    AS missed (fire, reason, until)
WHERE NOT EXISTS (
    SELECT 1 FROM wakeboard.job_runs WHERE definition_id = %(id)s AND scheduled_for = missed.fire
)
ON CONFLICT (definition_id, scheduled_for) DO NOTHING
"""
_SETTLED = f"CASE WHEN {is_ahead('settled_at')} THEN now() ELSE greatest(settled_at, now()) END"
ADVANCE = f"""
UPDATE wakeboard.job_definitions
SET next_fire_at = %s, last_fire_at = coalesce(%s, last_fire_at), error = %s, unsettled = NULL,
    settled_at = {_SETTLED}
WHERE id = %s
"""
# What its earlier rules left unsettled stays, and the present rule goes on from its own first fire.
HOLD = f"""
UPDATE wakeboard.job_definitions
SET next_fire_at = CASE WHEN unsettled IS NULL THEN coalesce(%(first)s, next_fire_at)
        ELSE coalesce(next_fire_at, %(first)s) END,
    error = %(error)s, settled_at = {_SETTLED}
WHERE id = %(id)s
"""
WAIT = "UPDATE wakeboard.job_definitions SET next_fire_at = coalesce(next_fire_at, %s) WHERE id = %s"

# Writes one line of the log.
Line = Callable[[], None]
_warnings = WarningThrottle()


class SchedulerResult(NamedTuple):
    """How many definitions one look settled. ``has_more``: it stopped before all that is due was settled."""

    due: int
    has_more: bool = False


def step(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Fire what is due, as ``settle`` does; return how many definitions were settled."""
    return {"due": settle(connection).due}


def settle(connection: psycopg.Connection[Any]) -> SchedulerResult:
    """Fire what is due, as much as one look may.

    Where the database refuses one definition, the others are settled without it.
    """
    parts: RowBatches[int] = RowBatches()
    settled = [_settle_part(connection, None, parts)]
    settled += [_settle_part(connection, part, parts) for part in parts]
    due = sum(part.due for part in settled)
    return SchedulerResult(due, due > 0 and any(part.has_more for part in settled))


def _settle_part(
    connection: psycopg.Connection[Any], ids: Sequence[int] | None, parts: RowBatches[int]
) -> SchedulerResult:
    """Settle what is due (of ``ids`` only) in one transaction; leave its halves in ``parts`` if refused."""
    rows: list[dict[str, Any]] = []
    lines: list[Line] = []
    settled, stop_at = 0, monotonic() + MOST_SECONDS
    try:
        with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(DUE.encode(), {"ids": ids and list(ids)}).fetchall()
            for row in rows:
                lines += _settle(connection, row)
                settled += 1
                if monotonic() > stop_at:
                    break
    except psycopg.Error as refused:
        if parts.halve([row["id"] for row in rows], refused):
            return SchedulerResult(0, has_more=len(rows) == BATCH)
        return SchedulerResult(_hold(connection, rows[0], refused))
    for line in lines:
        line()
    return SchedulerResult(settled, settled < len(rows) or len(rows) == BATCH)


def _hold(connection: psycopg.Connection[Any], definition: Mapping[str, Any], refused: psycopg.Error) -> int:
    """Let a fire that the database refused stay due, and say so where people look; return how many do."""
    why, name = refusal_reason(refused), definition["name"]
    _warnings.warn(
        name, "The database refuses the run of a schedule.", schedule=name, job_type=definition["job_type"],
        error=why,
    )  # fmt: skip
    error = f"The database refuses its run ({why}). It is tried again each minute."
    try:
        with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(DUE.encode(), {"ids": [definition["id"]]}).fetchall()
            lines = [line for row in rows for line in _settle(connection, row, held_for=error)]
    except psycopg.Error as again:
        # Its own row cannot be written either: it stays as it is, and is tried at the next look.
        if not is_refusal(again):
            raise
        return 0
    for line in lines:
        line()
    return len(rows)


def _settle(
    connection: psycopg.Connection[Any], row: Mapping[str, Any], *, held_for: str | None = None
) -> list[Line]:
    """Settle one due definition; return what there is to log when that is committed.

    One that cannot be read shows its error and hurts no other.

    ``held_for``: why what would fire stays due; what is missed by then is told as ever.
    """
    due = find_due(row)
    lines: list[Line] = []
    if due.error:
        lines.append(
            partial(log.warn, "A schedule does not fire.", schedule=row["name"], error=due.error[:200])
        )
    decision = _decide(connection, row, due)
    if decision.waits:
        connection.execute(WAIT, (due.instants[0], row["id"]))
        return lines
    fires = decision.fire
    first = fires[0] if fires else due.following
    if held_for and row["unsettled"]:
        connection.execute(HOLD, {"first": due.first, "error": held_for, "id": row["id"]})
        return lines
    if fires and not held_for:
        lines += _fire(connection, row, fires)
    reason = "capped" if row["misfire"] == "all" else "misfire"
    missed: list[Missed] = [(first, reason, until) for first, until in due.untold]
    missed += [(fire, reason, None) for fire, reason in decision.missed]
    missed += [(fire, "paused", None) for fire in due.paused]
    if missed:
        lines.append(_miss(connection, row, missed))
    if held_for:
        connection.execute(HOLD, {"first": first, "error": held_for, "id": row["id"]})
    else:
        last = fires[-1] if fires else None
        connection.execute(ADVANCE, (due.following, last, due.error, row["id"]))
    return lines


def _decide(connection: psycopg.Connection[Any], row: Mapping[str, Any], due: DueDefinition) -> Decision:
    if not due.instants:
        return Decision()
    under_way = connection.execute(UNDER_WAY, (row["id"],)).fetchone()
    waited: tuple[datetime, datetime] | None = None
    if row["overlap"] == "wait":
        waited = connection.execute(LAST_RUN, {"id": row["id"], "newest": NEWEST}).fetchone()
    return sort_fires(
        due.instants, row["now"], misfire=row["misfire"], grace_seconds=row["grace_seconds"],
        overlap=row["overlap"], is_under_way=bool(under_way and under_way[0]), waited=waited,
    )  # fmt: skip


def _fire(
    connection: psycopg.Connection[Any], row: Mapping[str, Any], fires: Sequence[datetime]
) -> list[Line]:
    made = connection.execute(FIRE, (list(fires), row["id"])).fetchall()
    names = {"job_type": row["job_type"], "schedule": row["name"]}
    return [partial(log.move, "fire", run_id=run, **names, scheduled_for=str(fire)) for run, fire in made]


def _miss(connection: psycopg.Connection[Any], row: Mapping[str, Any], missed: Sequence[Missed]) -> Line:
    fires, reasons, untils = zip(*missed, strict=True)
    connection.execute(
        MISS, {"id": row["id"], "fires": list(fires), "reasons": list(reasons), "untils": list(untils)}
    )
    return partial(
        log.warn, "A schedule missed fires.", schedule=row["name"], count=len(missed),
        reasons=",".join(sorted(set(reasons))), first=str(min(fires)), last=str(max(fires)),
    )  # fmt: skip
