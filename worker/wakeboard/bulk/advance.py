"""One step of an operation: a batch of moves, its cursor and its numbers in one transaction, by one worker.

Killed at any point, a step has happened whole or not at all. It waits for no lock: a locked operation or run
is tried again a moment later. The database's clock decides about the pace.

A step also counts how the runs that were moved have ended, by their first attempt afterwards. A canary that
fails, or too many failures, stop the operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from math import floor
from typing import NamedTuple

from psycopg import Connection
from psycopg.types.json import Jsonb

from wakeboard.bulk import rules
from wakeboard.core.states import FAILURES, Role, sql_list
from wakeboard.database.audit import ENGINE, Actor, record
from wakeboard.database.poison_rows import retry_with_immediate_constraints
from wakeboard.database.read import read_all, read_one
from wakeboard.queue import operator

BATCH = 100
# So many runs are locked at least where the pace allows fewer: those that are skipped cost no pace.
AHEAD = 20
# A pace that was not used is made up for this long, and not for an outage.
SLACK_SECONDS = 2.0
IDLE_SECONDS = 1.0
LOCKED_SECONDS = 0.5
ENDED_SECONDS = 5.0
# So long after its end an operation counts how its runs end.
OUTCOME_DAYS = 1
# So many runs a step, in turn: one that waits for long delays no other.
OUTCOMES = 500

DUE = """
SELECT id FROM wakeboard.operations WHERE is_open AND look_at <= now() ORDER BY look_at LIMIT 20
"""
OPERATION = """
SELECT o.id, o.verb, o.status, o.as_of, o.per_minute, o.stop_above_percent, o.canary, o.actor, o.role,
    o.source, o.reason, coalesce(o.filter -> 'also', '[]') AS also, o.done, o.asked, o.skipped, o.skips,
    o.succeeded, o.failed, o.dropped, o.cursor, o.watched, o.canary_run_id, o.canary_outcome, o.note,
    o.paced_at, o.is_open, o.finished_at, now() AS now
FROM wakeboard.operations AS o
WHERE o.id = %(id)s AND o.is_open AND o.look_at <= now() FOR NO KEY UPDATE SKIP LOCKED
"""
NEXT = """
SELECT run_id FROM wakeboard.operation_runs
WHERE operation_id = %(id)s AND run_id > %(cursor)s ORDER BY run_id LIMIT %(limit)s
"""
EXISTING = "SELECT id FROM wakeboard.job_runs WHERE id = ANY (%(ids)s)"
LOCK = """
SELECT r.id, r.lease_epoch, {verdict} AS verdict
FROM wakeboard.job_runs AS r LEFT JOIN wakeboard.job_types AS t ON t.name = r.job_type
WHERE r.id = ANY (%(ids)s) ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED
"""
RECORD = """
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
# An attempt that was released does not count; the next one does.
COUNT_OUTCOMES = f"""
WITH looked AS MATERIALIZED (
    SELECT run_id, coalesce(watched_run_id, run_id) AS watched, lease_epoch
    FROM wakeboard.operation_runs
    WHERE operation_id = %(id)s AND result = 'moved' AND outcome IS NULL AND run_id > %(after)s
    ORDER BY run_id LIMIT {OUTCOMES}
), found AS MATERIALIZED (
    SELECT l.run_id, CASE
        WHEN a.outcome IN ({sql_list(FAILURES)}) THEN 'failed'
        WHEN a.outcome IS NOT NULL THEN a.outcome
        WHEN r.id IS NULL THEN 'gone'
        WHEN r.status = 'cancelled' THEN 'cancelled' END AS outcome
    FROM looked AS l LEFT JOIN wakeboard.job_runs AS r ON r.id = l.watched
    LEFT JOIN LATERAL (
        SELECT outcome FROM wakeboard.job_attempts
        WHERE run_id = l.watched AND lease_epoch > l.lease_epoch AND outcome <> 'released'
        ORDER BY lease_epoch LIMIT 1
    ) AS a ON true
), judged AS (
    UPDATE wakeboard.operation_runs AS o SET outcome = f.outcome FROM found AS f
    WHERE o.operation_id = %(id)s AND o.run_id = f.run_id AND f.outcome IS NOT NULL
    RETURNING o.outcome, coalesce(o.watched_run_id, o.run_id) AS watched
)
SELECT (SELECT count(*) FROM looked) AS looked, (SELECT max(run_id) FROM looked) AS last,
    count(*) FILTER (WHERE outcome = 'succeeded') AS succeeded,
    count(*) FILTER (WHERE outcome = 'failed') AS failed,
    count(*) FILTER (WHERE outcome NOT IN ('succeeded', 'failed')) AS dropped,
    max(outcome) FILTER (WHERE watched = %(canary)s) AS canary
FROM judged
"""
PENDING_OUTCOMES = """
SELECT EXISTS (SELECT FROM wakeboard.operation_runs
    WHERE operation_id = %(id)s AND result = 'moved' AND outcome IS NULL),
    %(finished_at)s::timestamptz < now() - make_interval(days => %(days)s)
"""
CANARY_ERROR = f"""
SELECT error_code FROM wakeboard.job_attempts
WHERE run_id = %(run)s AND outcome IN ({sql_list(FAILURES)}) ORDER BY lease_epoch DESC LIMIT 1
"""


