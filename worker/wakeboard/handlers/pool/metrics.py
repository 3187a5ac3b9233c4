"""The metrics of a pool, and the report of its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wakeboard.handlers.pool.future import ENDED, PoolFuture, State


class Running(NamedTuple):
    """A handler that runs, for `seconds` by now; `given_up`: its job has ended without it."""

    id: int
    job_type: str
    attempt: int
    seconds: float
    given_up: bool


class PoolMetrics(NamedTuple):
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


class Report(NamedTuple):
    """How a pool ended.

    `finished` counts the jobs that came to an end of their own after `stop()`, `dropped` are those that did
    not and can be submitted again, `handed_off` counts those that went to the table, `still_running` are
    handlers that heeded no cancel and that the end of the process will cut.
    """

    finished: int
    dropped: tuple[PoolFuture, ...]
    handed_off: int
    still_running: tuple[Running, ...]

    @property
    def is_clean(self) -> bool:
        """Whether no job was lost and no handler was left behind."""
        return not self.dropped and not self.still_running


@dataclass(slots=True)
class DurationStats:
    """Number, sum and maximum of durations."""

    count: int = 0
    sum_ns: int = 0
    maximum_ns: int = 0

    def add(self, ns: int) -> None:
        """Count one more duration."""
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


class Counters:
    """What a pool counts; `ended` by the state in which jobs ended."""

    def __init__(self) -> None:
        self.submitted = self.started = self.failed = self.retried = 0
        self.refused = self.blocked = self.abandoned = self.late = 0
        self.ended: dict[State, int] = dict.fromkeys(ENDED, 0)
        self.latency, self.wait, self.run = DurationStats(), DurationStats(), DurationStats()
