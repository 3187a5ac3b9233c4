"""The process of one slot: reads assignments from its socket, runs them one after another, answers.

The only process that runs user code. It writes only its slot's shared memory, its output, its socket and the
list of attempts that have not begun, and may die at any instruction without losing an answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic
from types import FrameType

from wakeboard.core.errors.exceptions import leaf_exceptions
from wakeboard.core.outcome import OUTPUT_BYTES, PLAIN, AttemptResult, Cancelled, DeadlineExceeded
from wakeboard.core.parent_run import ParentRun
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.output_file import clear_output, read_output
from wakeboard.core.process.shared_slot import SharedSlot, boottime_ns
from wakeboard.core.text.sanitize import clean_text
from wakeboard.handlers.context import Context
from wakeboard.handlers.event_loop import EventLoop
from wakeboard.handlers.invoke import invoke
from wakeboard.handlers.registry import JOB_TYPES, JobType
from wakeboard.runtime.processes.child_reset import ChildReset
from wakeboard.runtime.processes.fork_safety import ForkGuard, exit_forked_process
from wakeboard.runtime.processes.memory import bursts_refused, process_bytes
from wakeboard.runtime.processes.protocol import Answer, Frames, answer_frame, read_assignments

_DECODER = json.JSONDecoder()
_RECEIVE_BYTES = 256 * 1024
# How long an answer may wait for those of later runs: a send wakes the supervisor, which costs as much as ten
# answers.
_FLUSH_NS = 10_000_000
# How long the database may take to strike an attempt off, and how long it is left alone when it took longer.
STRIKE_OFF_SECONDS, SILENT_SECONDS = 1.0, 30.0


class MemoryRefused(MemoryError):
    """The handler's own MemoryError, which is its cause, with the error code of the limit that it met."""

    error_code = "memory_limit"

    def __init__(self, megabytes: int) -> None:
        super().__init__(f"asked for far more memory than its type may hold (memory_mb={megabytes})")


class _IdleStop(BaseException):
    """SIGTERM came while no run was held."""


class _HandlerWindow:
    """Open while the handler's own code runs: only then a SIGTERM meant for the run is raised in it."""

    __slots__ = ("_child",)

    def __init__(self, child: Child) -> None:
        self._child = child

    def __enter__(self) -> None:
        self._child.is_interruptible = True
        if self._child.is_ending:
            self._child.is_interruptible = False
            raise self._child.stop_exception()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._child.is_interruptible = False
        if self._child.fork_guard.is_forked:
            exit_forked_process(error)


class UnbegunList:
    """The child's access to the list of attempts that have not begun (`wakeboard.queue.engine.unbegun`).

    Runs with a single try are on it while they wait. Whoever takes such a run from a dead worker knows by the
    list whether the run may be tried.
    """

    def __init__(self) -> None:
        self._silent_until, self._error = 0.0, ""

    def strike_off(self, assignment: Assignment) -> AttemptResult | None:
        """Strike an attempt off the list; return None when it may begin, else the answer.

        It may not begin when it is no longer listed: another worker took the run back, or the server lost the
        list. Nor when the database does not answer; then the answer says why, and for `SILENT_SECONDS` the
        database is not asked: what waits behind goes back at once.
        """
        if monotonic() < self._silent_until:
            return AttemptResult("unbegun", message=self._error)
        # A process that never runs such a type needs no driver.
        import psycopg

        from wakeboard.database.db import DatabaseError
        from wakeboard.database.timed_connection import answer_timeout
        from wakeboard.queue.engine.unbegun import STRIKE_OFF
        from wakeboard.queue.handler_connection import own_connection

        try:
            with own_connection() as connection, answer_timeout(connection, STRIKE_OFF_SECONDS):
                cursor = psycopg.RawCursor(connection)
                cursor.execute(STRIKE_OFF.encode(), assignment[:2], prepare=True)
                return None if cursor.rowcount else PLAIN["unbegun"]
        except (DatabaseError, psycopg.Error) as error:
            self._silent_until, self._error = monotonic() + SILENT_SECONDS, clean_text(str(error), 500)
            return AttemptResult("unbegun", message=self._error)


