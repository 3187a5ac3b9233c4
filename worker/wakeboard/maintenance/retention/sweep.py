"""The retention duty: passes over everything that is kept for a time, one short slice after the other.

It shares the thread of presence, schedules and reaping, so a slice is bounded and a pause follows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

import psycopg

from wakeboard.config import log
from wakeboard.maintenance.retention import leftovers, runs, state
from wakeboard.maintenance.retention.keep import Keep
from wakeboard.maintenance.retention.state import RetentionPass
from wakeboard.maintenance.retention.zones import Zones, earliest

Connection = psycopg.Connection[Any]

# How often a worker looks whether a pass is due.
LOOK_SECONDS = 60.0
# A slice, and the pause after it in times of what it took: a third of one processor at most.
SLICE_SECONDS = 0.02
PAUSE = 2.0
# Between two words about runs that cannot be removed.
TELL_SECONDS = 3600.0
RUNS = "runs"
# For one batch. The planner would walk the whole table where a plan was made while it was small (see
# db.PLANNING); a removal that is lost in a crash is made again, so nobody waits for the disk.
BATCH_SETTINGS = """
SELECT set_config('lock_timeout', '100ms', true), set_config('synchronous_commit', 'off', true),
    set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true), set_config('wakeboard.retention', 'on', true)
"""
# Foreign keys of other tables that wait for the end of a transaction would refuse the whole batch there.
AT_ONCE = "SET CONSTRAINTS ALL IMMEDIATE"


class Retention:
    """The duty of one process. ``worker_id`` is its name in the shared row."""

    def __init__(self, keep: Keep, worker_id: str) -> None:
        self._keep = keep
        self._worker_id = worker_id
        self._zones = Zones()
        self._tell_again_at = 0.0
        self.pause_seconds: float | None = None

    def step(self, connection: Connection) -> Mapping[str, Any]:
        """Work for a moment if a pass is due; return its numbers.

        Afterwards ``pause_seconds`` says how soon there is more to do, None when not before LOOK_SECONDS.
        """
        self.pause_seconds = None
        found = state.read(connection)
        if found is None:
            state.create(connection)
        elif not state.is_due(found.last, found.silent_seconds, self._worker_id):
            return found.last.shown()
        began = monotonic()
        while (current := self._batch(connection)) is not None and current.room is not None:
            if (elapsed := monotonic() - began) >= SLICE_SECONDS:
                self.pause_seconds = PAUSE * elapsed
                return current.shown()
        return current.shown() if current else {}

    def _batch(self, connection: Connection) -> RetentionPass | None:
        """Do one batch of the pass; None when another worker is at it."""
        try:
            return self._in_a_transaction(connection)
        except BaseException:
            # What was noted of a batch that is rolled back is not so.
            self._zones.forget()
            raise

    def _in_a_transaction(self, connection: Connection) -> RetentionPass | None:
        began = monotonic()
        with connection.transaction():
            connection.execute(BATCH_SETTINGS)
            connection.execute(AT_ONCE)
            found = state.read(connection, lock=True)
            if found is None:
                # Somebody looks at the row, whoever the pass belongs to: again in a moment.
                self.pause_seconds = PAUSE * SLICE_SECONDS
                return None
            if not state.is_due(found.last, found.silent_seconds, self._worker_id):
                return None
            current, now = found.last, found.now
            if current.room is None:
                current = RetentionPass(room=RUNS, started_at=now)
            current.owner = self._worker_id
            self._advance(connection, current, now)
            current.work_seconds += monotonic() - began
            if current.room is None:
                current.finished_at = now
            state.store(connection, current)
        if current.room is None and any(current.removed.values()):
            log.note("Removed what was kept for long enough.", **_told(current))
        return current

    def _advance(self, connection: Connection, current: RetentionPass, now: float) -> None:
        """Remove one batch of what the pass is at, and go to the next room when nothing is left there."""
        keep = runs.policy(connection, self._keep)
        if keep != self._keep:
            self._zones.forget()
            self._keep = keep
        rooms = {leftover.name: leftover for leftover in leftovers.leftovers(keep)}
        if current.room in rooms:
            gone = leftovers.remove_batch(connection, rooms[current.room], current.cursor)
            current.count(current.room, gone.rows)
            removed, cursor = gone.rows, gone.cursor
        else:
            batch = runs.remove_batch(
                connection, keep, self._zones, current.cursor, now=now, backlog=current.backlog
            )
            current.count("runs", batch.runs)
            current.count("attempts", batch.attempts)
            current.oldest_ended_at = earliest((self._zones.oldest_at, batch.oldest_at))
            removed, cursor = batch.runs, batch.cursor
            self._tell_refused(batch.refused)
        current.backlog = removed >= runs.REMOVE_ROWS and cursor is not None
        if cursor is None:
            order = [RUNS, *rooms, None]
            current.room = order[order.index(current.room if current.room in rooms else RUNS) + 1]
        current.cursor = cursor or 0

    def _tell_refused(self, why: str | None) -> None:
        if why is not None and monotonic() >= self._tell_again_at:
            self._tell_again_at = monotonic() + TELL_SECONDS
            log.warn(
                "Runs that were kept for long enough cannot be removed, and stay. Where another table refers "
                "to them, let its foreign key be ON DELETE CASCADE or SET NULL.",
                error=why,
            )


def _told(current: RetentionPass) -> dict[str, Any]:
    """Return what a pass did, as its line in the log says it: what it found nothing of is left out."""
    counts = {name: count for name, count in current.removed.items() if count}
    return {"runs": 0} | counts | {"seconds": round(current.work_seconds, 2)}
