"""One slot's process: takes assignments from its socket, runs them one after another, answers. The only room
that runs user code.

It writes nothing but its slot's page, its output and its socket, and may die at any instruction without
losing an answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

from wakeboard.core import parent_run
from wakeboard.core.errors.exceptions import parts_of
from wakeboard.core.outcome import OUTPUT_BYTES, PLAIN, AttemptResult, Cancelled, DeadlineExceeded
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.output_file import clear_output, read_output
from wakeboard.core.process.shared_slot import SharedSlot, boottime_ns
from wakeboard.core.text.sanitize import clean_text
from wakeboard.handlers.context import Context
from wakeboard.handlers.event_loop import EventLoop
from wakeboard.handlers.invoke import invoke
from wakeboard.handlers.registry import JOB_TYPES, JobType
from wakeboard.runtime.processes.beginning import strike_off
from wakeboard.runtime.processes.child_reset import ChildReset
from wakeboard.runtime.processes.fork_safety import ForkGuard, exit_forked_process
from wakeboard.runtime.processes.memory import bursts_refused, held_bytes
from wakeboard.runtime.processes.protocol import Frames, Reported, answer_frame, read_assignments

_DECODER = json.JSONDecoder()
_RECEIVE_BYTES = 256 * 1024
# So long an answer may wait for those of the runs that follow: to send one wakes the supervisor, which costs
# as much as ten answers.
_FLUSH_NS = 10_000_000


class MemoryRefused(MemoryError):
    """The handler's own MemoryError, which is its cause, under the code of the limit that it met."""

    error_code = "memory_limit"

    def __init__(self, megabytes: int) -> None:
        super().__init__(f"asked for far more memory than its type may hold (memory_mb={megabytes})")


class _Leave(BaseException):
    """SIGTERM came while no run was held."""


class _Window:
    """Open while the handler's own code runs: a SIGTERM meant for it is raised into it, and only then."""

    __slots__ = ("_child",)

    def __init__(self, child: Child) -> None:
        self._child = child

    def __enter__(self) -> None:
        self._child.armed = True
        if self._child.leaving:
            self._child.armed = False
            raise self._child.reason()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._child.armed = False
        if self._child.fork_guard.is_forked:
            exit_forked_process(error)


