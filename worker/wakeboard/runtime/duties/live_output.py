"""The live output: the end of what each longer run has printed so far, written every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

import psycopg

from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.in_flight import RunInFlight

SHOWN_AFTER_SECONDS = 2.0
SWEEP_SECONDS = 60.0

WRITE = """
INSERT INTO wakeboard.run_output (run_id, lease_epoch, tail)
SELECT o.run_id, o.epoch, o.tail
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS o (run_id, epoch, tail)
JOIN wakeboard.job_runs AS r ON r.id = o.run_id AND r.lease_epoch = o.epoch
ON CONFLICT (run_id) DO UPDATE SET lease_epoch = excluded.lease_epoch, tail = excluded.tail,
    updated_at = now()
WHERE run_output.lease_epoch <= excluded.lease_epoch
"""
DELETE_ENDED = """
DELETE FROM wakeboard.run_output AS o USING wakeboard.job_runs AS r
WHERE r.id = o.run_id AND (r.status <> 'running' OR r.lease_epoch <> o.lease_epoch)
"""


class LiveOutput:
    """Writes the outputs that changed."""

    def __init__(self, read: Callable[[int], str]) -> None:
        """``read`` returns the end of a slot's output so far."""
        self._read = read
        self._written: dict[tuple[int, int], str] = {}
        self._sweep_at = 0.0

    def step(self, connection: psycopg.Connection, runs: Sequence[RunInFlight]) -> None:
        """Write the new output of ``runs``. Delete that of runs that ended, once a minute also others'."""
        had_written = any(self._written.values())
        tails = {run.assignment[:2]: (run, self._tail(run)) for run in runs}
        changed = [
            (run, tail)
            for attempt, (run, tail) in tails.items()
            if tail and tail != self._written.get(attempt)
        ]
        if changed:
            values = (
                [run.run_id for run, _ in changed],
                [run.lease_epoch for run, _ in changed],
                [tail for _, tail in changed],
            )
            psycopg.RawCursor(connection).execute(WRITE.encode(), values)
        self._written = {attempt: tail for attempt, (_, tail) in tails.items()}
        if had_written or monotonic() >= self._sweep_at:
            connection.execute(DELETE_ENDED)
            self._sweep_at = monotonic() + SWEEP_SECONDS

    def _tail(self, run: RunInFlight) -> str:
        """Return the output of a run that has lasted long enough to be looked at, else an empty string."""
        age = (boottime_ns() - run.claimed_ns) / 1e9
        if run.slot is None or not run.is_slow or age < SHOWN_AFTER_SECONDS:
            return ""
        return self._read(run.slot)
