"""The supervisor's handle on the template and on one child per slot. Nothing here waits, but for `stop()` and
a template's death.

It starts and ends processes and passes assignments and answers on; what an answer means for a run is decided
elsewhere.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Mapping, Sequence
from typing import Any

from wakeboard.core.outcome import OUTPUT_BYTES
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.output_file import read_output, trim
from wakeboard.core.process.shared_slot import ANY_RUN, CurrentRun, create_shared_slots
from wakeboard.runtime.processes.control import Control
from wakeboard.runtime.processes.events import AppFailed, Event, Ready, TemplateDied, Warned, describe_status
from wakeboard.runtime.processes.memory import Shortage, family_bytes
from wakeboard.runtime.processes.slot import Slot
from wakeboard.runtime.processes.zygote import Zygote

_TRIM_SECONDS = 0.1
_STOP_SECONDS = 1.5


class Children:
    """The template and its children, `slots` at most. Every method belongs to the one thread that runs the
    loop."""

    def __init__(
        self,
        slots: int,
        *,
        app: str | None,
        environment: Mapping[str, str] | None = None,
        recycle_runs: int = 10_000,
        recycle_mb: int = 512,
        exit_seconds: float = 2.0,
        firstborn: Zygote | None = None,
    ) -> None:
        """`app`: the handlers' module; `environment`: variables added to this process's own for the template
        and its children; a child is replaced after `recycle_runs` runs or above `recycle_mb` MB of resident
        memory; `exit_seconds`: how long a child that ends in order may take for what its handlers registered
        for that; `firstborn`: what becomes the first template."""
        self._pages = create_shared_slots(slots)
        self._selector: Any = selectors.DefaultSelector()
        self._control = Control(
            self._selector,
            self._pages,
            {
                "app": app,
                "recycle_runs": recycle_runs,
                "recycle_mb": recycle_mb,
                "exit_seconds": exit_seconds,
            },
            environment=dict(environment or {}),
            firstborn=firstborn,
        )
        self._shortage = Shortage()
        self._events: list[Event] = []
        self._slots = [
            Slot(
                number,
                self._pages,
                selector=self._selector,
                control=self._control,
                shortage=self._shortage,
                events=self._events,
            )
            for number in range(slots)
        ]
        self._types: list[dict[str, Any]] = []
        self._failed = False
        self._trimmed_at = 0.0

    def start(self) -> None:
        """Start the template; returns at once, `Ready` or `AppFailed` follows from `collect`. RuntimeError
        when one lives."""
        self._control.start()
        self._types, self._failed = [], False

    def fileno(self) -> int:
        """A descriptor that is readable whenever `collect` has something to do; it stays the same over
        restarts."""
        fd: int = self._selector.fileno()
        return fd

    def register(self, selector: selectors.BaseSelector, data: object = None) -> None:
        """Let the caller's selector wake up when `collect` has something to do."""
        selector.register(self.fileno(), selectors.EVENT_READ, data)

    def send(self, slot: int, assignments: Sequence[Assignment]) -> None:
        """Hand `assignments` to the slot's child, which runs them in order after what it holds; forks it when
        there is none.

        With no assignments: fork ahead of need. Without a template they come back in a `Died`, unstarted.
        """
        self._slots[slot].send(assignments)

    def take_back(self, slot: int) -> list[Assignment]:
        """Take back what the slot's child was sent and did not begin, behind a run that goes on.

        Returns what came back: it will not begin. That takes a second call, a moment after the first; what
        the child leaves out when the run has ended by then comes as `Finished`, unbegun.
        """
        return self._slots[slot].take_back()

    def collect(self) -> list[Event]:
        """Everything that has arrived, in order. Never waits."""
        for key, mask in self._selector.select(0):
            if key.data is None:
                for message in self._control.hear(mask):
                    self._take(message)
            elif key.data.pidfd == key.fileobj:
                key.data.child_ended()
            elif key.data.work is key.fileobj:
                if mask & selectors.EVENT_WRITE:
                    key.data.push()
                if mask & selectors.EVENT_READ:
                    key.data.drain()
        if time.monotonic() - self._trimmed_at > _TRIM_SECONDS:
            self.trim_output()
            self._shortage.look()
            self._look_after_orders()
        events = self._events.copy()
        self._events.clear()
        return events

    def outstanding(self, slot: int) -> list[Assignment]:
        """What was sent to the slot and not reported yet, in order."""
        return list(self._slots[slot].outstanding)

    def current(self, slot: int) -> CurrentRun | None:
        """What the slot's child runs at this moment, from shared memory."""
        return self._slots[slot].page.current_run()

    def request_cancel(self, slot: int, run_id: int, lease_epoch: int) -> None:
        """From now on this run's `Context.cancelled` is true and its `check()` raises; not begun yet, it ends
        at once."""
        self._slots[slot].page.request_cancel(run_id, lease_epoch)

    def terminate(self, slot: int) -> None:
        """SIGTERM for what the slot runs now: its handler is interrupted, answers, and its child is replaced.

        A signal that arrives after that run's end is ignored. With nothing running the child ends when it is
        idle.
        """
        held = self._slots[slot]
        started = held.page.current_run()
        if started is None:
            held.page.set_stop_target(ANY_RUN)
        else:
            held.page.set_stop_target(started.run_id, started.lease_epoch)
        held.terminate()

    def kill(self, slot: int, run_id: int | None = None, lease_epoch: int = 0) -> None:
        """SIGKILL for the slot's child and everything below it.

        With a run: only if the child, stopped for that look, still runs it; one that began in between is
        spared. Without a run whatever runs there dies, and its `Died` says `by_order`.
        """
        held = self._slots[slot]
        if run_id is None:
            held.is_condemned = True
            held.kill()
        else:
            held.kill_run(run_id, lease_epoch)

    def memory(self, slot: int, limit: int) -> int | None:
        """Bytes that the slot's run and everything it started hold beyond what its child held before.

        None when nothing runs or that is not known yet. Exact only beyond `limit` bytes: below it, what
        several processes share may count more than once.
        """
        held = self._slots[slot]
        before = held.page.memory_before()
        if held.pid is None or held.page.current_run() is None or not before:
            return None
        return max(0, family_bytes(held.pid, before + limit) - before)

    def progress(self, slot: int) -> tuple[int, int] | None:
        """(done, total) of what the slot runs now; None when nothing runs or it reported none."""
        page = self._slots[slot].page
        done, total = page.progress()
        return (done, total) if page.current_run() and (done or total) else None

    def pid(self, slot: int) -> int | None:
        """The process id of the slot's child, None when there is none or its fork is not confirmed yet."""
        return self._slots[slot].pid

    def output_tail(self, slot: int, limit: int = OUTPUT_BYTES) -> str:
        """What the slot's run has written so far, safe to show: both ends where it is over `limit` bytes."""
        return read_output(self._slots[slot].output, limit)

    def trim_output(self) -> None:
        """Give back the memory of long output; `collect` calls it ten times a second, so a print loop cannot
        eat memory."""
        self._trimmed_at = time.monotonic()
        for held in self._slots:
            trim(held.output)

    def let_go(self) -> None:
        """Let each child end in order that has nothing to do. Those that have will, after a later call."""
        for held in self._slots:
            held.let_go()

    def end_in_order(self, seconds: float) -> None:
        """Let the children without work end in order, and wait for that, at most `seconds`."""
        end = time.monotonic() + seconds
        self.let_go()
        heard: list[Event] = []
        while any(held.alive and not held.outstanding for held in self._slots):
            if (left := end - time.monotonic()) <= 0:
                break
            self._selector.select(left)
            heard += self.collect()
        self._events[:0] = heard

    def stop(self) -> None:
        """Kill everything, reap the template, close every descriptor; at most about two seconds. Answers not
        collected are lost."""
        if self._selector.get_map() is None:
            return
        self._control.end(_STOP_SECONDS)
        for held in self._slots:
            held.close()
        self._slots.clear()
        self._selector.close()
        os.close(self._pages)

    def _take(self, message: dict[str, Any]) -> None:
        match message["told"]:
            case "types":
                self._types += message["types"]
            case "ready":
                self._events.append(Ready(self._types))
            case "failed":
                self._failed = True
                self._events.append(AppFailed(message["message"]))
            case "warned":
                self._events.append(Warned(message["message"]))
            case "forked":
                held = self._slots[message["slot"]]
                held.adopt(message["generation"], message["pid"], message["pidfd"])
            case "died":
                held = self._slots[message["slot"]]
                status = message["status"]
                self._events.append(held.bury(status, message["text"] or describe_status(status)))
            case "ended":
                self._template_died(message["how"])

    def _look_after_orders(self) -> None:
        """Do what the template was told and has not done, and end it when it does not answer."""
        for held in self._slots:
            held.look()
        if not self._control.condemn_if_silent():
            return
        self._events.append(
            Warned(
                "The process that forks the children does not answer and is taken for dead: it and its "
                "children are killed."
            )
        )
        self._control.kill()
        for held in self._slots:
            held.kill_without_template()

    def _template_died(self, how: str) -> None:
        if not self._failed:
            self._events.append(TemplateDied(f"The process that forks the children was {how}."))
        for held in self._slots:
            if held.outstanding or held.alive:
                busy = bool(held.outstanding)
                died = held.bury(None, f"ended with its template, which was {how}")
                self._events += [died] if busy else []
