"""The retention duty: passes over all tables with a retention time, in short slices.

It shares the thread of presence, schedules and reaping, so a slice is bounded and a pause follows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from psycopg import Connection

from wakeboard.config import log
from wakeboard.maintenance.retention import runs, state
from wakeboard.maintenance.retention.other_rows import remove_batch, retention_rules
from wakeboard.maintenance.retention.policy import RetentionPolicy
from wakeboard.maintenance.retention.state import RetentionPass
from wakeboard.maintenance.retention.zone_map import ZoneMap, earliest

# How often a worker asks whether a pass is due.
LOOK_SECONDS = 60.0
# A slice, and the pause after it as a multiple of what it took: a third of one processor at most.
SLICE_SECONDS = 0.02
PAUSE_FACTOR = 2.0
# Between two warnings about runs that cannot be removed.
WARNING_SECONDS = 3600.0
RUNS = "runs"
# For one batch. With a plan that was made while the table was small the planner would scan all of it (see
# db.PLANNING). A removal that is lost in a crash is made again, so nobody waits for the disk.
BATCH_SETTINGS = """
SELECT set_config('lock_timeout', '100ms', true), set_config('synchronous_commit', 'off', true),
    set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true), set_config('wakeboard.retention', 'on', true)
"""
# Deferred foreign keys of other tables would refuse the whole batch at its commit.
CHECK_CONSTRAINTS_NOW = "SET CONSTRAINTS ALL IMMEDIATE"


class Retention:
    """The duty of one process. ``worker_id`` is its name in the shared row."""

    def __init__(self, policy: RetentionPolicy, worker_id: str) -> None:
        self._policy = policy
        self._worker_id = worker_id
        self._zones = ZoneMap()
        self._next_warning_at = 0.0
        self.pause_seconds: float | None = None

    def step(self, connection: Connection) -> Mapping[str, Any]:
        """Work for a slice if a pass is due; return the numbers of the pass.

        Afterwards ``pause_seconds`` says how soon there is more to do, None when not before LOOK_SECONDS.
        """
        self.pause_seconds = None
        row = state.read(connection)
        if row is None:
            state.create(connection)
        elif not state.is_due(row.last, row.silent_seconds, self._worker_id):
            return row.last.summary()
        started_at = monotonic()
        while (current := self._work(connection)) is not None and current.phase is not None:
            if (elapsed := monotonic() - started_at) >= SLICE_SECONDS:
                self.pause_seconds = PAUSE_FACTOR * elapsed
                return current.summary()
        return current.summary() if current else {}

    def _work(self, connection: Connection) -> RetentionPass | None:
        """Do one batch of the pass in a transaction; None when another worker is at it."""
        started_at = monotonic()
        try:
            with connection.transaction():
                connection.execute(BATCH_SETTINGS)
                connection.execute(CHECK_CONSTRAINTS_NOW)
                row = state.read(connection, lock=True)
                if row is None:
                    # Another worker has locked the row, whose pass it may not be: try again soon.
                    self.pause_seconds = PAUSE_FACTOR * SLICE_SECONDS
                    return None
                if not state.is_due(row.last, row.silent_seconds, self._worker_id):
                    return None
                current = row.last
                if current.phase is None:
                    current = RetentionPass(phase=RUNS, started_at=row.now)
                current.owner = self._worker_id
                self._advance(connection, current, row.now)
                current.work_seconds += monotonic() - started_at
                if current.phase is None:
                    current.finished_at = row.now
                state.store(connection, current)
        except BaseException:
            # The zones of a batch that was rolled back are wrong.
            self._zones.clear()
            raise
        removed = {name: count for name, count in current.removed.items() if count}
        if current.phase is None and removed:
            numbers = {"runs": 0} | removed
            log.note(
                "Removed what was kept for long enough.", **numbers, seconds=round(current.work_seconds, 2)
            )
        return current

    def _advance(self, connection: Connection, current: RetentionPass, now: float) -> None:
        """Remove one batch of the current phase, and go to the next phase when nothing is left."""
        policy = runs.read_policy(connection, self._policy)
        if policy != self._policy:
            self._zones.clear()
            self._policy = policy
        rules = {rule.name: rule for rule in retention_rules(policy)}
        if current.phase in rules:
            rows = remove_batch(connection, rules[current.phase], current.cursor)
            current.count(current.phase, rows.rows)
            removed, cursor = rows.rows, rows.cursor
        else:
            batch = runs.remove_batch(
                connection, policy, self._zones, current.cursor, now=now, backlog=current.backlog
            )
            current.count("runs", batch.runs)
            current.count("attempts", batch.attempts)
            current.oldest_ended_at = earliest((self._zones.oldest_at, batch.oldest_at))
            removed, cursor = batch.runs, batch.cursor
            self._warn_of_refusal(batch.refused)
        current.backlog = removed >= runs.REMOVE_ROWS and cursor is not None
        if cursor is None:
            phases = [RUNS, *rules, None]
            current.phase = phases[phases.index(current.phase if current.phase in rules else RUNS) + 1]
        current.cursor = cursor or 0

    def _warn_of_refusal(self, reason: str | None) -> None:
        if reason is not None and monotonic() >= self._next_warning_at:
            self._next_warning_at = monotonic() + WARNING_SECONDS
            log.warn(
                "Runs that were kept for long enough cannot be removed, and stay. Where another table refers "
                "to them, let its foreign key be ON DELETE CASCADE or SET NULL.",
                error=reason,
            )