@dataclass(slots=True)
class Operation:
    """An operation as its row says it; a step changes it and saves it. ``now`` is the database's."""

    id: int
    verb: str
    status: str
    as_of: datetime
    per_minute: int | None
    stop_above_percent: int | None
    canary: bool
    actor: str
    role: str
    source: str
    reason: str | None
    also: list[str]
    done: int
    asked: int
    skipped: int
    skips: dict[str, int]
    succeeded: int
    failed: int
    dropped: int
    cursor: int | None
    watched: int | None
    canary_run_id: int | None
    canary_outcome: str | None
    note: str | None
    paced_at: datetime
    is_open: bool
    finished_at: datetime | None
    now: datetime


class LockedRun(NamedTuple):
    """A run of a batch, locked; ``verdict`` is 'moves' or a key of rules.SKIP_REASONS."""

    id: int
    lease_epoch: int
    verdict: str


class OutcomeCounts(NamedTuple):
    """How runs have ended: ``looked`` were read, up to the run ``last``; ``canary`` is its outcome."""

    looked: int
    last: int | None
    succeeded: int
    failed: int
    dropped: int
    canary: str | None


@dataclass(frozen=True, slots=True)
class AdvanceResult:
    """What one step did: runs ``moved``, and in how many seconds the next step is due."""

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

    def add(self, run: LockedRun, result: str, why: str | None = None, watched: int | None = None) -> None:
        """Add one run. ``watched`` is the new run whose end counts; it starts at epoch 0."""
        self.runs.append(run.id)
        self.results.append(result)
        self.whys.append(why)
        self.watched.append(watched)
        self.epochs.append(run.lease_epoch if watched is None else 0)

    @property
    def moved(self) -> int:
        """How many were moved, or asked to stop."""
        return sum(result != "skipped" for result in self.results)


def find_due(connection: Connection) -> list[int]:
    """Return the operations whose next step is due."""
    return [operation_id for (operation_id,) in connection.execute(DUE)]


def advance(connection: Connection, operation_id: int) -> AdvanceResult | None:
    """Make one step of an operation; None when it is not due or another worker has locked it.

    A run that the database refuses to move is skipped, also where the rule is checked only at the commit.
    """
    return retry_with_immediate_constraints(connection, lambda: _advance(connection, operation_id))


def _advance(connection: Connection, operation_id: int) -> AdvanceResult | None:
    with connection.transaction():
        operation = read_one(connection, OPERATION, Operation, {"id": operation_id})
        if operation is None:
            return None
        if operation.verb in rules.WATCHED:
            _count_outcomes(connection, operation)
        step = AdvanceResult(0, IDLE_SECONDS)
        if operation.status == "running":
            step = _go_on(connection, operation)
        if operation.status not in rules.OPEN:
            step = AdvanceResult(step.moved, ENDED_SECONDS)
            operation.is_open = _has_pending_outcomes(connection, operation)
        _save(connection, operation, step.again_in)
        return step


