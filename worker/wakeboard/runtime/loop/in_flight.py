"""Runs in flight: the attempts that this worker has claimed, with their leases. In memory only.

The loop adds and removes them; the lease thread reads ids and writes renewal times. Times are CLOCK_BOOTTIME
in nanoseconds: that clock goes on while the machine sleeps, and so do leases.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from wakeboard.core.process.assignment import Assignment, assignment_of
from wakeboard.runtime.loop.channel import Row, Rows

# A run is killed after this share of its lease without a confirmed renewal. The rest of the lease is for the
# kill: nobody else can have taken the run before its process is gone.
UNCONFIRMED_SHARE = 0.9
# Ten years. A row may hold any number above 0, Infinity and NaN too, and no deadline can be computed from
# these.
LONGEST_SECONDS = 315_360_000.0


class StopReason(IntEnum):
    """Why this worker stops a run. Of several, the first in this order says how the attempt ended."""

    LEASE_LOST = 1
    TIMEOUT = 2
    CANCEL = 3
    MEMORY = 4
    LEASE_UNCONFIRMED = 5
    SHUTDOWN = 6


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one job type, as registered. Durations are in seconds, ``backoff`` is its text."""

    max_attempts: int = 10
    timeout_seconds: float = 300.0
    lease_seconds: float | None = None
    backoff: str = "exponential 10s cap 30m"
    memory_mb: int | None = None


# For a type that was registered after this worker started.
DEFAULT_POLICY = Policy()


@dataclass
class RunInFlight:
    """One claimed run: its assignment, its rules, and when its lease was last known to be ours.

    Ten thousand are created a second, so fields that few runs need are set on the instance only when needed.
    ``cancel_requested_ns``, ``terminated_ns``, ``killed_ns``: when the worker did that, 0 before.
    ``memory_bytes``: what the run used when that exceeded its limit of ``memory_mb``.
    """

    assignment: Assignment
    failures: int
    max_attempts: int
    backoff: str
    lease_seconds: float
    leased_ns: int
    claimed_ns: int
    memory_mb: int | None = None
    slot: int | None = field(default=None, init=False)
    is_slow: bool = field(default=True, init=False)
    cancel_requested_ns: int = field(default=0, init=False)
    terminated_ns: int = field(default=0, init=False)
    killed_ns: int = field(default=0, init=False)
    stop_reason: StopReason | None = field(default=None, init=False)
    is_forgotten: bool = field(default=False, init=False)
    memory_bytes: int = field(default=0, init=False)

    @property
    def run_id(self) -> int:
        return self.assignment.run_id

    @property
    def lease_epoch(self) -> int:
        return self.assignment.lease_epoch

    def add_stop_reason(self, reason: StopReason) -> None:
        """Note why the run is stopped; a reason that comes first in ``StopReason`` stays."""
        self.stop_reason = reason if self.stop_reason is None else min(reason, self.stop_reason)

    def is_lease_unconfirmed(self, now_ns: int) -> bool:
        """Whether the lease may end before we could know: what runs must be stopped now."""
        return is_lease_unconfirmed(self.leased_ns, self.lease_seconds, now_ns)


def is_lease_unconfirmed(leased_ns: int, lease_seconds: float, now_ns: int) -> bool:
    """Whether a lease of so many seconds, known to be ours at ``leased_ns``, may end soon."""
    return now_ns - leased_ns > lease_seconds * UNCONFIRMED_SHARE * 1e9