class Child:
    """The loop of one slot's process. `armed`: a SIGTERM may be raised; `leaving`: this child should end."""

    def __init__(
        self, slot: int, page: SharedSlot, work: socket.socket, recycle_runs: int, recycle_mb: int
    ) -> None:
        """`work` is this child's end of the stream to the supervisor."""
        self._slot, self._page, self._work = slot, page, work
        self._pid, self._runs_left = os.getpid(), recycle_runs
        self._current: tuple[int, int] | None = None
        self.armed = self._idle = self.leaving = False
        self._unsent_since = 0
        self._has_run = False
        # How many assignments came so far.
        self._received = 0
        # Each run of these has a process of its own.
        self._fresh_types = {job_type.name for job_type in JOB_TYPES.values() if job_type.fresh}
        # The answers are read when this process has ended.
        self._tells_by_its_end = False
        self._expected_ns: dict[str, int] = {}
        self._window = _Window(self)
        self.loop = EventLoop()
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.fork_guard = ForkGuard(self._on_term, work)
        self._reset = ChildReset(work.fileno(), recycle_mb)

    def serve(self) -> None:
        """Work until the supervisor's end closes or this child should be replaced."""
        frames = Frames()
        with contextlib.suppress(_Leave, ConnectionError):
            while not self.leaving:
                data = self._receive()
                if not data:
                    break
                for body in frames.feed(data):
                    for assignment in read_assignments(body):
                        if self.leaving:
                            break
                        self._received += 1
                        if self._received <= self._page.revoked():
                            self._leave_out(assignment)
                        else:
                            self._run(assignment)
                self._flush()
        with contextlib.suppress(_Leave, OSError):
            self._flush()

    def _receive(self) -> bytes:
        self._idle = True
        try:
            return b"" if self.leaving else self._work.recv(_RECEIVE_BYTES)
        finally:
            self._idle = False

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        if not self._page.is_stop_target(self._current):
            return
        self.leaving = True
        if self.armed:
            self.armed = False
            reason = self.reason()
            if not self.loop.stop(reason):
                raise reason
        if self._idle:
            self._idle = False
            raise _Leave

    def reason(self) -> BaseException:
        """What to raise into the handler that runs: its deadline has passed, or somebody wants it gone."""
        if boottime_ns() >= self._page.deadline_ns():
            return DeadlineExceeded("The run passed its deadline and was stopped.")
        return Cancelled("The run was stopped from outside.")

    def _leave_out(self, assignment: Assignment) -> None:
        """Answer for what was taken back: nobody may be waiting for the answer any more."""
        now_ns = boottime_ns()
        self._report(Reported(*assignment[:2], now_ns, now_ns, PLAIN["unbegun"]))

    def _run(self, assignment: Assignment) -> None:
        if self._has_run and assignment.job_type in self._fresh_types:
            # It comes back unstarted, and another process has it first.
            self.leaving = True
            return
        self._has_run = True
        started_ns = boottime_ns()
        expected_ns = self._expected_ns.get(assignment.job_type, _FLUSH_NS)
        if self._unsent_since and started_ns + expected_ns - self._unsent_since >= _FLUSH_NS:
            self._flush()
            if self.leaving:
                return
            started_ns = boottime_ns()
        if assignment.is_listed:
            # It belongs to the run's time: types whose runs take long with it are not claimed ahead.
            if (why := strike_off(assignment)) is not None:
                now_ns = boottime_ns()
                self._report(Reported(*assignment[:2], now_ns, now_ns, why))
                return
            if self.leaving:
                return
        run_id, lease_epoch = self._current = assignment[:2]
        deadline_ns = started_ns + int(assignment.timeout_seconds * 1e9)
        self._page.start_run(run_id, lease_epoch, started_ns, deadline_ns)
        answer = self._execute(assignment, started_ns)
        finished_ns = boottime_ns()
        if os.getpid() != self._pid:
            # A process that a library forked, past Python, came out of its handler.
            os._exit(0)
        answer = self._clean_up(assignment, answer, finished_ns - started_ns)
        self._report(Reported(run_id, lease_epoch, started_ns, finished_ns, answer))
        if self._reset.has_left_threads and answer.kind not in ("returned", "committed"):
            # Whoever tries the run again must not meet them at work.
            self._tells_by_its_end = True
        self._page.end_run()
        self._current = None

    def _execute(self, assignment: Assignment, started_ns: int) -> AttemptResult:
        job_type = JOB_TYPES.get(assignment.job_type)
        if job_type is None:
            return AttemptResult(
                "raised", "unknown_type", f"This worker has no handler called {assignment.job_type!r}."
            )
        try:
            payload = _decoded(assignment.payload)
        except (ValueError, RecursionError) as error:
            return AttemptResult(
                "raised", "payload_unreadable", clean_text(f"The payload cannot be read: {error}", 500)
            )
        context = Context.for_assignment(assignment, payload, self._page, started_ns)
        if context.cancelled:
            return PLAIN["unbegun"]
        answer = self._reset.new_context().run(self._call, job_type, context)
        if context.committed and answer is PLAIN["returned"]:
            return PLAIN["committed"]
        if context.committed:
            return AttemptResult(
                "committed",
                answer.error_code,
                answer.message,
                traceback=answer.traceback,
                result=answer.result,
            )
        return answer

    def _call(self, job_type: JobType, context: Context) -> AttemptResult:
        """Call the handler among context variables of its own."""
        window: contextlib.AbstractContextManager[Any] = self._window
        if job_type.memory_mb is not None:
            self._page.set_memory_before(held_bytes())
            window = self._limited(job_type.memory_mb)
        with parent_run.inside(context.run_id):
            return invoke(job_type, context, window=window, await_it=self.loop.run)

    @contextlib.contextmanager
    def _limited(self, megabytes: int) -> Iterator[None]:
        """The window, in which a burst of memory is refused, and every kind of MemoryError says so."""
        try:
            with bursts_refused(megabytes), self._window:
                yield
        except BaseException as error:
            if any(isinstance(part, MemoryError) for part in parts_of(error)):
                raise MemoryRefused(megabytes) from error
            raise

    def _clean_up(self, assignment: Assignment, answer: AttemptResult, run_ns: int) -> AttemptResult:
        is_whole = self._reset.are_descriptors_intact(run_ns)
        # Nobody writes any more when the output is read.
        reason = self._reset.reset(run_ns, assignment.job_type)
        if not is_whole:
            self.leaving = True
            answer = _closed_descriptors(answer)
        elif not self._reset.is_output_empty:
            if self._reset.output_bytes:
                answer = replace(answer, output_tail=read_output(1, OUTPUT_BYTES))
            clear_output(1)
        self._runs_left -= 1
        if reason is not None or self._runs_left <= 0 or assignment.job_type in self._fresh_types:
            self.leaving = True
        previous = self._expected_ns.get(assignment.job_type, 0)
        self._expected_ns[assignment.job_type] = max(run_ns, previous - previous // 8)
        return answer

    def _report(self, reported: Reported) -> None:
        frame = answer_frame(reported)
        if not self._page.append_answer(frame):
            self._flush()
            self._page.append_answer(frame)
        if not self._unsent_since:
            self._unsent_since = reported.finished_ns

    def _flush(self) -> None:
        """Send what the journal holds; it is cleared after the send, so a death in between loses nothing.

        What the answered runs left running has ended by then.
        """
        if self._unsent_since and not self._tells_by_its_end:
            if self._reset.kill_processes() is not None:
                self.leaving = True
            self._work.sendall(self._page.journal())
            self._page.clear_journal()
            self._unsent_since = 0


def _decoded(text: str) -> Any:
    """The value of a JSON text without white space around it, as PostgreSQL writes it; else ValueError."""
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError(f"something follows it at character {end}")
    return value


def _closed_descriptors(answer: AttemptResult) -> AttemptResult:
    if answer.kind == "committed":
        return answer
    message = (
        "The handler closed or replaced file descriptors of the worker (standard output, standard error or "
        "the supervisor's socket), so its answer cannot be trusted."
    )
    return AttemptResult("crashed", "descriptors_closed", message, note=answer.message)
