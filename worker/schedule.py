"""Firing schedules: what is due becomes a run or a missed fire, and the next fire is set, in one transaction.

Any number of processes may do this at once: definitions are locked with skip locked, and a fire is unique
by (definition, instant). Which instants are due, and which of them fire, is decided by ``worker.due``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from time import monotonic
from typing import Any

import psycopg
from psycopg.rows import dict_row

from worker import log
from worker.due import Decision, Due, Missed, find_due, sort_fires
from worker.indexed import IS_UNDER_WAY
from worker.transitions import registered, sayings
from worker.transitions.sayings import NOTHING_SAID, Said

BATCH = 200
# After a long outage one look would take as long as all of it; the rest stays due for the next look.
MOST_SECONDS = 0.5
# Of the newest runs of a definition, the one that ended last is among so many.
NEWEST = 20

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
ORDER BY next_fire_at NULLS FIRST
LIMIT %s
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
ADVANCE = """
UPDATE wakeboard.job_definitions
SET next_fire_at = %s, last_fire_at = coalesce(%s, last_fire_at), error = %s, unsettled = NULL,
    settled_at = greatest(settled_at, now())
WHERE id = %s
"""
WAIT = "UPDATE wakeboard.job_definitions SET next_fire_at = coalesce(next_fire_at, %s) WHERE id = %s"


def step(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Fire what is due; return how many definitions were settled."""
    settled, stop_at = 0, monotonic() + MOST_SECONDS
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(DUE, (BATCH,)).fetchall():
            _settle(connection, row)
            settled += 1
            if monotonic() > stop_at:
                break
    return {"due": settled}


def _settle(connection: psycopg.Connection[Any], row: Mapping[str, Any]) -> None:
    """Settle one due definition; one that cannot be read shows its error and hurts no other."""
    due = find_due(row)
    if due.error:
        log.warn("A schedule does not fire.", schedule=row["name"], error=due.error[:200])
    decision = _decide(connection, row, due)
    if decision.waits:
        connection.execute(WAIT, (due.instants[0], row["id"]))
        return
    if decision.fire:
        _fire(connection, row, decision.fire)
    reason = "capped" if row["misfire"] == "all" else "misfire"
    missed: list[Missed] = [(first, reason, until) for first, until in due.untold]
    missed += [(fire, reason, None) for fire, reason in decision.missed]
    missed += [(fire, "paused", None) for fire in due.paused]
    if missed:
        _miss(connection, row, missed)
    last = decision.fire[-1] if decision.fire else None
    connection.execute(ADVANCE, (due.following, last, due.error, row["id"]))


def _decide(connection: psycopg.Connection[Any], row: Mapping[str, Any], due: Due) -> Decision:
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


def _fire(connection: psycopg.Connection[Any], row: Mapping[str, Any], fires: Sequence[datetime]) -> None:
    for run_id, fire in connection.execute(FIRE, (list(fires), row["id"])).fetchall():
        log.move(
            "fire", run_id=run_id, job_type=row["job_type"], schedule=row["name"], scheduled_for=str(fire)
        )


def _miss(connection: psycopg.Connection[Any], row: Mapping[str, Any], missed: Sequence[Missed]) -> None:
    fires, reasons, untils = zip(*missed, strict=True)
    connection.execute(
        MISS, {"id": row["id"], "fires": list(fires), "reasons": list(reasons), "untils": list(untils)}
    )
    log.warn(
        "A schedule missed fires.", schedule=row["name"], count=len(missed),
        reasons=",".join(sorted(set(reasons))), first=str(min(fires)), last=str(max(fires)),
    )  # fmt: skip


def sync_registered(connection: psycopg.Connection[Any], policies: Sequence[Mapping[str, Any]]) -> None:
    """Write the definition of each type registered with ``@job(schedule=…)`` when its code says another.

    Another than was applied last, that is: what an operator has edited or removed stays so, and whether it is
    enabled is never touched (the whole rule: ``worker.transitions.registered``). One that the code has no
    longer stays too, with a warning: nobody knows here whether a person relies on it. For a worker that
    starts.
    """
    said, known = _said_and_known(connection, policies)
    _write_said(connection, said, [name for name, one in said.items() if one != _last(known.get(name))])


def resync_registered(connection: psycopg.Connection[Any], policies: Sequence[Mapping[str, Any]]) -> None:
    """Write what the code says once more, where nobody says the newer any more. For a worker that goes on.

    So a release that is taken back is applied when the last worker of the newer one has gone.
    """
    said, known = _said_and_known(connection, policies)
    again = [name for name, one in said.items() if one in known.get(name, ()) and one != _last(known[name])]
    _write_said(connection, said, again)


def _said_and_known(
    connection: psycopg.Connection[Any], policies: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Said], dict[str, list[Said]]]:
    said = sayings.of_policies(policies)
    return said, sayings.remembered(connection, list(said))


def _last(known: Sequence[Said] | None) -> Said:
    return known[-1] if known else NOTHING_SAID


def _write_said(connection: psycopg.Connection[Any], said: Mapping[str, Said], names: Sequence[str]) -> None:
    for name in registered.in_order(names):
        try:
            registered.write(connection, name, said[name])
        except ValueError as wrong:
            log.warn("A registered schedule was refused.", job_type=name, error=str(wrong))
