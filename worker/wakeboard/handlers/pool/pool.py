"""`Pool`: submit, stop, wait, look, and what follows from the end of an attempt.

What a job is, when it is tried again and how it is called is decided where the database worker has it from,
too. Nothing here holds the lock while it logs or hands a job off.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import count
from queue import SimpleQueue
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self
from weakref import WeakSet

from wakeboard.config import log
from wakeboard.core.outcome import AttemptResult, result_of_exception
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.core.run_spec import Encoder, EnqueueError, NewRun, payload_limit
from wakeboard.handlers.pool.attempt import Attempt
from wakeboard.handlers.pool.future import State, Ticket
from wakeboard.handlers.pool.metrics import PoolMetrics, Report, Running
from wakeboard.handlers.pool.state import PoolState
from wakeboard.handlers.pool.threads import Threads
from wakeboard.handlers.registry import JobType, type_of

Full = Literal["block", "error", "drop"]
Handoff = Callable[..., int]
_JOIN_SECONDS = 1.0
# Python waits no longer than about three hundred years.
LONGEST_SECONDS = 2**31
_pools: WeakSet[Pool] = WeakSet()


class PoolFull(Exception):
    """As many jobs are unfinished as the pool takes, and there was no room in time."""


class PoolStopped(Exception):
    """The pool takes no jobs any more, or none in this process."""


class Pool:
    """A bounded pool of threads that runs `@job` handlers in this process. Its jobs are lost with it."""

    def __init__(
        self,
        concurrency: int = 4,
        *,
        capacity: int = 1000,
        full: Full = "block",
        handoff: Handoff | None = None,
        longest_delay_seconds: float = 60.0,
        shutdown_seconds: float = 25.0,
        grace_seconds: float = 5.0,
        kept_failures: int = 100,
        most_abandoned: int | None = None,
        name: str = "pool",
        log_every_move: bool = True,
    ) -> None:
        """`concurrency` jobs run at once and `capacity` more wait; when so many are unfinished, `submit()`
        blocks, raises PoolFull ("error") or drops the new job ("drop").

        `handoff(job_type, payload, key=…, delay=…, max_attempts=…)` takes what should not wait in memory, as
        `functools.partial(enqueue, None)` does: what is to wait longer than `longest_delay_seconds`, what
        would be dropped. A handler is waited for `grace_seconds` past its deadline or a cancel, then given
        up; `most_abandoned` (as many as `concurrency`) such threads are replaced. `shutdown_seconds` is the
        deadline of `wait()`, `kept_failures` how many final failures `failures()` remembers. Threads start
        with the first job. Without `log_every_move` only what goes wrong is logged. Raises ValueError, in a
        sentence.
        """
        _check_counts(1, concurrency=concurrency, capacity=capacity)
        _check_counts(0, kept_failures=kept_failures)
        if most_abandoned is not None:
            _check_counts(0, most_abandoned=most_abandoned)
        _check_seconds(shutdown_seconds=shutdown_seconds, grace_seconds=grace_seconds)
        # However long: no delay is too long then.
        if longest_delay_seconds != math.inf:
            _check_seconds(longest_delay_seconds=longest_delay_seconds)
        if handoff is not None and not callable(handoff):
            raise ValueError(
                f"Pool: handoff={handoff!r} cannot be called; give functools.partial(enqueue, None), or a "
                "function of your own."
            )
        if full not in ("block", "error", "drop"):
            raise ValueError(f"full={full!r} is not known; a full pool can 'block', 'error' or 'drop'.")
        self.name = name
        self._concurrency, self._capacity, self._full = concurrency, capacity, full
        self._handoff, self._longest_delay_seconds = handoff, longest_delay_seconds
        self._shutdown_seconds, self._grace_seconds = shutdown_seconds, grace_seconds
        self._log_every_move = log_every_move
        self._state = PoolState(
            concurrency=concurrency,
            capacity=capacity,
            grace_seconds=grace_seconds,
            kept_failures=kept_failures,
        )
        self._threads = Threads(
            self._state,
            name,
            concurrency,
            concurrency if most_abandoned is None else most_abandoned,
            run=self._run,
            give_up=self._give_up,
        )
        self._ids = count(1)
        self._process_id: int | None = None
        self._ended_before_stop: dict[State, int] = {}
        _pools.add(self)

    def submit(
        self,
        handler: str | JobType | Callable[..., Any],
        payload: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        delay: float | timedelta | None = None,
        timeout: float | None = None,
        encoder: Encoder | None = None,
    ) -> Ticket:
        """Hand in a job; returns at once unless the pool is full and blocks, then after `timeout` seconds.

        `handler` is a type's name, the decorated function or a JobType that nobody registered; payload, key,
        delay (seconds) and encoder are as for `enqueue`: JSON, copied now. While a job with the same key is
        unfinished, its ticket is the answer.
        Raises PoolFull, PoolStopped (also while it waits for room), LookupError for an unknown handler, and
        EnqueueError for a payload, key or delay that cannot be. A handler that submits to its own full pool
        never waits: it would wait for itself.
        """
        job_type = type_of(handler)
        _, text, _, seconds, *_ = NewRun(job_type.name, payload, delay=delay, key=key).columns(
            payload_limit(), encoder
        )
        self._check_process()
        ticket = Ticket(next(self._ids), job_type, text, key, self._cancel)
        if self._state.is_open and self._is_too_long(seconds):
            self._hand_off(ticket, seconds)
            return ticket
        ticket.due_ns += int(seconds * 1e9)
        self._threads.start_missing()
        may_wait = self._full == "block" and not self._threads.has_caller()
        found = self._state.admit(ticket, may_wait=may_wait, timeout=timeout)
        if found == "stopped":
            raise PoolStopped(f"The pool {self.name!r} has stopped and takes no jobs any more.")
        if found == "full":
            if self._full != "drop":
                raise PoolFull(
                    f"The pool {self.name!r} is full: {self._capacity} jobs wait and {self._concurrency} "
                    "run. Submit later, or make it larger."
                )
            self._hand_off_or_drop(ticket, 0.0, "pool_full", "the pool was full")
            return ticket
        if found is not ticket and found.job_type != ticket.job_type:
            raise EnqueueError(
                f"The key '{key}' belongs to job {found.id} of type '{found.job_type}', "
                f"not '{ticket.job_type}'."
            )
        with suppress(RuntimeError):
            self._threads.start_missing()
        return found

    def stop(self, *, drain: bool = True) -> None:
        """Take no more jobs, wake who waits to submit with PoolStopped, and return without waiting.

        `drain`: what waits is still run; else it is dropped, or handed off. A second call may still drop.
        """
        if self._process_id not in (None, os.getpid()):
            return
        if not self._ended_before_stop:
            self._ended_before_stop = dict(self._state.tally.ended)
        for ticket in self._state.close(dropping=not drain):
            self._put_back(ticket)

    def wait(self, deadline_seconds: float | None = None) -> Report:
        """Wait for the end, `deadline_seconds` at most (None: `shutdown_seconds`), and say how it was.

        Then what still waits is dropped or handed off, and what still runs is asked to stop and given
        `grace_seconds` to do so. What cannot come up before the deadline (a later retry) is not waited for.
        Raises RuntimeError before `stop()`.
        """
        self._check_process()
        if self._state.is_open:
            raise RuntimeError("wait() comes after stop(): a pool that takes jobs has no end to wait for.")
        seconds = self._shutdown_seconds if deadline_seconds is None else deadline_seconds
        for ticket in self._state.drain(monotonic() + seconds):
            self._put_back(ticket)
        for attempt in self._state.leave(monotonic() + self._grace_seconds):
            self._end_without(attempt)
        self._threads.join(_JOIN_SECONDS)
        log.flush()
        return self._report()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Stop and wait; drain, unless the block failed."""
        self.stop(drain=kind is None)
        self.wait()

    def metrics(self) -> PoolMetrics:
        """Return the pool's numbers at this moment."""
        state, tally, ended = self._state, self._state.tally, self._state.tally.ended
        with state.lock:
            return PoolMetrics(
                accepting=state.is_open,
                concurrency=self._concurrency,
                capacity=self._capacity,
                queue_length=state.waiting.ready + state.waiting.later,
                retrying=state.waiting.later,
                in_flight=len(state.running),
                saturation=len(state.running) / self._concurrency,
                threads_alive=self._threads.alive,
                blocked_submitters=state.blocked,
                abandoned=len(state.given_up),
                longest_running_seconds=max((each.seconds for each in self._running()), default=0.0),
                submitted_total=tally.submitted,
                started_total=tally.started,
                succeeded_total=ended["succeeded"],
                failed_total=tally.failed,
                retried_total=tally.retried,
                dead_total=ended["dead"],
                cancelled_total=ended["cancelled"],
                dropped_total=ended["dropped"],
                handed_off_total=ended["handed_off"],
                refused_total=tally.refused,
                blocked_total=tally.blocked,
                abandoned_total=tally.abandoned,
                late_total=tally.late,
                latency_average_seconds=tally.latency.average_seconds,
                latency_maximum_seconds=tally.latency.maximum_seconds,
                wait_average_seconds=tally.wait.average_seconds,
                wait_maximum_seconds=tally.wait.maximum_seconds,
                run_average_seconds=tally.run.average_seconds,
                run_maximum_seconds=tally.run.maximum_seconds,
            )

    def running(self) -> list[Running]:
        """Return what runs, the longest first, handlers that were given up among them."""
        with self._state.lock:
            return sorted(self._running(), key=lambda each: -each.seconds)

    def failures(self) -> list[Ticket]:
        """Return the latest jobs that gave up, oldest first, each with its last error and its payload."""
        with self._state.lock:
            return list(self._state.failures)

    @property
    def unfinished(self) -> int:
        """How many jobs have been let in and have not ended."""
        return self._state.unfinished

    def _running(self) -> list[Running]:
        """Every handler under way. The caller holds the lock."""
        return [
            Running(each.ticket.id, each.ticket.job_type, each.number, each.seconds, is_given_up)
            for is_given_up, attempts in ((False, self._state.running), (True, self._state.given_up))
            for each in attempts.values()
        ]

    def _report(self) -> Report:
        with self._state.lock:
            ended, before = self._state.tally.ended, self._ended_before_stop
            of_their_own: tuple[State, ...] = ("succeeded", "dead", "cancelled")
            return Report(
                finished=sum(ended[state] - before[state] for state in of_their_own),
                dropped=tuple(self._state.dropped),
                handed_off=ended["handed_off"] - before["handed_off"],
                still_running=tuple(each for each in self._running() if each.given_up),
            )

    def _check_process(self) -> None:
        """Threads and held locks do not come along into a forked process."""
        if self._process_id is None:
            self._process_id = os.getpid()
        if self._process_id != os.getpid():
            raise PoolStopped(
                f"The pool {self.name!r} has its threads in process {self._process_id}, and this is another, "
                "forked from it. Make a pool after the fork (under gunicorn: in post_worker_init)."
            )

    # -- what the threads call, and what follows from it ---------------------------------------------------

    def _run(self, attempt: Attempt) -> None:
        """Run one attempt to its end, and do what follows; an error of ours beside it is its end as well."""
        try:
            self._log("claim", attempt.ticket)
            answer = attempt.run()
        except BaseException as failure:
            answer = result_of_exception(failure)
            raise
        finally:
            self._finished(attempt, answer)

    def _finished(self, attempt: Attempt, answer: AttemptResult) -> None:
        ticket = attempt.ticket
        ending = self._state.settle(attempt, answer)
        if ending is None:
            self._warn("A late answer was refused: the job had been given up.", attempt, outcome=answer.kind)
        elif ending.state == "dropped":
            self._put_back(ticket)
        elif ending.delay_seconds is None:
            event = "succeed" if ending.state == "succeeded" else ending.state
            self._log(event, ticket, attempt.seconds)
        else:
            self._log("fail", ticket, attempt.seconds, ending.delay_seconds)
            if self._is_too_long(ending.delay_seconds):
                self._hand_off(ticket, ending.delay_seconds)
            elif not self._state.retry(ticket, ending.delay_seconds):
                self._put_back(ticket, ending.delay_seconds)

    def _give_up(self) -> None:
        """End the jobs of handlers that heeded neither their deadline nor a cancel."""
        for attempt in self._state.give_up():
            self._end_without(attempt)

    def _end_without(self, attempt: Attempt) -> None:
        """End the job of a handler that still runs."""
        ticket = attempt.ticket
        state: State = "dropped"
        if attempt.is_leaving:
            code, message = "still_running", "still ran when the pool stopped"
        elif attempt.cancel_asked:
            state, code, message = "cancelled", "cancelled", "was asked to stop and still runs"
        else:
            state, code = "dead", "timed_out"
            message = f"ran longer than its timeout of {ticket.type.timeout_seconds:g} s and still runs"
            ticket.failures += 1
        ticket.error_code, ticket.last_error = code, message
        self._state.end(ticket, state)
        self._warn(f"A handler was given up: it {message}.", attempt)

    def _cancel(self, ticket: Ticket) -> bool:
        is_decided = self._state.cancel(ticket)
        if is_decided and ticket.has_ended:
            self._log("cancelled", ticket)
        return is_decided

    def _put_back(self, ticket: Ticket, delay_seconds: float | None = None) -> None:
        """End a job that this pool will not run, due in `delay_seconds` or when it was."""
        if delay_seconds is None:
            delay_seconds = max(0.0, (ticket.due_ns - boottime_ns()) / 1e9)
        self._hand_off_or_drop(ticket, delay_seconds, "pool_stopped", "the pool stopped before it ran")

    def _hand_off_or_drop(self, ticket: Ticket, delay_seconds: float, code: str, why: str) -> None:
        if self._handoff is not None:
            self._hand_off(ticket, delay_seconds)
            return
        if ticket.error_code is None:
            ticket.error_code, ticket.last_error = code, why
        self._state.end(ticket, "dropped")
        self._log("drop", ticket)

    def _is_too_long(self, delay_seconds: float) -> bool:
        """Whether a job that is to wait so long is handed off."""
        return self._handoff is not None and delay_seconds > self._longest_delay_seconds

    def _hand_off(self, ticket: Ticket, delay_seconds: float) -> None:
        """Give the job to the table and end it here. A hand-off that fails is a final failure."""
        assert self._handoff is not None
        left = max(1, ticket.type.max_attempts - ticket.failures) if ticket.failures else None
        try:
            ticket.handed_to = self._handoff(
                ticket.job_type, ticket.payload, key=ticket.key, delay=delay_seconds, max_attempts=left
            )
        except Exception as error:
            ticket.error_code = "handoff_failed"
            ticket.last_error = f"It could not be handed off: {type(error).__name__}: {error}"
            self._state.end(ticket, "dead")
            self._log("dead", ticket)
        else:
            self._state.end(ticket, "handed_off")
            self._log("hand_off", ticket, next_delay=delay_seconds)

    def _log(
        self, event: str, ticket: Ticket, took: float | None = None, next_delay: float | None = None
    ) -> None:
        """Log one move of a job; `took` and `next_delay` in seconds."""
        is_well = event in ("claim", "succeed")
        if is_well and not self._log_every_move:
            return
        log.move(
            event, run_id=ticket.id, job_type=ticket.job_type, attempt=ticket.attempts, worker_id=self.name,
            duration_seconds=took, error_code=None if is_well else ticket.error_code,
            reason=None if is_well else ticket.last_error and ticket.last_error[:200],
            next_delay_seconds=next_delay,
        )  # fmt: skip

    def _warn(self, sentence: str, attempt: Attempt, **fields: Any) -> None:
        log.warn(
            sentence, run_id=attempt.ticket.id, job_type=attempt.ticket.job_type, attempt=attempt.number,
            worker_id=self.name, duration_seconds=attempt.seconds, **fields,
        )  # fmt: skip


