"""Watching what runs: timeouts, cancels, memory, leases that cannot be renewed, shutdown. Stops anything.

A run past its timeout gets TERM, after ``kill_seconds`` KILL. A cancelled one is told first (``check()``
raises), then TERM, then KILL. One whose lease may end unseen is killed at once: nobody may run it twice. So
is one that holds more memory than its type may: it would take its neighbours with it.
"""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from wakeboard.core.process.shared_slot import StartedRun
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.in_flight import RunInFlight, RunsInFlight

MEMORY_SECONDS = 0.5


class _Processes(Protocol):
    def current(self, slot: int) -> StartedRun | None: ...
    def ask_cancel(self, slot: int, run_id: int, lease_epoch: int) -> None: ...
    def terminate(self, slot: int) -> None: ...
    def kill(self, slot: int, run_id: int | None = None, lease_epoch: int = 0) -> None: ...
    def memory(self, slot: int, limit: int) -> int | None: ...


class Limits:
    """The stopping of runs on all slots of one worker. Durations are in seconds."""

    def __init__(
        self, children: _Processes, in_flight: RunsInFlight, slots: int, *, kill_seconds: float
    ) -> None:
        self._children = children
        self._in_flight = in_flight
        self._slots = slots
        self._kill_ns = int(kill_seconds * 1e9)
        self._weighed_at = 0.0

    def cancel(self, run_id: int, lease_epoch: int) -> None:
        """Tell a run that a person wants it to stop."""
        run = self._in_flight.get(run_id, lease_epoch)
        if run is None or run.slot is None or run.cancel_asked_ns:
            return
        run.cancel_asked_ns = boottime_ns()
        self._children.ask_cancel(run.slot, run.run_id, run.lease_epoch)

    def lost(self, run_id: int, lease_epoch: int) -> None:
        """Note that somebody else has the run now; its process is killed when it is seen running."""
        if run := self._in_flight.get(run_id, lease_epoch):
            run.is_lost = True

    def step(self) -> None:
        """Look at every slot once."""
        now = boottime_ns()
        weighs = monotonic() - self._weighed_at >= MEMORY_SECONDS
        self._weighed_at = monotonic() if weighs else self._weighed_at
        for slot in range(self._slots):
            started = self._children.current(slot)
            run = started and self._in_flight.get(started.run_id, started.lease_epoch)
            if started and run:
                self._look_at(slot, started, run, now)
                if weighs and run.memory_mb is not None:
                    self._weigh(slot, run, run.memory_mb, now)
        for run in self._in_flight.all():
            if run.slot is not None and run.is_past_fence(now) and not run.killed_ns:
                run.is_fenced = True
                self._kill(run.slot, run, now, whatever_runs=True)

    def _look_at(self, slot: int, started: StartedRun, run: RunInFlight, now: int) -> None:
        if run.terminated_ns:
            if now - run.terminated_ns >= self._kill_ns:
                self._kill(slot, run, now)
        elif run.is_lost:
            self._kill(slot, run, now)
        elif run.cancel_asked_ns:
            self._children.ask_cancel(slot, run.run_id, run.lease_epoch)
            if now - run.cancel_asked_ns >= self._kill_ns:
                self.terminate(slot, run, now)
        elif now - started.started_ns >= run.assignment.timeout_seconds * 1e9:
            run.timed_out = True
            self.terminate(slot, run, now)

    def terminate(self, slot: int, run: RunInFlight, now: int) -> None:
        """Send TERM to what a slot runs, once."""
        if not run.terminated_ns:
            run.terminated_ns = now
            self._children.terminate(slot)

    def _weigh(self, slot: int, run: RunInFlight, megabytes: int, now: int) -> None:
        """Kill a run whose processes hold more than its type may."""
        limit = megabytes * 1024 * 1024
        weight = None if run.killed_ns else self._children.memory(slot, limit)
        if weight is not None and weight > limit:
            run.memory_bytes = weight
            self._kill(slot, run, now)

    def _kill(self, slot: int, run: RunInFlight, now: int, *, whatever_runs: bool = False) -> None:
        """Kill ``run``'s process, once; ``whatever_runs`` there, or only while it is this run."""
        if run.killed_ns:
            return
        run.killed_ns = now
        run.terminated_ns = run.terminated_ns or now
        if whatever_runs:
            self._children.kill(slot)
        else:
            self._children.kill(slot, run.run_id, run.lease_epoch)

    def stop_all(self, *, kill: bool) -> None:
        """Interrupt everything that runs, or kill it with all that waits behind it."""
        now = boottime_ns()
        for run in self._in_flight.all():
            if run.slot is None:
                continue
            if kill:
                self._kill(run.slot, run, now, whatever_runs=True)
            else:
                self.terminate(run.slot, run, now)
