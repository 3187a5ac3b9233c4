"""Looks at the runs at once and twice a second while a fault is on, from a thread and a session of its own.

It sees what is over when a row ends: a run that kept running after its lease, an epoch that fell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from tests.support.faults.invariants import epochs_fell
from tests.support.faults.truth_file import now
from wakeboard.database import db

EVERY_SECONDS = 0.5
OVERDUE = """
SELECT id, extract(epoch FROM now() - locked_until)::float8 FROM wakeboard.job_runs
WHERE status = 'running' AND locked_until < now()
"""
# Changed a moment ago: what this look may compare with the look before.
EPOCHS = """
SELECT id, lease_epoch FROM wakeboard.job_runs
WHERE updated_at > now() - interval '5 seconds' OR status = 'running'
"""


class Sampler:
    """Collects violations of I5 and I6; ``reclaim_seconds``: how long after its lease a run may still run."""

    def __init__(self, url: str, *, reclaim_seconds: float, is_attended: Callable[[], bool]) -> None:
        """``is_attended``: whether some worker is awake and long enough there to take runs back."""
        self._url = url
        self._reclaim_seconds = reclaim_seconds
        self._is_attended = is_attended
        self._attended_since: float | None = None
        self._epochs: dict[int, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, name="sampler", daemon=True)
        self.violations: set[str] = set()
        self.looks = 0
        self.longest_overdue_seconds = 0.0

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    @property
    def is_looking(self) -> bool:
        """Whether its thread lives."""
        return self._thread.is_alive()

    def stop(self) -> list[str]:
        """Stop looking; return what was seen."""
        died = not self.is_looking and not self._stopping.is_set()
        self._stopping.set()
        self._thread.join(10)
        blind = [] if self.looks and not died else ["I5: nobody looked: the sampler saw nothing, or died"]
        return sorted(self.violations) + blind

    def _look(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        # At once for the first time: a row may be over within half a second.
        is_over = False
        while not is_over:
            try:
                if connection is None:
                    connection = db.connect(self._url, name="wakeboard sampler")
                self.look(connection)
            except (psycopg.Error, db.DatabaseError, OSError):
                # The database is what some rows take away; what matters is how it stands when it is back,
                # and nobody can take a run back before that.
                self._attended_since = None
                if connection is not None:
                    connection.close()
                connection = None
            is_over = self._stopping.wait(EVERY_SECONDS)
        if connection is not None:
            connection.close()

    def look(self, connection: psycopg.Connection[Any]) -> None:
        """Take one sample."""
        attended = self._attended_seconds()
        for run_id, late in connection.execute(OVERDUE).fetchall():
            neglected = min(late, attended)
            self.longest_overdue_seconds = max(self.longest_overdue_seconds, neglected)
            if neglected > self._reclaim_seconds:
                self.violations.add(f"I5: run {run_id} still runs long after its lease")
        seen = dict(connection.execute(EPOCHS).fetchall())
        self.violations |= set(epochs_fell(self._epochs, seen))
        self._epochs |= seen
        self.looks += 1

    def _attended_seconds(self) -> float:
        """Return for how long, without a gap, somebody could have taken back what is overdue."""
        if not self._is_attended():
            self._attended_since = None
            return 0.0
        self._attended_since = self._attended_since or now()
        return now() - self._attended_since