def _save(connection: Connection, operation: Operation, again_in: float) -> None:
    values = asdict(operation) | {"skips": Jsonb(operation.skips), "again_in": max(0.0, again_in)}
    connection.execute(SAVE, values)


def _count_outcomes(connection: Connection, operation: Operation) -> None:
    """Add how the next of the moved runs ended to the numbers of ``operation``."""
    values = {
        "id": operation.id,
        "after": operation.watched or 0,
        "canary": operation.canary_run_id if operation.canary_outcome is None else None,
    }
    counts = read_one(connection, COUNT_OUTCOMES, OutcomeCounts, values)
    assert counts is not None
    operation.watched = counts.last if counts.looked == OUTCOMES else None
    operation.succeeded += counts.succeeded
    operation.failed += counts.failed
    operation.dropped += counts.dropped
    operation.canary_outcome = counts.canary or operation.canary_outcome


def _has_pending_outcomes(connection: Connection, operation: Operation) -> bool:
    """Return whether moved runs have yet to end, and the operation ended less than OUTCOME_DAYS ago."""
    if operation.verb not in rules.WATCHED:
        return False
    values = {"id": operation.id, "finished_at": operation.finished_at, "days": OUTCOME_DAYS}
    is_pending, is_over = connection.execute(PENDING_OUTCOMES, values).fetchone() or (False, True)
    return bool(is_pending and not is_over)


def _reason_to_stop(connection: Connection, operation: Operation) -> str | None:
    """Return why the operation must not go on, in a sentence; None when it may."""
    outcome, run_id = operation.canary_outcome, operation.canary_run_id
    if outcome == "failed":
        row = connection.execute(CANARY_ERROR.encode(), {"run": run_id}).fetchone()
        error = f" with {row[0]}" if row and row[0] else ""
        return f"The canary, run {run_id}, failed{error}."
    if outcome not in (None, "succeeded"):
        word = "was removed" if outcome == "gone" else f"was {outcome}"
        return f"The canary, run {run_id}, {word} before it ended."
    limit, failed, ended = (
        operation.stop_above_percent,
        operation.failed,
        operation.succeeded + operation.failed,
    )
    if limit is None or ended < rules.JUDGED_FROM or failed * 100 <= limit * ended:
        return None
    return f"{failed} of {ended} that ended failed again: {failed * 100 / ended:.0f} %, more than {limit} %."


def _go_on(connection: Connection, operation: Operation) -> AdvanceResult:
    """Stop it, wait, or move what the pace allows."""
    if why := _reason_to_stop(connection, operation):
        _stop(connection, operation, why)
        return AdvanceResult(0, ENDED_SECONDS)
    if operation.canary_run_id is not None and operation.canary_outcome != "succeeded":
        return AdvanceResult(0, LOCKED_SECONDS)
    room, base = _room(operation)
    if room == 0:
        return AdvanceResult(0, (base - operation.now).total_seconds())
    batch, is_last = _move_batch(connection, operation, room)
    _count(operation, batch)
    if batch.moved and operation.canary and operation.canary_run_id is None:
        index = next(n for n, result in enumerate(batch.results) if result != "skipped")
        operation.canary_run_id = batch.watched[index] or batch.runs[index]
    if operation.per_minute:
        operation.paced_at = base + timedelta(minutes=batch.moved / operation.per_minute)
    if is_last:
        operation.status = "finished"
    if is_last or not batch.runs:
        return AdvanceResult(batch.moved, LOCKED_SECONDS)
    is_early = operation.paced_at > operation.now and operation.per_minute
    wait = (operation.paced_at - operation.now).total_seconds() if is_early else 0.0
    return AdvanceResult(batch.moved, wait)


