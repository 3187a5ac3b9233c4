"""The supervisor's handle on the template and on one child per slot. Nothing here waits, but for `stop()` and
a template's death.

It starts and ends processes and passes assignments and answers on; what an answer means for a run is decided
elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from worker.outcome import OUTPUT_BYTES
from worker.processes.events import (
    AppFailed,
    Died,
    Event,
    Finished,
    Ready,
    Returned,
    TemplateDied,
    Warned,
    crash_answer,
    describe_status,
)
from worker.processes.family import become_subreaper
from worker.processes.firstborn import Firstborn
from worker.processes.leftovers import end_leftovers, new_mark
from worker.processes.memory import Shortage, family_bytes
from worker.processes.output import create_output, empty, read_tail, trim
from worker.processes.slotpage import ANYTHING, NOTHING, SlotPage, Started, create_pages
from worker.processes.template import MESSAGE_BYTES, command
from worker.processes.wire import (
    ANSWER_BYTES,
    Assignment,
    Frames,
    assignments_frame,
    read_answer,
    read_returns,
)

__all__ = [
    "AppFailed",
    "Assignment",
    "Children",
    "Died",
    "Event",
    "Finished",
    "Ready",
    "Returned",
    "Started",
    "TemplateDied",
    "Warned",
]

_RECEIVE_BYTES = 256 * 1024
_TRIM_SECONDS = 0.1
_STOP_SECONDS = 1.5
_SWEEP_SECONDS = 0.5


class _Slot:
    """What the supervisor holds for one slot, with a child or without."""

    def __init__(self, number: int, pages: int) -> None:
        self.number = number
        self.page = SlotPage(pages, number)
        self.output = create_output(number)
        self.generation = 0
        self.alive = self.is_condemned = False
        self.reason: str | None = None
        self.pid: int | None = None
        self.work: socket.socket | None = None
        self.frames = Frames(ANSWER_BYTES)
        self.outgoing = bytearray()
        self.outstanding: deque[Assignment] = deque()


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
        firstborn: Firstborn | None = None,
    ) -> None:
        """`app`: the handlers' module; `environment`: variables added to this process's own for the template
        and its children; a child is replaced after `recycle_runs` runs or above `recycle_mb` MB of resident
        memory; `firstborn`: what becomes the first template."""
        self._app, self._environment = app, dict(environment or {})
        self._recycle_runs, self._recycle_mb = recycle_runs, recycle_mb
        self._pages = create_pages(slots)
        self._slots = [_Slot(number, self._pages) for number in range(slots)]
        self._selector: Any = selectors.DefaultSelector()
        self._firstborn = firstborn
        self._template: subprocess.Popen[bytes] | Firstborn | None = None
        self._control: socket.socket | None = None
        self._orders: deque[tuple[bytes, list[int]]] = deque()
        self._types: list[dict[str, Any]] = []
        self._mark = 0
        self._events: list[Event] = []
        self._failed = False
        self._trimmed_at = 0.0
        self._shortage = Shortage()

    def start(self) -> None:
        """Start the template; returns at once, `Ready` or `AppFailed` follows from `collect`. RuntimeError
        when one lives."""
        if self._template is not None:
            raise RuntimeError("The template is running already; call stop() first.")
        become_subreaper()
        self._mark = new_mark()
        given = {
            "app": self._app,
            "parent": os.getpid(),
            "mark": self._mark,
            "recycle_runs": self._recycle_runs,
            "recycle_mb": self._recycle_mb,
        }
        firstborn, self._firstborn = self._firstborn, None
        if firstborn is None:
            ours = self._start_afresh(given)
        else:
            self._template, ours = firstborn, firstborn.control
            firstborn.load(given, self._environment, self._pages)
        ours.setblocking(False)
        self._control, self._types, self._failed = ours, [], False
        self._selector.register(ours, selectors.EVENT_READ, None)

    def _start_afresh(self, given: dict[str, Any]) -> socket.socket:
        """Start a template as a program of its own; return our end of the socket between both."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            given = given | {"pages": self._pages, "control": theirs.fileno()}
            self._template = subprocess.Popen(
                command("worker.processes.template", given),
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(), self._pages),
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        return ours

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
        held = self._slots[slot]
        held.outstanding.extend(assignments)
        if self._control is None:
            if assignments:
                self._events.append(self._bury(held, None, "not started: the template is not running"))
            return
        if not held.alive:
            try:
                self._fork(held)
            except OSError as error:
                self._events.append(self._bury(held, None, f"not started: {error}"))
        if assignments and held.work is not None:
            held.outgoing += assignments_frame(assignments)
            self._push(held)

    def collect(self) -> list[Event]:
        """Everything that has arrived, in order. Never waits."""
        for key, mask in self._selector.select(0):
            if key.data is None:
                self._hear(mask)
            elif key.data.work is key.fileobj:
                if mask & selectors.EVENT_WRITE:
                    self._push(key.data)
                if mask & selectors.EVENT_READ:
                    self._drain(key.data)
        if time.monotonic() - self._trimmed_at > _TRIM_SECONDS:
            self.trim_output()
            self._shortage.look()
        events, self._events = self._events, []
        return events

    def outstanding(self, slot: int) -> list[Assignment]:
        """What was sent to the slot and not reported yet, in order."""
        return list(self._slots[slot].outstanding)

    def current(self, slot: int) -> Started | None:
        """What the slot's child runs at this moment, from shared memory."""
        return self._slots[slot].page.started()

    def ask_cancel(self, slot: int, run_id: int, lease_epoch: int) -> None:
        """From now on this run's `Context.cancelled` is true and its `check()` raises; not begun yet, it ends
        at once."""
        self._slots[slot].page.ask_cancel(run_id, lease_epoch)

    def terminate(self, slot: int) -> None:
        """SIGTERM for what the slot runs now: its handler is interrupted, answers, and its child is replaced.

        A signal that arrives after that run's end is ignored. With nothing running the child ends when it is
        idle.
        """
        held = self._slots[slot]
        started = held.page.started()
        if started is None:
            held.page.aim(ANYTHING)
        else:
            held.page.aim(started.run_id, started.lease_epoch)
        self._order(held, "terminate")

    def kill(self, slot: int, run_id: int | None = None, lease_epoch: int = 0) -> None:
        """SIGKILL for the slot's child and everything below it.

        With a run: only if the child, stopped for that look, still runs it; one that began in between is
        spared. Without a run whatever runs there dies, and its `Died` says `by_order`.
        """
        held = self._slots[slot]
        held.is_condemned = held.is_condemned or run_id is None
        self._order(held, "kill", run=None if run_id is None else [run_id, lease_epoch])

    def memory(self, slot: int, limit: int) -> int | None:
        """Bytes that the slot's run and everything it started hold beyond what its child held before.

        None when nothing runs or that is not known yet. Exact only beyond `limit` bytes: below it, what
        several processes share may count more than once.
        """
        held = self._slots[slot]
        before = held.page.held_before()
        if held.pid is None or held.page.started() is None or not before:
            return None
        return max(0, family_bytes(held.pid, before + limit) - before)

    def progress(self, slot: int) -> tuple[int, int] | None:
        """(done, total) of what the slot runs now; None when nothing runs or it reported none."""
        page = self._slots[slot].page
        done, total = page.progress()
        return (done, total) if page.started() and (done or total) else None

    def pid(self, slot: int) -> int | None:
        """The process id of the slot's child, None when there is none or its fork is not confirmed yet."""
        return self._slots[slot].pid

    def output_tail(self, slot: int, limit: int = OUTPUT_BYTES) -> str:
        """The last `limit` bytes that the slot's run has written so far, safe to show."""
        return read_tail(self._slots[slot].output, limit)

    def trim_output(self) -> None:
        """Give back the memory of long output; `collect` calls it ten times a second, so a print loop cannot
        eat memory."""
        self._trimmed_at = time.monotonic()
        for held in self._slots:
            trim(held.output)

    def stop(self) -> None:
        """Kill everything, reap the template, close every descriptor; at most about two seconds. Answers not
        collected are lost."""
        if self._selector.get_map() is None:
            return
        self._hang_up()
        self._end_template(_STOP_SECONDS)
        for held in self._slots:
            self._close_work(held)
            held.page.close()
            os.close(held.output)
        self._slots.clear()
        self._selector.close()
        os.close(self._pages)

    def _fork(self, held: _Slot) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        held.generation += 1
        held.alive, held.pid, held.work = True, None, ours
        held.is_condemned, held.reason = False, None
        held.frames = Frames(ANSWER_BYTES)
        held.outgoing.clear()
        held.page.aim(NOTHING)
        self._selector.register(ours, selectors.EVENT_READ, held)
        self._order(held, "fork", [theirs.detach(), os.dup(held.output)])

    def _order(
        self, held: _Slot, order: str, fds: Sequence[int] = (), run: Sequence[int] | None = None
    ) -> None:
        if not held.alive or self._control is None:
            return
        message = {"order": order, "slot": held.number, "generation": held.generation, "run": run}
        self._orders.append((json.dumps(message).encode(), list(fds)))
        self._send_orders()

    def _send_orders(self) -> None:
        if self._control is None:
            return
        while self._orders:
            message, fds = self._orders[0]
            try:
                socket.send_fds(self._control, [message], fds)
            except BlockingIOError:
                break
            except OSError:
                return  # the template's end is told by its closed socket
            self._orders.popleft()
            _close_all(fds)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._orders else 0)
        self._selector.modify(self._control, events, None)

    def _push(self, held: _Slot) -> None:
        if held.work is None:
            return
        try:
            while held.outgoing:
                del held.outgoing[: held.work.send(held.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            held.outgoing.clear()  # its death is on its way; what it did not start comes back with it
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if held.outgoing else 0)
        with contextlib.suppress(KeyError):
            if self._selector.get_key(held.work).events != wanted:
                self._selector.modify(held.work, wanted, held)

    def _drain(self, held: _Slot) -> None:
        while held.work is not None:
            try:
                data = held.work.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data or not self._read(held, data):
                self._close_work(held)
            elif len(data) < _RECEIVE_BYTES:
                return

    def _read(self, held: _Slot, data: bytes) -> bool:
        """Take answers in; False after telling of, and killing, a child whose bytes are none."""
        if held.frames.is_between and (returns := read_returns(data)) is not None:
            self._return(held, returns)
            return True
        try:
            for body in held.frames.feed(data):
                self._finish(held, body)
        except ValueError as error:
            self._events.append(Warned(f"The child of slot {held.number} is killed: {error}"))
            held.reason = f"killed because it sent what is no answer: {error}"
            self._order(held, "kill")
            return False
        return True

    def _return(self, held: _Slot, returns: Iterable[tuple[int, int, int, int]]) -> None:
        """Answers that all say the same; what is not outstanding is passed over, as in `_finish`."""
        outstanding = held.outstanding
        attempts: list[tuple[Assignment, int, int]] = []
        for run_id, lease_epoch, started_ns, finished_ns in returns:
            if outstanding and outstanding[0][0] == run_id and outstanding[0][1] == lease_epoch:
                attempts.append((outstanding.popleft(), started_ns, finished_ns))
        if attempts:
            self._events.append(Returned(held.number, attempts))

    def _finish(self, held: _Slot, body: bytes) -> None:
        """An answer; one that the journal repeats is no longer outstanding, and is passed over."""
        run_id, lease_epoch, started_ns, finished_ns, answer = read_answer(body)
        head = held.outstanding[0] if held.outstanding else None
        if head and head[0] == run_id and head[1] == lease_epoch:
            held.outstanding.popleft()
            self._events.append(Finished(held.number, head, answer, started_ns, finished_ns))

    def _hear(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._send_orders()
        while mask & selectors.EVENT_READ and self._control is not None:
            try:
                data = self._control.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self._take(json.loads(data))
            else:
                self._template_died()

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
                self._slots[message["slot"]].pid = message["pid"]
            case "died":
                held = self._slots[message["slot"]]
                status = message["status"]
                self._events.append(self._bury(held, status, message["text"] or describe_status(status)))

    def _bury(self, held: _Slot, status: int | None, text: str) -> Died:
        """Take in what a dead child has left in its socket, its journal and its page, and free the slot."""
        self._drain(held)
        self._close_work(held)
        held.frames = Frames(ANSWER_BYTES)
        self._read(held, held.page.journal())
        tail = self.output_tail(held.number)
        started, running = held.page.started(), None
        if started is not None and held.outstanding:
            head = held.outstanding[0]
            if (head.run_id, head.lease_epoch) == (started.run_id, started.lease_epoch):
                running = held.outstanding.popleft()
        unstarted = list(held.outstanding)
        held.outstanding.clear()
        held.outgoing.clear()
        held.alive, held.pid = False, None
        held.page.end()
        held.page.journal_clear()
        empty(held.output)
        began_ns = started.started_ns if started is not None and running is not None else 0
        answer = crash_answer(
            status, text, tail, out_of_memory=self._shortage.has_struck(), reason=held.reason
        )
        by_order = held.is_condemned and status == signal.SIGKILL
        return Died(held.number, text, running, answer, unstarted, began_ns, by_order)

    def _close_work(self, held: _Slot) -> None:
        if held.work is not None:
            self._selector.unregister(held.work)
            held.work.close()
            held.work = None

    def _hang_up(self) -> None:
        if self._control is not None:
            self._selector.unregister(self._control)
            self._control.close()
            self._control = None
        while self._orders:
            _close_all(self._orders.popleft()[1])

    def _end_template(self, seconds: float) -> str:
        """Wait for the template, kill it when it lingers, and end what it left to us; how it ended."""
        template, self._template = self._template, None
        if template is None:
            return "not running"
        try:
            code = template.wait(seconds)
        except subprocess.TimeoutExpired:
            template.kill()
            code = template.wait()
        end_leftovers(self._mark, _SWEEP_SECONDS)
        return describe_status(-code if code < 0 else code << 8)

    def _template_died(self) -> None:
        self._hang_up()
        text = self._end_template(0.05)
        if not self._failed:
            self._events.append(TemplateDied(f"The process that forks the children was {text}."))
        for held in self._slots:
            if held.outstanding or held.alive:
                busy = bool(held.outstanding)
                died = self._bury(held, None, f"ended with its template, which was {text}")
                self._events += [died] if busy else []


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
