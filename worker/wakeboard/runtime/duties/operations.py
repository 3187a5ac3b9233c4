"""The operations duty: advances each bulk operation a little at a time."""

from __future__ import annotations

from time import monotonic

import psycopg

from wakeboard.bulk.advance import AdvanceResult, advance, find_due

OPERATIONS_SECONDS = 1.0
# How long one step may take: the thread fires schedules, too.
BUDGET_SECONDS = 0.25
SHORTEST_PAUSE_SECONDS = 0.05


class Operations:
    """The duty of one worker process; ``pause_seconds``: when to continue, None for the usual time."""

    def __init__(self) -> None:
        self.pause_seconds: float | None = None
        # Those that failed come last, so that they delay no other.
        self._failed: set[int] = set()

    def step(self, connection: psycopg.Connection) -> dict[str, int]:
        """Advance the operations that are due; return how many runs were moved."""
        until, moved = monotonic() + BUDGET_SECONDS, 0
        pauses = [OPERATIONS_SECONDS]
        for operation_id in sorted(find_due(connection), key=self._failed.__contains__):
            again_in = 0.0
            while again_in <= 0 and monotonic() < until:
                step = self._advance(connection, operation_id)
                moved += step.moved if step else 0
                again_in = step.again_in if step else OPERATIONS_SECONDS
            pauses.append(again_in)
        shortest = max(min(pauses), SHORTEST_PAUSE_SECONDS)
        self.pause_seconds = shortest if shortest < OPERATIONS_SECONDS else None
        return {"moved": moved} if moved else {}

    def _advance(self, connection: psycopg.Connection, operation_id: int) -> AdvanceResult | None:
        try:
            step = advance(connection, operation_id)
        except Exception:
            self._failed.add(operation_id)
            raise
        self._failed.discard(operation_id)
        return step
