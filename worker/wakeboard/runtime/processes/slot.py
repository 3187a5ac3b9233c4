"""One slot of the supervisor: its child, the assignments that are not answered, what a dead child leaves.

Reads and writes the child's socket and never waits for it. The fork server forks the child and reports its
end. Signals go straight to the child where its pidfd is known, so they need no fork server that answers.
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
from typing import Literal

from wakeboard.core.outcome import OUTPUT_BYTES
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.output_file import clear_output, create_output, read_output
from wakeboard.core.process.process_tree import kill_tree, send_signal
from wakeboard.core.process.shared_slot import ANY_RUN, NO_RUN, CurrentRun, SharedSlot
from wakeboard.runtime.deadlines import RUN_KILL_SECONDS
from wakeboard.runtime.processes.child_exit import clean_exit_warning, crash_answer, is_clean_exit
from wakeboard.runtime.processes.control import ForkServerControl
from wakeboard.runtime.processes.memory import OomKills
from wakeboard.runtime.processes.protocol import (
    ANSWER_BYTES,
    AttemptEnd,
    ChildExit,
    Event,
    Frames,
    Notice,
    Order,
    SuccessBatch,
    assignments_frame,
    read_answer,
    read_plain_returns,
)

_RECEIVE_BYTES = 256 * 1024


class ChildHandle:
    """What the supervisor knows of one child, from the order to fork it to the report of its end."""

    def __init__(self, work: socket.socket) -> None:
        """`work`: the supervisor's end of the socket to the child."""
        self.work: socket.socket | None = work
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.frames = Frames(ANSWER_BYTES)
        self.send_buffer = bytearray()
        # How many assignments it was sent.
        self.sent_count = 0
        # The run that was current when assignments were revoked, and how many had been sent then.
        self.revocation: tuple[CurrentRun, int] | None = None
        # The run (id, lease epoch) that the fork server has to kill, and since when.
        self.run_kill: tuple[tuple[int, int], float] | None = None
        self.kill_reason: str | None = None
        self.has_answered = self.is_closing = self.is_killed = False
        # Whether the supervisor killed it whatever run was current.
        self.is_unconditional_kill = False


