"""The output of what runs, while it runs: the tail of each longer run, written every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import psycopg

from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.in_flight import RunInFlight

SHOWN_AFTER_SECONDS = 2.0
SWEEP_SECONDS = 60.0

KEEP = """
INSERT INTO wakeboard.run_output (run_id, lease_epoch, tail)
SELECT o.run_id, o.epoch, o.tail
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS o (run_id, epoch, tail)
JOIN wakeboard.job_runs AS r ON r.id = o.run_id AND r.lease_epoch = o.epoch
ON CONFLICT (run_id) DO UPDATE SET lease_epoch = excluded.lease_epoch, tail = excluded.tail,
    updated_at = now()
WHERE run_output.lease_epoch <= excluded.lease_epoch
"""
FORGET = """
DELETE FROM wakeboard.run_output AS o USING wakeboard.job_runs AS r
WHERE r.id = o.run_id AND (r.status <> 'running' OR r.lease_epoch <> o.lease_epoch)
"""


class LiveOutput:
    """Writes the tails that changed. ``read`` returns the output of a slot so far."""

    def __init__(self, read: Callable[[int], str]) -> None:
        self._read = read
        self._written: dict[tuple[int, int], str] = {}
        self._sweep_at = 0.0

    def step(self, connection: psycopg.Connection[Any], runs: Sequence[RunInFlight]) -> None:
        """Write what is new, and remove the tails of runs that have ended: of others' runs once a minute."""
        had_written = any(self._written.values())
        tails = {run.assignment[:2]: (run, self._tail(run)) for run in runs}
        fresh = [
            (run, tail)
            for attempt, (run, tail) in tails.items()
            if tail and tail != self._written.get(attempt)
        ]
        if fresh:
            values = (
                [run.run_id for run, _ in fresh],
                [run.lease_epoch for run, _ in fresh],
                [tail for _, tail in fresh],
            )
            psycopg.RawCursor(connection).execute(KEEP.encode(), values)
        self._written = {attempt: tail for attempt, (_, tail) in tails.items()}
        if had_written or monotonic() >= self._sweep_at:
            connection.execute(FORGET)
            self._sweep_at = monotonic() + SWEEP_SECONDS

    def _tail(self, run: RunInFlight) -> str:
        """Return what the run has written, once it has run long enough for somebody to look."""
        age = (boottime_ns() - run.claimed_ns) / 1e9
        if run.slot is None or not run.is_slow or age < SHOWN_AFTER_SECONDS:
            return ""
        return self._read(run.slot)
