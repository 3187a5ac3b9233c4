"""Firing schedules: what is due becomes a run or a missed fire, and the next fire is set, in one transaction.

Any number of processes may do this at once: definitions are locked with SKIP LOCKED, and a fire is unique by
(definition, instant). Which fires are due, and which of them become runs, is decided by
``schedules.planner``.

A run that the database refuses (by a rule of its owner on the tables) stops its own schedule alone: its fire
stays due, ``error`` says why, and it is tried again each minute. When the rule lets it through, its lateness
counts as usual, and ``error`` goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from time import monotonic
from typing import NamedTuple

import psycopg
from psycopg import Connection

from wakeboard.config import log
from wakeboard.core.time.clock_skew import is_ahead, is_before
from wakeboard.database.index_predicates import IS_UNDER_WAY
from wakeboard.database.outage_log import WarningThrottle
from wakeboard.database.poison_rows import RowBatches, is_refusal, refusal_reason
from wakeboard.database.read import read_all
from wakeboard.schedules.planner import (
    Decision,
    DueFires,
    MissedFire,
    ScheduledDefinition,
    find_due,
    misfire_reason,
    sort_fires,
)

BATCH = 200
# After a long outage all that is due would take too long at once; the rest stays due for the next call.
MOST_SECONDS = 0.5
# The run of a definition that ended last is searched among so many of its newest.
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
# BETWEEN lets PostgreSQL use the index that has the newest runs of a definition in order; = does not.
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
# The stretches of earlier rules stay unsettled, and the present rule goes on from its own first fire.
POSTPONE = f"""
UPDATE wakeboard.job_definitions
SET next_fire_at = CASE WHEN unsettled IS NULL THEN coalesce(%(first)s, next_fire_at)
        ELSE coalesce(next_fire_at, %(first)s) END,
    error = %(error)s, settled_at = {_SETTLED}
