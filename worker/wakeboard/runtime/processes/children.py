"""The children of one worker: the fork server and one child per slot, as the supervisor's loop sees them.

Starts and ends processes and passes assignments and answers on; what an answer means for a run is decided in
`wakeboard.runtime.loop`. Nothing here waits, but for `kill_all()`, `end_idle_and_wait()` and the end of a
fork server.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Mapping, Sequence
from typing import Any

from wakeboard.config.working_directory import ROOT, current_folder
from wakeboard.core.outcome import OUTPUT_BYTES
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.output_file import read_output, trim
from wakeboard.core.process.shared_slot import CurrentRun, create_shared_slots
from wakeboard.runtime.deadlines import SERVER_END_SECONDS
from wakeboard.runtime.processes.child_exit import describe_status
from wakeboard.runtime.processes.control import ForkServerControl
from wakeboard.runtime.processes.fork_server import ForkServerOptions, Zygote
from wakeboard.runtime.processes.memory import OomKills, tree_bytes
from wakeboard.runtime.processes.protocol import (
    AppFailure,
    AppTypes,
    ChildStart,
    ChildStatus,
    Event,
    ForkServerExit,
    Notice,
    ServerMessage,
)
from wakeboard.runtime.processes.slot import Slot

_CHECK_SECONDS = 0.1


class Children:
    """The fork server and its children, one a slot. Every method belongs to the thread that runs the loop."""

    def __init__(
        self,
        slots: int,
        *,
        app: str | None,
        environment: Mapping[str, str] | None = None,
        recycle_runs: int = 10_000,
        recycle_mb: int = 512,
        child_exit_seconds: float = 2.0,
        zygote: Zygote | None = None,
    ) -> None:
        """Create the slots; `start` starts the fork server.

        `app`: the handlers' module. `environment`: variables added to this process's own for the fork server
        and its children. A child is replaced after `recycle_runs` runs or above `recycle_mb` MB of resident
        memory. `child_exit_seconds`: how long a clean end of a child may take. `zygote`: what becomes the
        first fork server.
        """
        self._slots_fd = create_shared_slots(slots)
        self._selector = selectors.DefaultSelector()
        options = ForkServerOptions(
            app=app,
            folder=current_folder() or ROOT,
            recycle_runs=recycle_runs,
            recycle_mb=recycle_mb,
            child_exit_seconds=child_exit_seconds,
            slots_fd=self._slots_fd,
            parent=os.getpid(),
        )
        self._control = ForkServerControl(
            self._selector, options, environment=dict(environment or {}), zygote=zygote
        )
        self._oom_kills = OomKills()
        self._events: list[Event] = []
        self._slots = [
            Slot(
                number,
                self._slots_fd,
                selector=self._selector,
                control=self._control,
                oom_kills=self._oom_kills,
                events=self._events,
            )
            for number in range(slots)
        ]
        self._policies: list[dict[str, Any]] = []
        self._has_app_failed = False
        self._checked_at = 0.0

    def start(self) -> None:
        """Start the fork server; returns at once, `AppTypes` or `AppFailure` follows from `collect`.

        Raises RuntimeError when one runs.
        """
        self._control.start()
        self._policies, self._has_app_failed = [], False

    def register(self, selector: selectors.BaseSelector, data: object = None) -> None:
        """Have the caller's selector wake up when `collect` has something to do, also after restarts."""
        selector.register(self._selector.fileno(), selectors.EVENT_READ, data)

    def send(self, slot: int, assignments: Sequence[Assignment]) -> None:
        """Hand `assignments` to the slot's child, which runs them in order after what it holds; fork it when
        there is none.

        With no assignments: fork ahead of need. Without a fork server they come back in a `ChildExit`,
        unstarted.
        """
        self._slots[slot].send(assignments)

    def take_back(self, slot: int) -> list[Assignment]:
        """Take back what the slot's child was sent and did not begin, behind the current run.

        Returns what came back: it will not begin. That takes a second call, a moment after the first. When
        the current run has ended by then, the child leaves out what was revoked and it comes as `AttemptEnd`,
        unbegun.
        """
        return self._slots[slot].take_back()

    def collect(self) -> list[Event]:
        """Return everything that has arrived, in order. Never waits."""
        for key, mask in self._selector.select(0):
            if key.data is None:
                for message in self._control.messages(mask):
                    self._handle(message)
            else:
                key.data.handle_io(key.fileobj, mask)
        if time.monotonic() - self._checked_at > _CHECK_SECONDS:
            self._checked_at = time.monotonic()
            self.trim_output()
            self._oom_kills.sample()
            for each in self._slots:
                each.kill_overdue_run()
            self._kill_silent_fork_server()
        events = self._events.copy()
        self._events.clear()
        return events

    def outstanding(self, slot: int) -> list[Assignment]:
        """Return what was sent to the slot and is not answered yet, in order."""
        return list(self._slots[slot].outstanding)

    def current(self, slot: int) -> CurrentRun | None:
        """Return what the slot's child executes at this moment, from shared memory."""
        return self._slots[slot].shared.current_run()

    def request_cancel(self, slot: int, run_id: int, lease_epoch: int) -> None:
        """Make this run's `Context.cancelled` true and its `check()` raise; an unbegun run ends at once."""
        self._slots[slot].shared.request_cancel(run_id, lease_epoch)

    def terminate(self, slot: int) -> None:
        """Send SIGTERM for what the slot executes now: it interrupts the handler, and the child is replaced.

        A signal that arrives after that run's end is ignored. With nothing running the child ends when it is
        idle.
        """
        self._slots[slot].terminate()

    def kill(self, slot: int) -> None:
        """Kill the slot's child and every process below it, whatever runs there.

        The `ChildExit` says `is_unconditional_kill`.
        """
        self._slots[slot].kill()

    def kill_run(self, slot: int, run_id: int, lease_epoch: int) -> None:
        """Do the same only if the child, which the fork server stops to check this, executes this run."""
        self._slots[slot].kill_run(run_id, lease_epoch)

    def memory(self, slot: int, limit: int) -> int | None:
        """Return the bytes that the slot's run and every process it started hold beyond the child's own.

        None when nothing runs or the child's own are unknown yet. Exact only beyond `limit` bytes: below it,
        memory that several processes share may count more than once.
        """
        shared = self._slots[slot].shared
        pid, before = self.pid(slot), shared.memory_before()
        if pid is None or shared.current_run() is None or not before:
            return None
        return max(0, tree_bytes(pid, before + limit) - before)

    def progress(self, slot: int) -> tuple[int, int] | None:
        """Return (done, total) of the slot's current run; None when nothing runs or it reported none."""
        shared = self._slots[slot].shared
        done, total = shared.progress()
        return (done, total) if shared.current_run() and (done or total) else None

    def pid(self, slot: int) -> int | None:
        """Return the process id of the slot's child; None when there is none or its fork is not confirmed."""
        child = self._slots[slot].child
        return None if child is None else child.pid

    def output_tail(self, slot: int) -> str:
        """Return what the slot's run has written so far, safe for a screen, as `read_output` cuts it."""
        return read_output(self._slots[slot].output, OUTPUT_BYTES)

    def trim_output(self) -> None:
        """Free the memory of long output. `collect` calls it ten times a second, against endless printing."""
        for each in self._slots:
            trim(each.output)

    def end_idle(self) -> None:
        """Have each child without assignments end in order; the others will, after a later call."""
        for each in self._slots:
            each.end_if_idle()

    def end_idle_and_wait(self, seconds: float) -> None:
        """Have the children without assignments end in order, and wait for that, at most `seconds`."""
        end = time.monotonic() + seconds
        self.end_idle()
        events: list[Event] = []
        while any(each.child is not None and not each.outstanding for each in self._slots):
            if (left := end - time.monotonic()) <= 0:
                break
            self._selector.select(left)
            events += self.collect()
        self._events[:0] = events

    def kill_all(self) -> None:
        """Kill everything, reap the fork server, close every descriptor; at most about two seconds.

        Answers that were not collected are lost.
        """
        if self._selector.get_map() is None:
            return
        self._control.end_or_kill(SERVER_END_SECONDS)
        for each in self._slots:
            each.close()
        self._slots.clear()
        self._selector.close()
        os.close(self._slots_fd)

    def _handle(self, message: ServerMessage | ForkServerExit) -> None:
        match message:
            case AppTypes(policies, is_complete):
                self._policies += policies
                if is_complete:
                    self._events.append(AppTypes(self._policies))
            case Notice():
                self._events.append(message)
            case AppFailure():
                self._has_app_failed = True
                self._events.append(message)
            case ChildStart(slot, pid, pidfd):
                self._slots[slot].set_process(pid, pidfd)
            case ChildStatus(slot, status, text):
                self._events.append(self._slots[slot].clear(status, text or describe_status(status)))
            case ForkServerExit(how):
                self._clear_all(how)

    def _kill_silent_fork_server(self) -> None:
        """Kill the fork server and its children when it does not answer; `_clear_all` follows."""
        if not self._control.kill_if_silent():
            return
        self._events.append(
            Notice("The fork server does not answer and is taken for dead: it and its children are killed.")
        )
        for each in self._slots:
            each.kill_without_server()

    def _clear_all(self, how: str) -> None:
        """Free every slot: the fork server has ended, and its children with it."""
        if not self._has_app_failed:
            self._events.append(ForkServerExit(f"The fork server was {how}."))
        for each in self._slots:
            if each.outstanding or each.child is not None:
                is_busy = bool(each.outstanding)
                child_exit = each.clear(None, f"ended with the fork server, which was {how}")
                self._events += [child_exit] if is_busy else []
