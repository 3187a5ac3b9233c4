"""One slot: its child, what that was sent and has not answered, and what it leaves behind when it dies.

Reads and writes the child's work socket, and never waits for it. The template forks the child and tells of
its end. Signals go to the child itself where it is known by a pidfd, so they need no template that lives.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from time import monotonic

from wakeboard.core.outcome import OUTPUT_BYTES
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.output_file import clear_output, create_output, read_output
from wakeboard.core.process.process_tree import kill_tree, send_signal
from wakeboard.core.process.shared_slot import NO_RUN, SharedSlot, CurrentRun
from wakeboard.runtime.processes.control import Control
from wakeboard.runtime.processes.ending import ended_in_order, word_of_end
from wakeboard.runtime.processes.events import Died, Event, Finished, Returned, Warned, crash_answer
from wakeboard.runtime.processes.memory import Shortage
from wakeboard.runtime.processes.protocol import (
    ANSWER_BYTES,
    Frames,
    assignments_frame,
    read_answer,
    read_returns,
)

_RECEIVE_BYTES = 256 * 1024
# So long the template may take to kill a child that runs a certain run.
UNCONFIRMED_SECONDS = 1.0


class Slot:
    """What the supervisor holds for one slot, with a child or without."""

    def __init__(
        self,
        number: int,
        pages: int,
        *,
        selector: selectors.BaseSelector,
        control: Control,
        shortage: Shortage,
        events: list[Event],
    ) -> None:
        """`pages`: descriptor of all slots' pages; `selector`: where its socket is watched, with the slot as
        data; `events`: the list to which it adds what it has to tell."""
        self._selector, self._control = selector, control
        self._shortage, self._events = shortage, events
        self.number = number
        self.page = SharedSlot(pages, number)
        self.output = create_output(number)
        self.alive = self.is_condemned = self._is_let_go = self._is_killed = self._has_answered = False
        self.pid: int | None = None
        self.pidfd: int | None = None
        self._to_kill: tuple[int, int, float] | None = None
        # How many assignments the child was sent; what was asked back when, by what ran and that number then.
        self._sent = 0
        self._asked_back: tuple[CurrentRun, int] | None = None
        self.work: socket.socket | None = None
        self.outstanding: deque[Assignment] = deque()
        self._generation = 0
        self._reason: str | None = None
        self._frames = Frames(ANSWER_BYTES)
        self._outgoing = bytearray()

    def send(self, assignments: Sequence[Assignment]) -> None:
        """Hand them to the child; fork one when there is none. See `Children.send`."""
        self.outstanding.extend(assignments)
        if not self._control.is_open:
            if assignments:
                self._events.append(self.bury(None, "not started: the template is not running"))
            return
        if not self.alive:
            try:
                self._fork()
            except OSError as error:
                self._events.append(self.bury(None, f"not started: {error}"))
        if assignments and self.work is not None:
            self._sent += len(assignments)
            self._outgoing += assignments_frame(assignments)
            self.push()

    def _fork(self) -> None:
        output = os.dup(self.output)
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            os.close(output)
            raise
        ours.setblocking(False)
        self._generation += 1
        self.alive, self.pid, self.work = True, None, ours
        self.is_condemned, self._is_let_go, self._reason = False, False, None
        self._is_killed = self._has_answered = False
        self._frames = Frames(ANSWER_BYTES)
        self._outgoing.clear()
        self.page.set_stop_target(NO_RUN)
        self._sent, self._asked_back = 0, None
        self.page.set_revoked(0)
        self._selector.register(ours, selectors.EVENT_READ, self)
        self.order("fork", [theirs.detach(), output])

    def adopt(self, generation: int, pid: int, pidfd: int | None) -> None:
        """Take note which process the child of that generation is."""
        if not self.alive or generation != self._generation:
            if pidfd is not None:
                os.close(pidfd)
            return
        self.pid, self.pidfd = pid, pidfd
        if pidfd is not None:
            self._selector.register(pidfd, selectors.EVENT_READ, self)

    def child_ended(self) -> None:
        """The kernel says that the child has ended: the template has to tell of it."""
        if self.pidfd is not None:
            self._selector.unregister(self.pidfd)
        self._control.ask()

    def terminate(self) -> None:
        """Send SIGTERM to the child."""
        if self.pidfd is None:
            self.order("terminate")
        else:
            send_signal(self.pidfd, signal.SIGTERM)
            self._control.ask()

    def kill(self) -> None:
        """Kill the child with what is below it, once; the template ends what escapes that."""
        if self._is_killed:
            return
        self._is_killed = True
        if self.pidfd is None or self.pid is None:
            self.order("kill")
        else:
            kill_tree(self.pid, self.pidfd)
            self._control.ask()

    def kill_without_template(self) -> None:
        """Kill the child, with what is below it where that can be seen, whose template is being killed."""
        if self.pid is not None and self.pidfd is not None:
            kill_tree(self.pid, self.pidfd)
        elif self.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def kill_run(self, run_id: int, lease_epoch: int) -> None:
        """Have the template kill the child if it still runs that run."""
        self._to_kill = (run_id, lease_epoch, monotonic())
        self.order("kill", run=(run_id, lease_epoch))

    def look(self) -> None:
        """Kill the child if the run that the template was to kill a second ago goes on."""
        if self._to_kill is None:
            return
        run_id, lease_epoch, asked_at = self._to_kill
        started = self.page.current_run()
        if started is None or (started.run_id, started.lease_epoch) != (run_id, lease_epoch):
            self._to_kill = None
        elif monotonic() - asked_at >= UNCONFIRMED_SECONDS:
            # A run that begins at this moment dies with it, and goes back at no cost.
            self._to_kill, self.is_condemned = None, True
            self.kill()

    def take_back(self) -> list[Assignment]:
        """Ask back what waits behind the run that goes on; return what came back. To be called again.

        The child looks at the page before it begins a run. So when the same run goes on a moment after the
        page was written, nothing behind it can begin. When it does not, or none has begun, the child answers
        itself for what it left out. Answers that the child had not sent when the run began are taken in as
        well.
        """
        started, asked, self._asked_back = self.page.current_run(), self._asked_back, None
        if started is None:
            self.page.set_revoked(self._sent)
            return []
        if asked is None or asked[0] != started or asked[1] < self._sent:
            self._asked_back = started, self._sent
            self.page.set_revoked(self._sent)
            return []
        journal = self.page.journal()
        if journal != self.page.journal() or self.page.current_run() != started:
            # It is being written: the run is over.
            return []
        if not self._frames.is_between or (journal and not self.read(journal)):
            return []
        head = self.outstanding[0] if self.outstanding else None
        if head is None or (head.run_id, head.lease_epoch) != (started.run_id, started.lease_epoch):
            return []
        behind = list(self.outstanding)[1:]
        self.outstanding = deque([head])
        return behind

    def order(self, order: str, fds: Sequence[int] = (), run: Sequence[int] | None = None) -> None:
        """Have the template do something with the child that lives now, if one does."""
        if self.alive and self._control.is_open:
            self._control.order(order, self.number, self._generation, fds, run)

    def let_go(self) -> None:
        """Have a child that has nothing to do end in order: it hears that nothing more will come."""
        if self.alive and self.work is not None and not self.outstanding and not self._is_let_go:
            self._is_let_go = True
            with contextlib.suppress(OSError):
                self.work.shutdown(socket.SHUT_WR)

    def push(self) -> None:
        """Send what the child's socket takes."""
        if self.work is None:
            return
        try:
            while self._outgoing:
                del self._outgoing[: self.work.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()  # its death is on its way; what it did not start comes back with it
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        with contextlib.suppress(KeyError):
            if self._selector.get_key(self.work).events != wanted:
                self._selector.modify(self.work, wanted, self)

    def drain(self) -> None:
        """Take in all that the child has sent."""
        while self.work is not None:
            try:
                data = self.work.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data or not self.read(data):
                self._close_work()
                if self.pidfd is None:
                    self._control.ask()
            elif len(data) < _RECEIVE_BYTES:
                return

    def read(self, data: bytes) -> bool:
        """Take answers in; False after telling of, and killing, a child whose bytes are none."""
        if self._frames.is_between and (returns := read_returns(data)) is not None:
            self._return(returns)
            return True
        try:
            for body in self._frames.feed(data):
                self._finish(body)
        except ValueError as error:
            self._events.append(Warned(f"The child of slot {self.number} is killed: {error}"))
            self._reason = f"killed because it sent what is no answer: {error}"
            self.kill()
            return False
        return True

    def _return(self, returns: Iterable[tuple[int, int, int, int]]) -> None:
        """Answers that all say the same; what is not outstanding is passed over, as in `_finish`."""
        outstanding = self.outstanding
        attempts: list[tuple[Assignment, int, int]] = []
        for run_id, lease_epoch, started_ns, finished_ns in returns:
            if outstanding and outstanding[0][0] == run_id and outstanding[0][1] == lease_epoch:
                attempts.append((outstanding.popleft(), started_ns, finished_ns))
        if attempts:
            self._has_answered = True
            self._events.append(Returned(self.number, attempts))

    def _finish(self, body: bytes) -> None:
        """An answer; one that the journal repeats is no longer outstanding, and is passed over."""
        run_id, lease_epoch, started_ns, finished_ns, answer = read_answer(body)
        head = self.outstanding[0] if self.outstanding else None
        if head and head[0] == run_id and head[1] == lease_epoch:
            self.outstanding.popleft()
            self._has_answered = True
            self._events.append(Finished(self.number, head, answer, started_ns, finished_ns))

    def bury(self, status: int | None, text: str) -> Died:
        """Take in what a dead child has left in its socket, its journal and its page, and free the slot."""
        self.drain()
        self._close_work()
        self._frames = Frames(ANSWER_BYTES)
        self.read(self.page.journal())
        tail = read_output(self.output, OUTPUT_BYTES)
        started, running = self.page.current_run(), None
        if started is not None and self.outstanding:
            head = self.outstanding[0]
            if (head.run_id, head.lease_epoch) == (started.run_id, started.lease_epoch):
                running = self.outstanding.popleft()
        unstarted = list(self.outstanding)
        self.outstanding.clear()
        self._outgoing.clear()
        self.alive, self.pid, self._to_kill = False, None, None
        self._close_pidfd()
        self.page.end_run()
        self.page.clear_journal()
        clear_output(self.output)
        began_ns = started.started_ns if started is not None and running is not None else 0
        answer = crash_answer(
            status, text, tail, out_of_memory=self._shortage.has_struck(), reason=self._reason
        )
        by_order = self.is_condemned and status == signal.SIGKILL
        in_order = running is None and ended_in_order(status)
        if in_order and (word := word_of_end(status, tail)) is not None:
            self._events.append(Warned(f"A process of slot {self.number} for handlers {word}"))
        has_begun = running is not None or self._has_answered
        return Died(self.number, text, running, answer, unstarted, began_ns, by_order, in_order, has_begun)

    def close(self) -> None:
        """Close every descriptor and the page."""
        self._close_work()
        self._close_pidfd()
        self.page.close()
        os.close(self.output)

    def _close_work(self) -> None:
        if self.work is not None:
            self._selector.unregister(self.work)
            self.work.close()
            self.work = None

    def _close_pidfd(self) -> None:
        if self.pidfd is not None:
            with contextlib.suppress(KeyError):  # its end was seen
                self._selector.unregister(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = None
