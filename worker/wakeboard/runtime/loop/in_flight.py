"""What this process holds: its claimed runs, their leases and how far each has come. Memory only.

The loop adds and removes; the lease thread reads ids and stamps renewals. Times are CLOCK_BOOTTIME in
nanoseconds, which goes on while a machine sleeps: the lease does too.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from wakeboard.core.process.assignment import Assignment, assignment_of
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.channel import Rows

FENCE = 0.9
# Ten years: a row may hold any number above 0, Infinity and NaN among them, which no deadline can be made of.
LONGEST_SECONDS = 315_360_000.0


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one job type, as registered. Durations are in seconds, ``backoff`` is its text."""

    max_attempts: int = 10
    timeout_seconds: float = 300.0
    lease_seconds: float | None = None
    backoff: str = "exponential 10s cap 30m"
    memory_mb: int | None = None


# A type that was registered in between; its rules come with the next start.
UNKNOWN = Policy()


@dataclass
class RunInFlight:
    """One claimed run: who it is, what rules it, when its lease was last known to be ours.

    What most runs never come to is of the class until then: ten thousand are made a second.
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
    terminated_ns: int = field(default=0, init=False)
    killed_ns: int = field(default=0, init=False)
    cancel_asked_ns: int = field(default=0, init=False)
    timed_out: bool = field(default=False, init=False)
    is_lost: bool = field(default=False, init=False)
    is_fenced: bool = field(default=False, init=False)
    is_forgotten: bool = field(default=False, init=False)
    # What it held when that was too much, in bytes.
    memory_bytes: int = field(default=0, init=False)

    @property
    def run_id(self) -> int:
        return self.assignment.run_id

    @property
    def lease_epoch(self) -> int:
        return self.assignment.lease_epoch

    def is_past_fence(self, now_ns: int) -> bool:
        """Whether the lease may end before we could know: what runs must be stopped now."""
        return is_past_fence(self.leased_ns, self.lease_seconds, now_ns)


def is_past_fence(leased_ns: int, lease_seconds: float, now_ns: int) -> bool:
    """Whether a lease of so many seconds, known to be ours at ``leased_ns``, may end soon."""
    return now_ns - leased_ns > lease_seconds * FENCE * 1e9


def held_from_row(
    row: tuple[Any, ...],
    policies: dict[str, Policy],
    worker_id: str,
    lease_seconds: float,
    leased_ns: int,
    listed: Collection[str] = (),
) -> RunInFlight:
    """Return the Held of one row of a claim (the columns of ``engine.claims``).

    ``listed``: the types of which the claim listed what has not begun.
    """
    (
        run_id, epoch, attempt, failures, job_type, payload, key, definition, fire, created, most, timeout,
        trace, *_,
    ) = row  # fmt: skip
    policy = policies.get(job_type, UNKNOWN)
    seconds = policy.timeout_seconds if timeout is None else _bounded(timeout)
    longer = policy.lease_seconds
    assignment = assignment_of(
        (
            run_id, epoch, attempt, job_type, payload, key, definition, fire, created, seconds, trace,
            worker_id, job_type in listed,
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


__all__ = ["Policy", "RunInFlight", "RunsInFlight", "boottime_ns", "held_from_row", "is_past_fence"]


class RunsInFlight:
    """The attempts held, safe to read from the lease thread.

    Kept by run and epoch: a run that was taken from us may come back to us while its old attempt still runs.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], RunInFlight] = {}
        self._given_up: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, entries: Iterable[RunInFlight]) -> list[RunInFlight]:
        """Hold what was claimed; return attempts whose run and epoch that has, as ``forget`` does.

        The database gives an epoch out twice when it is back at an earlier state.
        """
        fresh = {entry.assignment[:2]: entry for entry in entries}
        with self._lock:
            held = self._held
            again = [] if held.keys().isdisjoint(fresh) else [held[each] for each in held.keys() & fresh]
            held.update(fresh)
        for entry in again:
            entry.is_forgotten = True
        return again

    def get(self, run_id: int, lease_epoch: int) -> RunInFlight | None:
        """Return the attempt when it is held."""
        return self._held.get((run_id, lease_epoch))

    def of(self, assignments: Iterable[Assignment]) -> list[RunInFlight | None]:
        """Return the attempt of each assignment, None where it is not held."""
        held = self._held
        return [held.get(assignment[:2]) for assignment in assignments]

    def has(self, run_id: int) -> bool:
        """Return whether an attempt of the run is held."""
        with self._lock:
            return any(held_id == run_id for held_id, _ in self._held)

    def drop(self, entries: Iterable[RunInFlight]) -> None:
        """Hold these no more: their rows no longer need us."""
        with self._lock:
            held = self._held
            for entry in entries:
                attempt = entry.assignment[:2]
                # Another one may have its run and epoch by now (``add``).
                if held.get(attempt) is entry:
                    del held[attempt]

    def give_up(self, attempts: Iterable[tuple[int, int]]) -> None:
        """Hold these no more though their rows say that we do: their leases end by themselves."""
        gone = set(attempts)
        with self._lock:
            for attempt in gone:
                self._held.pop(attempt, None)
            self._given_up |= gone

    def forget(self, attempts: Iterable[tuple[int, int]]) -> list[RunInFlight]:
        """Drop attempts that the database does not know of, and return them, each marked as such."""
        with self._lock:
            gone = [held for attempt in attempts if (held := self._held.pop(attempt, None)) is not None]
        for held in gone:
            held.is_forgotten = True
        return gone

    def attempts(self) -> list[tuple[int, int]]:
        """Return the run and epoch of everything held."""
        with self._lock:
            return list(self._held)

    def all(self) -> list[RunInFlight]:
        """Return a snapshot of everything held."""
        with self._lock:
            return list(self._held.values())

    def unknown(self, rows: Rows) -> list[tuple[int, int]]:
        """Return (id, epoch) of rows locked by us that we do not hold: claims whose answer was lost.

        ``rows`` are all that are locked by us; what was given up is none of them.
        """
        self._given_up &= {(run_id, epoch) for run_id, epoch in rows}
        return [
            (run_id, epoch)
            for run_id, epoch in rows
            if self.get(run_id, epoch) is None and (run_id, epoch) not in self._given_up
        ]