class Child:
    """The loop of one slot's process.

    `is_interruptible`: a SIGTERM may be raised in the handler. `is_ending`: this child should end.
    """

    def __init__(self, shared: SharedSlot, work: socket.socket, recycle_runs: int, recycle_mb: int) -> None:
        """`shared`: the slot's shared memory; `work`: this child's end of the socket to the supervisor. The
        child ends after `recycle_runs` runs or above `recycle_mb` MB of resident memory."""
        self._shared, self._work = shared, work
        self._pid, self._runs_left = os.getpid(), recycle_runs
        self._current: tuple[int, int] | None = None
        self.is_interruptible = self._is_idle = self.is_ending = False
        self._unsent_since_ns = 0
        self._has_run = False
        self._received_count = 0
        # Each run of these has a process of its own.
        self._fresh_types = {job_type.name for job_type in JOB_TYPES.values() if job_type.fresh}
        # The supervisor reads the answers from the journal when this process has ended.
        self._is_answer_withheld = False
        self._expected_ns: dict[str, int] = {}
        self._window = _HandlerWindow(self)
        self._unbegun_list = UnbegunList()
        self.loop = EventLoop()
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.fork_guard = ForkGuard(self._on_term, work)
        self._reset = ChildReset(work.fileno(), recycle_mb)

    def serve(self) -> None:
        """Work until the supervisor closes its end of the socket or this child should be replaced."""
        frames = Frames()
        with contextlib.suppress(_IdleStop, ConnectionError):
            while not self.is_ending:
                data = self._receive()
                if not data:
                    break
                for body in frames.feed(data):
                    for assignment in read_assignments(body):
                        if self.is_ending:
                            break
                        self._received_count += 1
                        if self._received_count <= self._shared.revoked_count():
                            self._answer_unbegun(assignment, PLAIN["unbegun"])
                        else:
                            self._run(assignment)
                self._flush()
        with contextlib.suppress(_IdleStop, OSError):
            self._flush()

    def _receive(self) -> bytes:
        self._is_idle = True
        try:
            return b"" if self.is_ending else self._work.recv(_RECEIVE_BYTES)
        finally:
            self._is_idle = False

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        if not self._shared.is_stop_target(self._current):
            return
        self.is_ending = True
        if self.is_interruptible:
            self.is_interruptible = False
            reason = self.stop_exception()
            if not self.loop.stop(reason):
                raise reason
        if self._is_idle:
            self._is_idle = False
            raise _IdleStop

    def stop_exception(self) -> BaseException:
        """Return what to raise in the current handler: its deadline has passed, or it is stopped for another
        reason."""
        if boottime_ns() >= self._shared.deadline_ns():
            return DeadlineExceeded("The run passed its deadline and was stopped.")
        return Cancelled("The run was stopped from outside.")

    def _answer_unbegun(self, assignment: Assignment, answer: AttemptResult) -> None:
        """Answer for an attempt that does not begin. The supervisor may no longer wait for it."""
        now_ns = boottime_ns()
        self._report(Answer(*assignment[:2], now_ns, now_ns, answer))

    def _run(self, assignment: Assignment) -> None:
        if self._has_run and assignment.job_type in self._fresh_types:
            # It goes back unstarted, and the next child runs it first.
            self.is_ending = True
            return
        self._has_run = True
        started_ns = boottime_ns()
        expected_ns = self._expected_ns.get(assignment.job_type, _FLUSH_NS)
        if self._unsent_since_ns and started_ns + expected_ns - self._unsent_since_ns >= _FLUSH_NS:
            self._flush()
            if self.is_ending:
                return
            started_ns = boottime_ns()
        if assignment.is_listed:
            # This belongs to the run's time: types whose runs take long with it are not claimed ahead.
            if (refusal := self._unbegun_list.strike_off(assignment)) is not None:
                self._answer_unbegun(assignment, refusal)
                return
            if self.is_ending:
                return
        run_id, lease_epoch = self._current = assignment[:2]
        deadline_ns = started_ns + int(assignment.timeout_seconds * 1e9)
        self._shared.start_run(run_id, lease_epoch, started_ns, deadline_ns)
        answer = self._execute(assignment, started_ns)
        finished_ns = boottime_ns()
        if os.getpid() != self._pid:
            # A library forked this process without Python's knowledge, and it came out of the handler.
            os._exit(0)
        answer = self._clean_up(assignment, answer, finished_ns - started_ns)
        self._report(Answer(run_id, lease_epoch, started_ns, finished_ns, answer))
        if self._reset.has_left_threads and answer.kind not in ("returned", "committed"):
            # The threads must have ended before the run is tried again.
            self._is_answer_withheld = True
        self._shared.end_run()
        self._current = None

    def _execute(self, assignment: Assignment, started_ns: int) -> AttemptResult:
        job_type = JOB_TYPES.get(assignment.job_type)
        if job_type is None:
            return AttemptResult(
                "raised", "unknown_type", f"This worker has no handler called {assignment.job_type!r}."
            )
        try:
            payload = _decode(assignment.payload)
        except (ValueError, RecursionError) as error:
            return AttemptResult(
                "raised", "payload_unreadable", clean_text(f"The payload cannot be read: {error}", 500)
            )
        context = Context.for_assignment(assignment, payload, self._shared, started_ns)
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
        window: contextlib.AbstractContextManager[None] = self._window
        if job_type.memory_mb is not None:
            self._shared.set_memory_before(process_bytes())
            window = self._limited(job_type.memory_mb)
        with ParentRun(context.run_id):
            return invoke(job_type, context, window=window, await_it=self.loop.run)

    @contextlib.contextmanager
    def _limited(self, megabytes: int) -> Iterator[None]:
        """Open the window and refuse bursts of memory; every kind of MemoryError then names the limit."""
        try:
            with bursts_refused(megabytes), self._window:
                yield
        except BaseException as error:
            if any(isinstance(part, MemoryError) for part in leaf_exceptions(error)):
                raise MemoryRefused(megabytes) from error
            raise

    def _clean_up(self, assignment: Assignment, answer: AttemptResult, run_ns: int) -> AttemptResult:
        are_descriptors_intact = self._reset.are_descriptors_intact(run_ns)
        # Nobody writes any more when the output is read.
        replace_reason = self._reset.reset(run_ns, assignment.job_type)
        if not are_descriptors_intact:
            self.is_ending = True
            answer = _descriptors_answer(answer)
        elif not self._reset.is_output_empty:
            if self._reset.output_bytes:
                answer = replace(answer, output_tail=read_output(1, OUTPUT_BYTES))
            clear_output(1)
        self._runs_left -= 1
        if replace_reason is not None or self._runs_left <= 0 or assignment.job_type in self._fresh_types:
            self.is_ending = True
        previous_ns = self._expected_ns.get(assignment.job_type, 0)
        self._expected_ns[assignment.job_type] = max(run_ns, previous_ns - previous_ns // 8)
        return answer

    def _report(self, answer: Answer) -> None:
        frame = answer_frame(answer)
        if not self._shared.append_answer(frame):
            self._flush()
            self._shared.append_answer(frame)
        if not self._unsent_since_ns:
            self._unsent_since_ns = answer.finished_ns

    def _flush(self) -> None:
        """Send the journal; it is cleared after the send, so a death in between loses nothing.

        Processes that the answered runs left are killed first.
        """
        if self._unsent_since_ns and not self._is_answer_withheld:
            if self._reset.kill_processes() is not None:
                self.is_ending = True
            self._work.sendall(self._shared.journal())
            self._shared.clear_journal()
            self._unsent_since_ns = 0


def _decode(text: str) -> object:
    """Return the value of a JSON text without white space around it, as PostgreSQL writes it.

    Raises ValueError for anything else.
    """
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError(f"something follows it at character {end}")
    return value


def _descriptors_answer(answer: AttemptResult) -> AttemptResult:
    """Return the answer of a run that closed or replaced descriptors of its child."""
    if answer.kind == "committed":
        return answer
    message = (
        "The handler closed or replaced file descriptors of the worker (standard output, standard error or "
        "the supervisor's socket), so its answer cannot be trusted."
    )
    return AttemptResult("crashed", "descriptors_closed", message, note=answer.message)