class Slot:
    """One slot, with a child or without."""

    def __init__(
        self,
        number: int,
        slots_fd: int,
        *,
        selector: selectors.BaseSelector,
        control: ForkServerControl,
        oom_kills: OomKills,
        events: list[Event],
    ) -> None:
        """`slots_fd`: descriptor of all slots' shared memory; `selector`: where the child's descriptors are
        registered, with the slot as data; `events`: the list to which the slot appends."""
        self._selector, self._control = selector, control
        self._oom_kills, self._events = oom_kills, events
        self.number = number
        self.shared = SharedSlot(slots_fd, number)
        self.output = create_output(number)
        self.outstanding: deque[Assignment] = deque()
        self.child: ChildHandle | None = None

    # ---- assignments --------------------------------------------------------------------------------

    def send(self, assignments: Sequence[Assignment]) -> None:
        """Hand assignments to the child; fork one when there is none. See `Children.send`."""
        self.outstanding.extend(assignments)
        if not self._control.is_open:
            if assignments:
                self._events.append(self.clear(None, "not started: the fork server is not running"))
            return
        if self.child is None:
            try:
                self.child = self._fork()
            except OSError as error:
                self._events.append(self.clear(None, f"not started: {error}"))
        if assignments and self.child is not None and self.child.work is not None:
            self.child.sent_count += len(assignments)
            self.child.send_buffer += assignments_frame(assignments)
            self._push(self.child)

    def _fork(self) -> ChildHandle:
        output = os.dup(self.output)
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            os.close(output)
            raise
        ours.setblocking(False)
        self.shared.set_stop_target(NO_RUN)
        self.shared.set_revoked_count(0)
        self._selector.register(ours, selectors.EVENT_READ, self)
        self._control.order(Order("fork", self.number), (theirs.detach(), output))
        return ChildHandle(ours)

    def set_process(self, pid: int, pidfd: int | None) -> None:
        """Store which process the child is."""
        if self.child is None:
            return
        self.child.pid, self.child.pidfd = pid, pidfd
        if pidfd is not None:
            self._selector.register(pidfd, selectors.EVENT_READ, self)

    def take_back(self) -> list[Assignment]:
        """Revoke what waits behind the current run; return what came back. To be called again.

        The child reads the count of revoked assignments before it begins a run. So when the same run goes on
        a moment after the count was written, nothing behind it can begin. When another run goes on, or none
        has begun, the child itself answers for what it left out. Answers that the child had not sent when the
        run began are read as well.
        """
        child, current = self.child, self.shared.current_run()
        if child is None:
            return []
        revocation, child.revocation = child.revocation, None
        if current is None:
            self.shared.set_revoked_count(child.sent_count)
            return []
        if revocation is None or revocation[0] != current or revocation[1] < child.sent_count:
            child.revocation = current, child.sent_count
            self.shared.set_revoked_count(child.sent_count)
            return []
        journal = self.shared.journal()
        if journal != self.shared.journal() or self.shared.current_run() != current:
            # It is being written: the run is over.
            return []
        if not child.frames.is_at_boundary or (journal and not self.read_answers(journal)):
            return []
        if not self._is_head(current.run_id, current.lease_epoch):
            return []
        head, *waiting = self.outstanding
        self.outstanding = deque([head])
        return waiting

    def _is_head(self, run_id: int, lease_epoch: int) -> bool:
        """Return whether this run is the first that is outstanding."""
        outstanding = self.outstanding
        return bool(outstanding) and outstanding[0][0] == run_id and outstanding[0][1] == lease_epoch

    # ---- the child's descriptors --------------------------------------------------------------------

    def handle_io(self, file: object, mask: int) -> None:
        """Read and write what the selector found: `file`, one of the child's descriptors, and its `mask`."""
        child = self.child
        if child is None:
            return
        if child.pidfd is not None and file == child.pidfd:
            # The child has ended: the fork server is to report it.
            self._selector.unregister(child.pidfd)
            self._control.ping()
        elif file is child.work:
            if mask & selectors.EVENT_WRITE:
                self._push(child)
            if mask & selectors.EVENT_READ:
                self._drain(child)

    def _push(self, child: ChildHandle) -> None:
        """Send what the child's socket takes."""
        if child.work is None:
            return
        try:
            while child.send_buffer:
                del child.send_buffer[: child.work.send(child.send_buffer)]
        except BlockingIOError:
            pass
        except OSError:
            child.send_buffer.clear()  # the report of its end brings back what it did not start
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.send_buffer else 0)
        with contextlib.suppress(KeyError):
            if self._selector.get_key(child.work).events != events:
                self._selector.modify(child.work, events, self)

    def _drain(self, child: ChildHandle) -> None:
        """Read all that the child has sent."""
        while child.work is not None:
            try:
                data = child.work.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data or not self.read_answers(data):
                self._close_work(child)
                if child.pidfd is None:
                    self._control.ping()
            elif len(data) < _RECEIVE_BYTES:
                return

    def read_answers(self, data: bytes) -> bool:
        """Read the child's answers; when `data` is anything else, kill the child and return False.

        An answer that is repeated, from the journal, is no longer outstanding and is passed over.
        """
        child = self.child
        if child is None:
            return True
        if child.frames.is_at_boundary and (returns := read_plain_returns(data)) is not None:
            self._add_successes(child, returns)
            return True
        try:
            for body in child.frames.feed(data):
                run_id, lease_epoch, started_ns, finished_ns, result = read_answer(body)
                if self._is_head(run_id, lease_epoch):
                    child.has_answered = True
                    assignment = self.outstanding.popleft()
                    self._events.append(AttemptEnd(self.number, assignment, result, started_ns, finished_ns))
        except ValueError as error:
            self._events.append(Notice(f"The child of slot {self.number} is killed: {error}"))
            self.kill(f"killed because it sent what is no answer: {error}")
            return False
        return True

    def _add_successes(self, child: ChildHandle, returns: Iterable[tuple[int, int, int, int]]) -> None:
        outstanding = self.outstanding
        attempts: list[tuple[Assignment, int, int]] = []
        for run_id, lease_epoch, started_ns, finished_ns in returns:
            if outstanding and outstanding[0][0] == run_id and outstanding[0][1] == lease_epoch:
                attempts.append((outstanding.popleft(), started_ns, finished_ns))
        if attempts:
            child.has_answered = True
            self._events.append(SuccessBatch(self.number, attempts))

    # ---- stopping -----------------------------------------------------------------------------------

    def _order(self, action: Literal["terminate", "kill"], run: tuple[int, int] | None = None) -> None:
        if self.child is not None and self._control.is_open:
            self._control.order(Order(action, self.number, run))

    def terminate(self) -> None:
        """Send SIGTERM for the current run, or for whatever runs when none does. See `Children.terminate`."""
        current = self.shared.current_run()
        if current is None:
            self.shared.set_stop_target(ANY_RUN)
        else:
            self.shared.set_stop_target(current.run_id, current.lease_epoch)
        if self.child is None or self.child.pidfd is None:
            self._order("terminate")
        else:
            send_signal(self.child.pidfd, signal.SIGTERM)
            self._control.ping()

    def kill(self, reason: str | None = None) -> None:
        """Kill the child with every process below it, once; the fork server kills what escapes that.

        `reason`: what the child did wrong. None: the supervisor kills it whatever runs there.
        """
        child = self.child
        if child is None:
            return
        child.kill_reason = reason or child.kill_reason
        child.is_unconditional_kill |= reason is None
        if child.is_killed:
            return
        child.is_killed = True
        if child.pidfd is None or child.pid is None:
            self._order("kill")
        else:
            kill_tree(child.pid, child.pidfd)
            self._control.ping()

    def kill_without_server(self) -> None:
        """Kill the child, and what is below it where its pidfd is known. Its fork server is being killed."""
        child = self.child
        if child is None or child.pid is None:
            return
        if child.pidfd is not None:
            kill_tree(child.pid, child.pidfd)
        else:
            with contextlib.suppress(OSError):
                os.kill(child.pid, signal.SIGKILL)

    def kill_run(self, run_id: int, lease_epoch: int) -> None:
        """Have the fork server kill the child if it still executes this run."""
        if self.child is not None:
            self.child.run_kill = (run_id, lease_epoch), monotonic()
        self._order("kill", (run_id, lease_epoch))

    def kill_overdue_run(self) -> None:
        """Kill the child if the run that the fork server had to kill a second ago goes on."""
        child = self.child
        if child is None or child.run_kill is None:
            return
        run, ordered_at = child.run_kill
        current = self.shared.current_run()
        if current is None or (current.run_id, current.lease_epoch) != run:
            child.run_kill = None
        elif monotonic() - ordered_at >= RUN_KILL_SECONDS:
            # A run that begins at this moment dies with it, and is released at no cost.
            child.run_kill = None
            self.kill()

    def end_if_idle(self) -> None:
        """Have a child without assignments end in order, by closing the socket towards it."""
        child = self.child
        if child is None or child.work is None or self.outstanding or child.is_closing:
            return
        child.is_closing = True
        with contextlib.suppress(OSError):
            child.work.shutdown(socket.SHUT_WR)

    # ---- the end of the child -----------------------------------------------------------------------

    def clear(self, status: int | None, text: str) -> ChildExit:
        """Read what a dead child left in its socket, journal and shared memory, and free the slot.

        `status`: its wait status, None where nobody could read it; `text`: how it ended, in words.
        """
        child = self.child
        if child is not None:
            self._drain(child)
            self._close_work(child)
            child.frames = Frames(ANSWER_BYTES)
            self.read_answers(self.shared.journal())
        output = read_output(self.output, OUTPUT_BYTES)
        current, running, started_ns = self.shared.current_run(), None, 0
        if current is not None and self._is_head(current.run_id, current.lease_epoch):
            running, started_ns = self.outstanding.popleft(), current.started_ns
        unstarted = list(self.outstanding)
        self.outstanding.clear()
        if child is not None:
            self._close_pidfd(child)
        self.child = None
        self.shared.end_run()
        self.shared.clear_journal()
        clear_output(self.output)
        answer = crash_answer(
            status,
            text,
            output,
            is_out_of_memory=self._oom_kills.has_recent(),
            reason=None if child is None else child.kill_reason,
        )
        is_clean = running is None and is_clean_exit(status)
        if is_clean and (warning := clean_exit_warning(status, output)) is not None:
            self._events.append(Notice(f"A process of slot {self.number} for handlers {warning}"))
        return ChildExit(
            self.number,
            text,
            running=running,
            answer=answer,
            unstarted=unstarted,
            started_ns=started_ns,
            is_unconditional_kill=(
                child is not None and child.is_unconditional_kill and status == signal.SIGKILL
            ),
            is_clean=is_clean,
            has_begun=running is not None or (child is not None and child.has_answered),
        )

    def close(self) -> None:
        """Close every descriptor and the shared memory."""
        if self.child is not None:
            self._close_work(self.child)
            self._close_pidfd(self.child)
        self.shared.close()
        os.close(self.output)

    def _close_work(self, child: ChildHandle) -> None:
        if child.work is not None:
            self._selector.unregister(child.work)
            child.work.close()
            child.work = None

    def _close_pidfd(self, child: ChildHandle) -> None:
        if child.pidfd is not None:
            with contextlib.suppress(KeyError):  # unregistered when the child ended
                self._selector.unregister(child.pidfd)
            os.close(child.pidfd)
            child.pidfd = None
