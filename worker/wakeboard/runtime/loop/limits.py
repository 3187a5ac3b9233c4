"""Watching what runs: timeouts, cancels, memory, leases that cannot be renewed, shutdown. Stops anything.

A run past its timeout gets TERM, after ``kill_seconds`` KILL. A cancelled one is told first (``check()``
raises), then TERM, then KILL. One whose lease may end unseen is killed at once: nobody may run it twice. So
is one that holds more memory than its type may: it would take its neighbours with it.
"""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from wakeboard.core.process.shared_slot import CurrentRun
from wakeboard.runtime.loop.in_flight import RunInFlight, RunsInFlight, boottime_ns

MEMORY_SECONDS = 0.5


class _Processes(Protocol):
    def current(self, slot: int) -> CurrentRun | None: ...
    def request_cancel(self, slot: int, run_id: int, lease_epoch: int) -> None: ...
    def terminate(self, slot: int) -> None: ...
    def kill(self, slot: int, run_id: int | None = None, lease_epoch: int = 0) -> None: ...
    def memory(self, slot: int, limit: int) -> int | None: ...


class Limits:
    """The stopping of runs on all slots of one worker. Durations are in seconds."""

    def __init__(
        self, children: _Processes, holdings: RunsInFlight, slots: int, *, kill_seconds: float
    ) -> None:
        self._children = children
        self._holdings = holdings
        self._slots = slots
        self._kill_ns = int(kill_seconds * 1e9)
        self._weighed_at = 0.0

    def cancel(self, run_id: int, lease_epoch: int) -> None:
        """Tell a held run that a person wants it to stop."""
        held = self._holdings.get(run_id, lease_epoch)
        if held is None or held.slot is None or held.cancel_asked_ns:
            return
        held.cancel_asked_ns = boottime_ns()
        self._children.request_cancel(held.slot, held.run_id, held.lease_epoch)

    def lost(self, run_id: int, lease_epoch: int) -> None:
        """Note that somebody else has the run now; its process is killed when it is seen running."""
        if held := self._holdings.get(run_id, lease_epoch):
            held.is_lost = True

    def step(self) -> None:
        """Look at every slot once."""
        now = boottime_ns()
        weighs = monotonic() - self._weighed_at >= MEMORY_SECONDS
        self._weighed_at = monotonic() if weighs else self._weighed_at
        for slot in range(self._slots):
            started = self._children.current(slot)
            held = started and self._holdings.get(started.run_id, started.lease_epoch)
            if started and held:
                self._look_at(slot, started, held, now)
                if weighs and held.memory_mb is not None:
                    self._weigh(slot, held, held.memory_mb, now)
        for held in self._holdings.all():
            if held.slot is not None and held.is_past_fence(now) and not held.killed_ns:
                held.is_fenced = True
                self._kill(held.slot, held, now, whatever_runs=True)

    def _look_at(self, slot: int, started: CurrentRun, held: RunInFlight, now: int) -> None:
        if held.terminated_ns:
            if now - held.terminated_ns >= self._kill_ns:
                self._kill(slot, held, now)
        elif held.is_lost:
            self._kill(slot, held, now)
        elif held.cancel_asked_ns:
            self._children.request_cancel(slot, held.run_id, held.lease_epoch)
            if now - held.cancel_asked_ns >= self._kill_ns:
                self.terminate(slot, held, now)
        elif now - started.started_ns >= held.assignment.timeout_seconds * 1e9:
            held.timed_out = True
            self.terminate(slot, held, now)

    def terminate(self, slot: int, held: RunInFlight, now: int) -> None:
        """Send TERM to what a slot runs, once."""
        if not held.terminated_ns:
            held.terminated_ns = now
            self._children.terminate(slot)

    def _weigh(self, slot: int, held: RunInFlight, megabytes: int, now: int) -> None:
        """Kill a run whose processes hold more than its type may."""
        limit = megabytes * 1024 * 1024
        weight = None if held.killed_ns else self._children.memory(slot, limit)
        if weight is not None and weight > limit:
            held.memory_bytes = weight
            self._kill(slot, held, now)

    def _kill(self, slot: int, held: RunInFlight, now: int, *, whatever_runs: bool = False) -> None:
        """Kill ``held``'s process, once; ``whatever_runs`` there, or only while it is this run."""
        if held.killed_ns:
            return
        held.killed_ns = now
        held.terminated_ns = held.terminated_ns or now
        if whatever_runs:
            self._children.kill(slot)
        else:
            self._children.kill(slot, held.run_id, held.lease_epoch)

    def stop_all(self, *, kill: bool) -> None:
        """Interrupt everything that runs, or kill it with all that waits behind it."""
        now = boottime_ns()
        for held in self._holdings.all():
            if held.slot is None:
                continue
            if kill:
                self._kill(held.slot, held, now, whatever_runs=True)
            else:
                self.terminate(held.slot, held, now)