WHERE id = %(id)s
"""
WAIT = "UPDATE wakeboard.job_definitions SET next_fire_at = coalesce(next_fire_at, %s) WHERE id = %s"

LogLine = Callable[[], None]
_warnings = WarningThrottle()


class SchedulerResult(NamedTuple):
    """How many definitions were settled. ``has_more``: it stopped before all that is due was settled."""

    due: int
    has_more: bool = False


def settle(connection: Connection) -> SchedulerResult:
    """Fire what is due, within MOST_SECONDS.

    Where the database refuses one definition, the others are settled without it.
    """
    parts: RowBatches[int] = RowBatches()
    results = [_settle_part(connection, None, parts)]
    results += [_settle_part(connection, part, parts) for part in parts]
    due = sum(result.due for result in results)
    return SchedulerResult(due, due > 0 and any(result.has_more for result in results))


def _settle_part(
    connection: Connection, ids: Sequence[int] | None, parts: RowBatches[int]
) -> SchedulerResult:
    """Settle what is due (of ``ids`` only) in one transaction; leave its halves in ``parts`` if refused."""
    definitions: list[ScheduledDefinition] = []
    lines: list[LogLine] = []
    settled, stop_at = 0, monotonic() + MOST_SECONDS
    try:
        with connection.transaction():
            definitions = read_all(connection, DUE, ScheduledDefinition, {"ids": ids and list(ids)})
            for definition in definitions:
                lines += _settle(connection, definition)
                settled += 1
                if monotonic() > stop_at:
                    break
    except psycopg.Error as refused:
        if parts.halve([definition.id for definition in definitions], refused):
            return SchedulerResult(0, has_more=len(definitions) == BATCH)
        return SchedulerResult(_postpone(connection, definitions[0], refused))
    for line in lines:
        line()
    return SchedulerResult(settled, settled < len(definitions) or len(definitions) == BATCH)


def _postpone(connection: Connection, definition: ScheduledDefinition, refused: psycopg.Error) -> int:
    """Leave a refused fire due, and store the reason; return how many definitions were postponed."""
    why = refusal_reason(refused)
    _warnings.warn(
        definition.name, "The database refuses the run of a schedule.", schedule=definition.name,
        job_type=definition.job_type, error=why,
    )  # fmt: skip
    error = f"The database refuses its run ({why}). It is tried again each minute."
    try:
        with connection.transaction():
            rows = read_all(connection, DUE, ScheduledDefinition, {"ids": [definition.id]})
            lines = [line for row in rows for line in _settle(connection, row, refusal=error)]
    except psycopg.Error as failure:
        # Its own row cannot be written either: it stays as it is, and is tried at the next call.
        if not is_refusal(failure):
            raise
        return 0
    for line in lines:
        line()
    return len(rows)


def _settle(
    connection: Connection, definition: ScheduledDefinition, *, refusal: str | None = None
) -> list[LogLine]:
    """Settle one due definition; return the lines to log when that is committed.

    One that cannot be read gets its error and stops no other. ``refusal``: why the database refuses its runs,
    which stay due; what is missed by then is recorded as usual.
    """
    due = find_due(definition)
    lines: list[LogLine] = []
    if due.error:
        lines.append(
            partial(log.warn, "A schedule does not fire.", schedule=definition.name, error=due.error[:200])
        )
    decision = _decide(connection, definition, due)
    if decision.is_waiting:
        connection.execute(WAIT, (due.fires[0], definition.id))
        return lines
    first = decision.fires[0] if decision.fires else due.next_fire
    if refusal and definition.unsettled:
        connection.execute(POSTPONE.encode(), {"first": due.first, "error": refusal, "id": definition.id})
        return lines
    if decision.fires and not refusal:
        lines += _enqueue(connection, definition, decision.fires)
    late = misfire_reason(definition.misfire)
    missed = [MissedFire(begin, late, until) for begin, until in due.long_stretches]
    missed += decision.missed
    missed += [MissedFire(fire, "paused") for fire in due.paused]
    if missed:
        lines.append(_record_missed(connection, definition, missed))
    if refusal:
        connection.execute(POSTPONE.encode(), {"first": first, "error": refusal, "id": definition.id})
    else:
        last = decision.fires[-1] if decision.fires else None
        connection.execute(ADVANCE.encode(), (due.next_fire, last, due.error, definition.id))
    return lines


def _decide(connection: Connection, definition: ScheduledDefinition, due: DueFires) -> Decision:
    if not due.fires:
        return Decision()
    under_way = connection.execute(UNDER_WAY.encode(), (definition.id,)).fetchone()
    last_run: tuple[datetime, datetime] | None = None
    if definition.overlap == "wait":
        last_run = connection.execute(LAST_RUN, {"id": definition.id, "newest": NEWEST}).fetchone()
    return sort_fires(
        due.fires, definition.now, misfire=definition.misfire, grace_seconds=definition.grace_seconds,
        overlap=definition.overlap, is_under_way=bool(under_way and under_way[0]), last_run=last_run,
    )  # fmt: skip


def _enqueue(
    connection: Connection, definition: ScheduledDefinition, fires: Sequence[datetime]
) -> list[LogLine]:
    rows = connection.execute(FIRE, (list(fires), definition.id)).fetchall()
    return [
        partial(
            log.move, "fire", run_id=run_id, job_type=definition.job_type, schedule=definition.name,
            scheduled_for=str(fire),
        )
        for run_id, fire in rows
    ]  # fmt: skip


def _record_missed(
    connection: Connection, definition: ScheduledDefinition, missed: Sequence[MissedFire]
) -> LogLine:
    fires, reasons, untils = map(list, zip(*missed, strict=True))
    values = {"id": definition.id, "fires": fires, "reasons": reasons, "untils": untils}
    connection.execute(MISS, values)
    return partial(
        log.warn, "A schedule missed fires.", schedule=definition.name, count=len(missed),
        reasons=",".join(sorted(set(reasons))), first=str(min(fires)), last=str(max(fires)),
    )  # fmt: skip
