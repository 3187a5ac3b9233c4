"""One step of an operation: a batch of moves, its cursor and its numbers in one transaction, by one worker.

Killed at any point, the step has happened whole or not at all. It waits for nobody: an operation or a run
that somebody else holds is looked at again a moment later. The database's clock decides about the pace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import floor
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from wakeboard import queue as transitions
from wakeboard.bulk import rules, watch
from wakeboard.core.states import Role
from wakeboard.database.audit import ENGINE, Actor, record
from wakeboard.database.poison_rows import retry_with_immediate_constraints

Connection = psycopg.Connection[Any]
Row = dict[str, Any]

BATCH = 100
# As many are looked at for one that the pace allows: those that are left cost no pace.
AHEAD = 20
# What the pace allowed while nobody looked is made up for this long, and not for an outage.
SLACK_SECONDS = 2.0
IDLE_SECONDS = 1.0
HELD_SECONDS = 0.5
ENDED_SECONDS = 5.0
WATCH_DAYS = 1

DUE = """
SELECT id FROM wakeboard.operations WHERE is_open AND look_at <= now() ORDER BY look_at LIMIT 20
"""
TAKE = """
SELECT o.*, now() AS now, coalesce(o.filter -> 'also', '[]') AS also
FROM wakeboard.operations AS o
WHERE o.id = %(id)s AND o.is_open AND o.look_at <= now() FOR NO KEY UPDATE SKIP LOCKED
"""
NEXT = """
SELECT run_id FROM wakeboard.operation_runs
WHERE operation_id = %(id)s AND run_id > %(cursor)s ORDER BY run_id LIMIT %(limit)s
"""
STANDING = "SELECT id FROM wakeboard.job_runs WHERE id = ANY (%(ids)s)"
LOCK = """
SELECT r.id, r.lease_epoch, {verdict} AS verdict
FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
WHERE r.id = ANY (%(ids)s) ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED
"""
NOTE = """
UPDATE wakeboard.operation_runs AS o
SET result = n.result, why = n.why, watched_run_id = n.watched, lease_epoch = n.epoch, handled_at = now(),
    outcome = CASE WHEN n.result = 'moved' THEN %(outcome)s END
FROM unnest(%(runs)s::bigint[], %(results)s::text[], %(whys)s::text[], %(watched)s::bigint[],
    %(epochs)s::bigint[]) AS n (run_id, result, why, watched, epoch)
WHERE o.operation_id = %(id)s AND o.run_id = n.run_id
"""
SAVE = """
UPDATE wakeboard.operations
SET status = %(status)s, done = %(done)s, asked = %(asked)s, skipped = %(skipped)s, skips = %(skips)s::jsonb,
    succeeded = %(succeeded)s, failed = %(failed)s, dropped = %(dropped)s, cursor = %(cursor)s,
    watched = %(watched)s, canary_run_id = %(canary_run_id)s, canary_outcome = %(canary_outcome)s,
    note = %(note)s, paced_at = %(paced_at)s, is_open = %(is_open)s,
    look_at = now() + make_interval(secs => %(again_in)s),
    finished_at = CASE WHEN %(status)s IN ('finished', 'stopped') THEN coalesce(finished_at, now())
        ELSE finished_at END