def run_from_row(
    row: Row,
    policies: Mapping[str, Policy],
    worker_id: str,
    lease_seconds: float,
    leased_ns: int,
    listed_types: Collection[str] = (),
) -> RunInFlight:
    """Return the run of one row of a claim (the columns of ``queue.engine.claims``).

    Args:
        row: One row of the claim's statement.
        policies: The rules of each job type, by name.
        worker_id: The worker that claimed it.
        lease_seconds: The worker's lease; a type's longer lease takes precedence.
        leased_ns: When the claim was sent.
        listed_types: Job types whose runs the claim listed as not begun.
    """
    (
        run_id, epoch, attempt, failures, job_type, payload, key, definition, fire, created, most, timeout,
        trace, *_,
    ) = row  # fmt: skip
    policy = policies.get(job_type, DEFAULT_POLICY)
    seconds = policy.timeout_seconds if timeout is None else _bounded(timeout)
    longer = policy.lease_seconds
    assignment = assignment_of(
        (
            run_id, epoch, attempt, job_type, payload, key, definition, fire, created, seconds, trace,
            worker_id, job_type in listed_types,
        )
    )  # fmt: skip
    return RunInFlight(
        assignment,
        failures,
        most or policy.max_attempts,
        policy.backoff,
        longer if longer and longer > lease_seconds else lease_seconds,
        leased_ns,
        leased_ns,
        policy.memory_mb,
    )


def _bounded(seconds: float) -> float:
    return seconds if seconds < LONGEST_SECONDS else LONGEST_SECONDS


class RunsInFlight:
    """The runs in flight of one worker, by run id and epoch. Any thread may read them.

    A run that was lost may be claimed again while its old attempt still runs, so the id alone is no key.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[int, int], RunInFlight] = {}
        self._abandoned: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, runs: Iterable[RunInFlight]) -> list[RunInFlight]:
        """Add what was claimed. Return the earlier attempts with the same run and epoch, marked as forgotten.

        A database that was restored to an earlier state gives an epoch out twice.
        """
        added = {run.assignment[:2]: run for run in runs}
        with self._lock:
            known = self._runs
            replaced = [] if known.keys().isdisjoint(added) else [known[key] for key in known.keys() & added]
            known.update(added)
        for run in replaced:
            run.is_forgotten = True
        return replaced

    def get(self, run_id: int, lease_epoch: int) -> RunInFlight | None:
        """Return the attempt, None when it is not in flight."""
        return self._runs.get((run_id, lease_epoch))

    def find(self, assignments: Iterable[Assignment]) -> list[RunInFlight | None]:
        """Return the attempt of each assignment, None where it is not in flight."""
        runs = self._runs
        return [runs.get(assignment[:2]) for assignment in assignments]

    def has(self, run_id: int) -> bool:
        """Return whether any attempt of the run is in flight."""
        with self._lock:
            return any(known_id == run_id for known_id, _ in self._runs)

    def remove(self, runs: Iterable[RunInFlight]) -> None:
        """Remove attempts whose rows no longer belong to this worker."""
        with self._lock:
            known = self._runs
            for run in runs:
                key = run.assignment[:2]
                # Another attempt may have the same run and epoch by now, see ``add``.
                if known.get(key) is run:
                    del known[key]

    def abandon(self, attempts: Iterable[tuple[int, int]]) -> None:
        """Remove attempts (run, epoch) whose rows still name this worker: their leases expire."""
        keys = set(attempts)
        with self._lock:
            for key in keys:
                self._runs.pop(key, None)
            self._abandoned |= keys

    def forget(self, attempts: Iterable[tuple[int, int]]) -> list[RunInFlight]:
        """Remove attempts that the database does not know of. Return them, marked as forgotten."""
        with self._lock:
            forgotten = [run for key in attempts if (run := self._runs.pop(key, None)) is not None]
        for run in forgotten:
            run.is_forgotten = True
        return forgotten

    def attempts(self) -> list[tuple[int, int]]:
        """Return run and epoch of every attempt in flight."""
        with self._lock:
            return list(self._runs)

    def all(self) -> list[RunInFlight]:
        """Return every attempt in flight."""
        with self._lock:
            return list(self._runs.values())

    def unknown(self, rows: Rows) -> list[tuple[int, int]]:
        """Return the attempts in ``rows`` that are not in flight: claims whose answer was lost.

        ``rows`` are (run, epoch) of all runs that this worker has locked. Abandoned attempts are left out.
        """
        self._abandoned &= {(run_id, epoch) for run_id, epoch in rows}
        return [
            (run_id, epoch)
            for run_id, epoch in rows
            if self.get(run_id, epoch) is None and (run_id, epoch) not in self._abandoned
        ]