def _stop(connection: Connection, operation: Operation, why: str) -> None:
    """Stop the operation, and record why."""
    operation.status, operation.note = "stopped", why
    after = {"status": "stopped", "moved": operation.done, "failed": operation.failed}
    record(
        connection, ENGINE, "operation.stop", "operation", operation.id, reason=why,
        before={"status": "running"}, after=after,
    )  # fmt: skip


def _room(operation: Operation) -> tuple[int, datetime]:
    """Return how many runs may be moved now, and the time from which the pace counts."""
    if operation.canary and operation.canary_run_id is None:
        return 1, operation.now
    if not operation.per_minute:
        return BATCH, operation.now
    base = max(operation.paced_at, operation.now - timedelta(seconds=SLACK_SECONDS))
    if base > operation.now:
        return 0, base
    seconds = (operation.now - base).total_seconds()
    return min(BATCH, floor(seconds * operation.per_minute / 60) + 1), base


def _move_batch(connection: Connection, operation: Operation, room: int) -> tuple[BatchResult, bool]:
    """Move up to ``room`` of the next runs; return what was done, and whether these were the last."""
    limit = min(BATCH, max(room, AHEAD))
    values = {"id": operation.id, "cursor": operation.cursor or 0, "limit": limit + 1}
    ahead = [run_id for (run_id,) in connection.execute(NEXT, values)]
    batch = BatchResult()
    for run in _lock(connection, operation, ahead[:limit]):
        if run.verdict != "moves":
            batch.add(run, "skipped", run.verdict)
        elif batch.moved == room:
            break
        else:
            _move(connection, operation, run, batch)
    if batch.runs:
        operation.cursor = batch.runs[-1]
        _record(connection, operation, batch)
    return batch, len(batch.runs) == len(ahead)


def _lock(connection: Connection, operation: Operation, ids: Sequence[int]) -> list[LockedRun]:
    """Lock and judge the runs at the head of ``ids``; one that does not exist any more counts as locked.

    The first one that another transaction has locked ends the batch, so that none is left out.
    """
    existing = {run_id for (run_id,) in connection.execute(EXISTING, {"ids": ids})}
    values = {"ids": ids, "as_of": operation.as_of, "also": operation.also}
    statement = LOCK.format(verdict=rules.verdict(operation.verb))
    locked = {run.id: run for run in read_all(connection, statement, LockedRun, values)}
    head: list[LockedRun] = []
    for run_id in ids:
        if run_id in locked:
            head.append(locked[run_id])
        elif run_id not in existing:
            head.append(LockedRun(run_id, 0, "missing"))
        else:
            break
    return head


def _move(connection: Connection, operation: Operation, run: LockedRun, batch: BatchResult) -> None:
    """Make the operator's own move of one run; its audit row names the operation."""
    moves = {"retry": operator.retry_now, "cancel": operator.cancel, "again": operator.run_again}
    actor = Actor(operation.actor, Role(operation.role), operation.source)
    why = f"operation {operation.id}" + (f": {operation.reason}" if operation.reason else "")
    answer = moves[operation.verb](connection, run.id, actor, why)
    if not answer.changed:
        batch.add(run, "skipped", "refused" if answer.is_refused else "changed")
    elif operation.verb == "again":
        batch.add(run, "moved", watched=int(answer.id))
    else:
        batch.add(run, "asked" if answer.result == "asked" else "moved")


def _record(connection: Connection, operation: Operation, batch: BatchResult) -> None:
    """Write down what became of each run."""
    # The end of a run of a verb that is not watched counts as known.
    outcome = None if operation.verb in rules.WATCHED else "cancelled"
    connection.execute(RECORD, asdict(batch) | {"id": operation.id, "outcome": outcome})


def _count(operation: Operation, batch: BatchResult) -> None:
    """Add what was done to the numbers of the operation."""
    operation.done += batch.moved
    operation.asked += batch.results.count("asked")
    operation.skipped += batch.results.count("skipped")
    for why in batch.whys:
        if why is not None:
            operation.skips[why] = operation.skips.get(why, 0) + 1
