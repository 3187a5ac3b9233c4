"""The numbers of a pool: what it counts, and how it hands them out. Nothing here decides anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Running:
    """A handler under way: `seconds` since its start; `given_up` when its job has ended without it."""

    id: int
    job_type: str
    attempt: int
    seconds: float
    given_up: bool


@dataclass(frozen=True, slots=True)
class PoolMetrics:
    """A pool at one moment; totals count since it was made, durations are in seconds.

    queue_length: jobs that wait, of which `retrying` for their time. in_flight: handlers running for a job.
    saturation: in_flight / concurrency, 0 to 1. blocked_submitters: threads that wait in `submit()` now.
    threads_alive: threads that take or run jobs. abandoned: handlers that still run though their job was
    given up, each in a thread beside the `concurrency` (or in one of them, past `most_abandoned`).
    succeeded, dead, cancelled, dropped, handed_off: how jobs ended. failed: attempts that did, retried: those
    tried again. late: answers refused because they came after the job was given up.
    latency: from submit to the end; wait: from due to start; run: a handler's own time.
    """

    accepting: bool
    concurrency: int
    capacity: int
    queue_length: int
    retrying: int
    in_flight: int
    saturation: float
    threads_alive: int
    blocked_submitters: int
    abandoned: int
    longest_running_seconds: float
    submitted_total: int
    started_total: int
    succeeded_total: int
    failed_total: int
    retried_total: int
    dead_total: int
    cancelled_total: int
    dropped_total: int
    handed_off_total: int
    refused_total: int
    blocked_total: int
    abandoned_total: int
    late_total: int
    latency_average_seconds: float
    latency_maximum_seconds: float
    wait_average_seconds: float
    wait_maximum_seconds: float
    run_average_seconds: float
    run_maximum_seconds: float


@dataclass(slots=True)
class Span:
    """Durations of one kind, added up."""

    count: int = 0
    sum_ns: int = 0
    maximum_ns: int = 0

    def add(self, ns: int) -> None:
        """Count one more."""
        self.count += 1
        self.sum_ns += ns
        self.maximum_ns = max(self.maximum_ns, ns)

    @property
    def average_seconds(self) -> float:
        """The mean, 0 before the first."""
        return self.sum_ns / self.count / 1e9 if self.count else 0.0

    @property
    def maximum_seconds(self) -> float:
        """The longest, 0 before the first."""
        return self.maximum_ns / 1e9


class Tally:
    """What a pool counts as it goes."""

    def __init__(self) -> None:
        self.submitted = self.started = self.failed = self.retried = 0
        self.refused = self.blocked = self.abandoned = self.late = 0
        self.ended = dict.fromkeys(("succeeded", "dead", "cancelled", "dropped", "handed_off"), 0)
        self.latency, self.wait, self.run = Span(), Span(), Span()
