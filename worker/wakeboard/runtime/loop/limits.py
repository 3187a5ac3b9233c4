"""When a run is stopped: its timeout, a cancel, its memory, a lost lease, the shutdown of the worker.

A run past its timeout gets SIGTERM, and SIGKILL after ``kill_seconds``. A cancelled run is notified first
(its ``check()`` raises), then terminated and killed. A run whose lease may end unseen is killed at once,
because nobody may run it twice. So is a run that uses more memory than its type may: other runs would suffer.
ARCHITECTURE.md has the table of all reasons for which a child is killed.
"""

from __future__ import annotations

import math
from time import monotonic

from wakeboard.core.process.shared_slot import CurrentRun, boottime_ns
from wakeboard.runtime.deadlines import LAST_WRITES_SECONDS, WEIGH_SECONDS, WORKER_EXIT_SECONDS
from wakeboard.runtime.loop.in_flight import RunInFlight, RunsInFlight, StopReason
from wakeboard.runtime.processes.children import Children


class RunLimits:
    """Stops runs on all slots of one worker."""

    def __init__(
        self, children: Children, in_flight: RunsInFlight, slots: int, *, kill_seconds: float
    ) -> None:
        """``slots``: how many there are; ``kill_seconds``: from SIGTERM to SIGKILL."""
        self._children = children
        self._in_flight = in_flight
        self._slots = slots
        self._kill_ns = int(kill_seconds * 1e9)
        self._measured_at = 0.0

    def cancel(self, run_id: int, lease_epoch: int) -> None:
        """Notify a run that a person wants it to stop."""
        run = self._in_flight.get(run_id, lease_epoch)
        if run is None or run.slot is None or run.cancel_requested_ns:
            return
        run.cancel_requested_ns = boottime_ns()
        run.add_stop_reason(StopReason.CANCEL)
        self._children.request_cancel(run.slot, run.run_id, run.lease_epoch)

    def mark_lost(self, run_id: int, lease_epoch: int) -> None:
        """Note that another worker has the run now; its process is killed while it runs it."""
        if run := self._in_flight.get(run_id, lease_epoch):
            run.add_stop_reason(StopReason.LEASE_LOST)

    def step(self) -> None:
        """Check every slot and every lease once."""
        now = boottime_ns()
        is_memory_due = monotonic() - self._measured_at >= WEIGH_SECONDS
        self._measured_at = monotonic() if is_memory_due else self._measured_at
        for slot in range(self._slots):
            started = self._children.current(slot)
            run = started and self._in_flight.get(started.run_id, started.lease_epoch)
            if started and run:
                self._check_time(slot, started, run, now)
                if is_memory_due and run.memory_mb is not None:
                    self._check_memory(slot, run, run.memory_mb, now)
        for run in self._in_flight.all():
            if run.slot is not None and run.is_lease_unconfirmed(now) and not run.killed_ns:
                run.add_stop_reason(StopReason.LEASE_UNCONFIRMED)
                self._kill_slot(run.slot, run, now)

    def _check_time(self, slot: int, started: CurrentRun, run: RunInFlight, now: int) -> None:
        """Stop a run that is past its timeout, cancelled or lost."""
        if run.killed_ns:
            return
        if run.terminated_ns:
            if now - run.terminated_ns >= self._kill_ns:
                self._kill_run(slot, run, now)
        elif run.stop_reason is StopReason.LEASE_LOST:
            self._kill_run(slot, run, now)
        elif run.cancel_requested_ns:
            self._children.request_cancel(slot, run.run_id, run.lease_epoch)
            if now - run.cancel_requested_ns >= self._kill_ns:
                self._terminate(slot, run, now)
        elif now - started.started_ns >= run.assignment.timeout_seconds * 1e9:
            run.add_stop_reason(StopReason.TIMEOUT)
            self._terminate(slot, run, now)

    def _check_memory(self, slot: int, run: RunInFlight, megabytes: int, now: int) -> None:
        """Kill a run whose processes use more memory than its type may."""
        limit = megabytes * 1024 * 1024
        used = None if run.killed_ns else self._children.memory(slot, limit)
        if used is not None and used > limit:
            run.memory_bytes = used
            run.add_stop_reason(StopReason.MEMORY)
            self._kill_run(slot, run, now)

    def terminate_all(self) -> None:
        """Terminate every run, because the worker stops."""
        now = boottime_ns()
        for run in self._in_flight.all():
            if run.slot is not None:
                run.add_stop_reason(StopReason.SHUTDOWN)
                self._terminate(run.slot, run, now)

    def kill_all(self) -> None:
        """Kill the children of all runs, because the worker stops."""
        now = boottime_ns()
        for run in self._in_flight.all():
            if run.slot is not None:
                run.add_stop_reason(StopReason.SHUTDOWN)
                self._kill_slot(run.slot, run, now)

    def _terminate(self, slot: int, run: RunInFlight, now: int) -> None:
        """Send SIGTERM to the slot's run, once."""
        if not (run.terminated_ns or run.killed_ns):
            run.terminated_ns = now
            self._children.terminate(slot)

    def _kill_run(self, slot: int, run: RunInFlight, now: int) -> None:
        """Kill the slot's child, once, if it still executes ``run``."""
        if not run.killed_ns:
            run.killed_ns = now
            self._children.kill_run(slot, run.run_id, run.lease_epoch)

    def _kill_slot(self, slot: int, run: RunInFlight, now: int) -> None:
        """Kill the slot's child, once, whatever it executes: ``run`` may wait there."""
        if not run.killed_ns:
            run.killed_ns = now
            self._children.kill(slot)


