"""Firing schedules: what is due becomes a run or a missed fire, and the next fire is set, in one transaction.

Any number of processes may do this at once: definitions are locked with skip locked, and a fire is unique
by (definition, instant). What to do with each due instant is decided by ``sort_fires``, which is pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import psycopg
from psycopg.rows import dict_row

from worker import log
from worker.audit import ENGINE
from worker.cron import Cron
from worker.transitions.definitions import Definition, add, next_fire

BATCH = 200
CATCH_UP_CAP = 100
# An every-minute schedule after two and a half days; what is older is told as one missed fire.
LOOK_BACK = 3600

DUE = """
SELECT id, name, job_type, schedule, timezone, misfire, grace_seconds, overlap, next_fire_at, now() AS now
FROM wakeboard.job_definitions
WHERE enabled AND schedule IS NOT NULL
    AND (next_fire_at <= now() OR (next_fire_at IS NULL AND error IS NULL AND last_fire_at IS NULL))
    AND NOT (overlap = 'wait' AND next_fire_at IS NOT NULL AND EXISTS (
        SELECT 1 FROM wakeboard.job_runs AS r
        WHERE r.definition_id = job_definitions.id AND r.status IN ('queued', 'running', 'failed')
    ))
ORDER BY next_fire_at NULLS FIRST
LIMIT %s
FOR UPDATE SKIP LOCKED
"""
UNDER_WAY = """
SELECT EXISTS (
    SELECT 1 FROM wakeboard.job_runs
    WHERE definition_id = %s AND status IN ('queued', 'running', 'failed')
)
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
INSERT INTO wakeboard.missed_fires (definition_id, scheduled_for, reason)
SELECT %s, fire, reason FROM unnest(%s::timestamptz[], %s::text[]) AS missed (fire, reason)
ON CONFLICT (definition_id, scheduled_for) DO NOTHING
"""
ADVANCE = """
UPDATE wakeboard.job_definitions
SET next_fire_at = %s, last_fire_at = coalesce(%s, last_fire_at), error = %s
WHERE id = %s
"""


@dataclass(slots=True)
class Decision:
    """What becomes of the due instants of one definition."""

    fire: list[datetime] = field(default_factory=list)
    missed: list[tuple[datetime, str]] = field(default_factory=list)
    waits: bool = False


def sort_fires(
    due: Sequence[datetime],
    now: datetime,
    *,
    misfire: str,
    grace_seconds: int,
    overlap: str,
    is_under_way: bool,
    cap: int = CATCH_UP_CAP,
) -> Decision:
    """Decide for each due instant (ascending, at or before ``now``) whether it fires.

    Late by at most the grace: it fires. Later: the misfire policy (one: the latest of them; all: up to
    ``cap``, the latest; none). Then the overlap rule: 'skip' lets one run exist at a time, 'wait' keeps one
    instant until the last run has ended, 'allow' lets all through.
    """
    if overlap == "wait":
        if is_under_way:
            return Decision(waits=True)
        return Decision(fire=list(due[-1:]), missed=[(fire, "overlap") for fire in due[:-1]])
    limit = now - timedelta(seconds=grace_seconds)
    late = [fire for fire in due if fire < limit]
    kept = {"one": late[-1:], "all": late[-cap:], "none": []}[misfire]
    reason = "capped" if misfire == "all" else "misfire"
    decision = Decision(kept + [fire for fire in due if fire >= limit])
    decision.missed = [(fire, reason) for fire in late[: len(late) - len(kept)]]
    if overlap == "skip":
        room = 0 if is_under_way else 1
        decision.missed += [(fire, "overlap") for fire in decision.fire[room:]]
        decision.fire = decision.fire[:room]
    return decision


def step(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Fire what is due; return how many definitions were looked at."""
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(DUE, (BATCH,)).fetchall()
        for row in rows:
            _fire(connection, row)
    return {"due": len(rows)}