WHERE id = %(id)s
"""


@dataclass(frozen=True, slots=True)
class AdvanceResult:
    """What one step did: runs ``moved``, and in how many seconds somebody has to look again."""

    moved: int
    again_in: float


@dataclass(slots=True)
class BatchResult:
    """What became of each run of a batch, in the order of their ids."""

    runs: list[int] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    whys: list[str | None] = field(default_factory=list)
    watched: list[int | None] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)

    def add(self, lock: Row, result: str, why: str | None = None, watched: int | None = None) -> None:
        """Note one run, locked as ``lock`` says."""
        self.runs.append(lock["id"])
        self.results.append(result)
        self.whys.append(why)
        self.watched.append(watched)
        self.epochs.append(lock["lease_epoch"])

    @property
    def moved(self) -> int:
        """How many were moved, or asked to stop."""
        return sum(result != "skipped" for result in self.results)


def due(connection: Connection) -> list[int]:
    """Return the operations that somebody has to look at now."""
    return [row[0] for row in connection.execute(DUE).fetchall()]


def advance(connection: Connection, operation_id: int) -> AdvanceResult | None:
    """Make one step of an operation; None when it is not due or another worker is at it.

    A run that the database refuses to move is skipped, also where the rule speaks only at the commit.
    """
    return retry_with_immediate_constraints(connection, lambda: _advance(connection, operation_id))


def _advance(connection: Connection, operation_id: int) -> AdvanceResult | None:
    with connection.transaction():
        found = _rows(connection, TAKE, {"id": operation_id})
        if not found:
            return None
        operation = found[0]
        if operation["verb"] in rules.WATCHED:
            watch.look(connection, operation)
        step = AdvanceResult(0, IDLE_SECONDS)
        if operation["status"] == "running":
            step = _go_on(connection, operation)
        if operation["status"] not in rules.OPEN:
            step = AdvanceResult(step.moved, ENDED_SECONDS)
            operation["is_open"] = watch.goes_on(connection, operation, WATCH_DAYS)
        _save(connection, operation, step.again_in)
        return step


def _go_on(connection: Connection, operation: Row) -> AdvanceResult:
    """Stop it, wait, or move what the pace allows."""
    if why := watch.reason_to_stop(connection, operation):
        _stop(connection, operation, why)
        return AdvanceResult(0, ENDED_SECONDS)
    is_gated = operation["canary_run_id"] is not None and operation["canary_outcome"] != "succeeded"
    if is_gated:
        return AdvanceResult(0, HELD_SECONDS)
    room, base = _room(operation)
    if room == 0:
        return AdvanceResult(0, (base - operation["now"]).total_seconds())
    handled, is_end = _handle(connection, operation, room)
    _count(operation, handled)
    if handled.moved and operation["canary"] and operation["canary_run_id"] is None:
        place = next(n for n, result in enumerate(handled.results) if result != "skipped")
        operation["canary_run_id"] = handled.watched[place] or handled.runs[place]
    if operation["per_minute"]:
        operation["paced_at"] = base + timedelta(minutes=handled.moved / operation["per_minute"])
    if is_end:
        operation["status"] = "finished"
    if is_end or not handled.runs:
        return AdvanceResult(handled.moved, HELD_SECONDS)
    is_early = operation["paced_at"] > operation["now"] and operation["per_minute"]
    wait = (operation["paced_at"] - operation["now"]).total_seconds() if is_early else 0.0
    return AdvanceResult(handled.moved, wait)


def _room(operation: Row) -> tuple[int, Any]:
    """Return how many may be moved now, and the moment from which the pace counts."""
    if operation["canary"] and operation["canary_run_id"] is None:
        return 1, operation["now"]
    if not operation["per_minute"]:
        return BATCH, operation["now"]
    base = max(operation["paced_at"], operation["now"] - timedelta(seconds=SLACK_SECONDS))
    if base > operation["now"]:
        return 0, base
    seconds = (operation["now"] - base).total_seconds()
    return min(BATCH, floor(seconds * operation["per_minute"] / 60) + 1), base


def _handle(connection: Connection, operation: Row, room: int) -> tuple[BatchResult, bool]:
    """Move up to ``room`` of the next runs; return what was done, and whether none is left behind them."""
    limit = min(BATCH, max(room, AHEAD))
    cursor = operation["cursor"] or 0
    values = {"id": operation["id"], "cursor": cursor, "limit": limit + 1}
    ahead = [row["run_id"] for row in _rows(connection, NEXT, values)]
    ids, handled = ahead[:limit], BatchResult()
    for lock in _locked(connection, operation, ids):
        if lock["verdict"] != "moves":
            handled.add(lock, "skipped", lock["verdict"])
        elif handled.moved == room:
            break
        else:
            _move(connection, operation, lock, handled)
    if handled.runs:
        operation["cursor"] = handled.runs[-1]
        _note(connection, operation, handled)
    return handled, len(handled.runs) == len(ahead)


def _locked(connection: Connection, operation: Row, ids: Sequence[int]) -> list[Row]:
    """Return the runs at the head of ``ids`` that could be locked, judged; one that is gone counts as locked.

    The first one that somebody else holds ends the batch, so that none is left out and nobody waits.
    """
    standing = {row["id"] for row in _rows(connection, STANDING, {"ids": list(ids)})}
    values = {"ids": list(ids), "as_of": operation["as_of"], "also": operation["also"]}
    statement = LOCK.format(verdict=rules.verdict(operation["verb"]))
    locked = {row["id"]: row for row in _rows(connection, statement, values)}
    head: list[Row] = []
    for run_id in ids:
        if run_id in locked:
            head.append(locked[run_id])
        elif run_id not in standing:
            head.append({"id": run_id, "lease_epoch": 0, "verdict": "missing"})
        else:
            break
    return head


def _move(connection: Connection, operation: Row, lock: Row, handled: BatchResult) -> None:
    """Make the operator's own move of one run; its audit row names the operation."""
    moves = {"retry": transitions.retry_now, "cancel": transitions.cancel, "again": transitions.run_again}
    actor = Actor(operation["actor"], Role(operation["role"]), operation["source"])
    why = f"operation {operation['id']}" + (f": {operation['reason']}" if operation["reason"] else "")
    answer = moves[operation["verb"]](connection, lock["id"], actor, why)
    if not answer.changed:
        handled.add(lock, "skipped", "refused" if answer.is_refused else "changed")
    elif operation["verb"] == "again":
        handled.add({**lock, "lease_epoch": 0}, "moved", watched=int(answer.id))
    else:
        handled.add(lock, "asked" if answer.result == "asked" else "moved")


def _note(connection: Connection, operation: Row, handled: BatchResult) -> None:
    """Write down what became of each run."""
    values = {
        "id": operation["id"],
        "runs": handled.runs,
        "results": handled.results,
        "whys": handled.whys,
        "watched": handled.watched,
        "epochs": handled.epochs,
        # What nobody watches is through with its move.
        "outcome": None if operation["verb"] in rules.WATCHED else "cancelled",
    }
    connection.execute(NOTE.encode(), values)


def _count(operation: Row, handled: BatchResult) -> None:
    """Add what was done to the numbers of the operation."""
    operation["done"] += handled.moved
    operation["asked"] += handled.results.count("asked")
    operation["skipped"] += handled.results.count("skipped")
    skips: dict[str, int] = operation["skips"]
    for why in handled.whys:
        if why is not None:
            skips[why] = skips.get(why, 0) + 1


def _stop(connection: Connection, operation: Row, why: str) -> None:
    """End it by itself, and say why where people look."""
    operation["status"], operation["note"] = "stopped", why
    after = {"status": "stopped", "moved": operation["done"], "failed": operation["failed"]}
    record(
        connection, ENGINE, "operation.stop", "operation", operation["id"], reason=why,
        before={"status": "running"}, after=after,
    )  # fmt: skip


def _save(connection: Connection, operation: Row, again_in: float) -> None:
    values = operation | {"skips": Jsonb(operation["skips"]), "again_in": max(0.0, again_in)}
    connection.execute(SAVE.encode(), values)


def _rows(connection: Connection, statement: str, values: Row) -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement.encode(), values).fetchall()