class Shutdown:
    """The deadlines of a worker that stops. It only tells the time."""

    def __init__(self, shutdown_seconds: float, kill_seconds: float) -> None:
        """``shutdown_seconds``: from the stop to the end; ``kill_seconds``: from SIGTERM to SIGKILL."""
        self._shutdown_seconds = shutdown_seconds
        self._kill_seconds = kill_seconds
        self._began_at: float | None = None

    def begin(self) -> bool:
        """Begin, and return True. A second call ends the grace of what still runs, and returns False."""
        if self._began_at is None:
            self._began_at = monotonic()
            return True
        self._began_at = min(self._began_at, monotonic() - self._grace_seconds)
        return False

    @property
    def has_begun(self) -> bool:
        """Whether the worker stops."""
        return self._began_at is not None

    @property
    def must_interrupt(self) -> bool:
        """Whether what still runs is to be terminated."""
        return self._has_lasted(self._grace_seconds)

    @property
    def must_kill(self) -> bool:
        """Whether what was terminated has had its time, or only that of the last writes is left.

        ``RunLimits.step`` kills a run by the time of its own SIGTERM. This ends what is left, whatever runs,
        and earlier where ``kill_seconds`` do not fit into the shutdown.
        """
        last_moment = max(0.0, self._shutdown_seconds - LAST_WRITES_SECONDS)
        return self._has_lasted(min(self._grace_seconds + self._kill_seconds, last_moment))

    @property
    def is_over(self) -> bool:
        """Whether the worker must leave, whatever is not done."""
        return self._has_lasted(max(LAST_WRITES_SECONDS, self._shutdown_seconds - WORKER_EXIT_SECONDS))

    @property
    def seconds_left(self) -> float:
        """Seconds until the worker must leave; infinite before it stops."""
        if self._began_at is None:
            return math.inf
        return max(0.0, self._began_at + self._shutdown_seconds - WORKER_EXIT_SECONDS - monotonic())

    @property
    def _grace_seconds(self) -> float:
        """Seconds from the stop to the SIGTERM for what still runs."""
        return max(0.0, self._shutdown_seconds - self._kill_seconds - LAST_WRITES_SECONDS)

    def _has_lasted(self, seconds: float) -> bool:
        return self._began_at is not None and monotonic() - self._began_at >= seconds