def _fire(connection: psycopg.Connection[Any], row: Mapping[str, Any]) -> None:
    """Settle one due definition; one that cannot be read shows its error and hurts no other."""
    try:
        cron = Cron.parse(row["schedule"])
        following = cron.next_fire(row["timezone"], row["now"])
        due = _due_instants(cron, row)
    except (ValueError, OverflowError) as wrong:
        connection.execute(ADVANCE, (None, None, str(wrong)[:500], row["id"]))
        log.warn("A schedule cannot be read and does not fire.", schedule=row["name"], error=str(wrong)[:200])
        return
    row_under_way = connection.execute(UNDER_WAY, (row["id"],)).fetchone()
    decision = sort_fires(
        due, row["now"], misfire=row["misfire"], grace_seconds=row["grace_seconds"], overlap=row["overlap"],
        is_under_way=bool(row_under_way and row_under_way[0]),
    )  # fmt: skip
    if decision.waits:
        return
    for run_id, fire in connection.execute(FIRE, (decision.fire, row["id"])).fetchall():
        log.move(
            "fire", run_id=run_id, job_type=row["job_type"], schedule=row["name"], scheduled_for=str(fire)
        )
    if decision.missed:
        _miss(connection, row, decision.missed)
    last = decision.fire[-1] if decision.fire else None
    never = None if following else "This schedule never fires again: no such date comes."
    connection.execute(ADVANCE, (following, last, never, row["id"]))


def _due_instants(cron: Cron, row: Mapping[str, Any]) -> list[datetime]:
    """Return the instants from ``next_fire_at`` to now, the latest ``LOOK_BACK`` of them at most."""
    if row["next_fire_at"] is None:
        return []
    first, now = row["next_fire_at"], row["now"]
    following = islice(cron.fires(row["timezone"], first), LOOK_BACK)
    due = [first]
    for fire in following:
        if fire.at > now:
            return due
        due.append(fire.at)
    recent = (fire.at for fire in cron.fires(row["timezone"], now - timedelta(days=1)))
    return [first, *(at for at in islice(recent, LOOK_BACK) if first < at <= now)]


def _miss(
    connection: psycopg.Connection[Any], row: Mapping[str, Any], missed: Sequence[tuple[datetime, str]]
) -> None:
    connection.execute(MISS, (row["id"], [fire for fire, _ in missed], [reason for _, reason in missed]))
    log.warn(
        "A schedule missed fires.", schedule=row["name"], count=len(missed), reason=missed[-1][1],
        first=str(missed[0][0]), last=str(missed[-1][0]),
    )  # fmt: skip


def sync_registered(connection: psycopg.Connection[Any], policies: Sequence[Mapping[str, Any]]) -> None:
    """Write the definition of each type registered with ``@job(schedule=…)`` when its text has changed.

    Changed since it was last published, that is: what an operator has edited or removed stays so, and
    whether it is enabled is never touched. To be called before the policies are published again.
    """
    rows = connection.execute("SELECT name, schedule FROM wakeboard.job_types").fetchall()
    published: dict[str, str | None] = {row[0]: row[1] for row in rows}
    for policy in policies:
        if not policy.get("schedule") or published.get(policy["name"]) == policy["schedule"]:
            continue
        name = re.sub(r"[^a-z0-9_-]+", "-", policy["name"].lower()).strip("-")[:100] or "schedule"
        known = connection.execute(
            "SELECT schedule FROM wakeboard.job_definitions WHERE name = %s", (name,)
        ).fetchone()
        if known is not None and known[0] == policy["schedule"]:
            continue
        try:
            _write_registered(connection, name, policy, is_new=known is None)
        except ValueError as wrong:
            log.warn("A registered schedule was refused.", schedule=name, error=str(wrong))


def _write_registered(
    connection: psycopg.Connection[Any], name: str, policy: Mapping[str, Any], *, is_new: bool
) -> None:
    if is_new:
        add(connection, Definition(name, policy["name"], policy["schedule"]), ENGINE, "registered in code")
        return
    row = connection.execute(
        "SELECT timezone FROM wakeboard.job_definitions WHERE name = %s", (name,)
    ).fetchone()
    following = next_fire(connection, policy["schedule"], row[0] if row else "UTC")
    connection.execute(
        "UPDATE wakeboard.job_definitions SET schedule = %s, next_fire_at = %s, error = NULL,"
        " updated_at = now() WHERE name = %s",
        (policy["schedule"], following, name),
    )