def run_until_signal(pool: Pool, *, drain: bool = True, deadline_seconds: float | None = None) -> Report:
    """Sleep until SIGINT or SIGTERM, then stop the pool and wait for it. For the main thread alone.

    `drain` and `deadline_seconds` as in `Pool.stop` and `Pool.wait`. A handler of a signal may run in the
    middle of anything, so it does no more than to put the number where the main thread waits for it.
    """
    came: SimpleQueue[int] = SimpleQueue()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda which, _frame: came.put(which)) for number in numbers}
    try:
        why = signal.Signals(came.get()).name
        log.note("Stopping: no more jobs.", why=why, running=pool.metrics().in_flight)
        pool.stop(drain=drain)
        return pool.wait(deadline_seconds)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_counts(least: int, **counts: object) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"Pool: {name}={value!r} is not a whole number of {least} or more.")


def _check_seconds(**durations: object) -> None:
    for name, value in durations.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < LONGEST_SECONDS:  # type: ignore[operator]
            raise ValueError(f"Pool: {name}={value!r} is not a number of seconds, 0 or more.")


# A forked process ends without these jobs: they are its parent's.
os.register_at_fork(after_in_child=_pools.clear)


@atexit.register
def _tell_what_is_lost() -> None:
    lost = sum(pool.unfinished for pool in _pools)
    if lost:
        log.warn("The process ends with unfinished jobs in a pool that nobody waited for.", count=lost)
