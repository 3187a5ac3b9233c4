"""`Pool`: submits jobs, stops, waits, reports, and acts on the end of an attempt.

Handlers, payloads and retry rules are those of the database worker. Nothing here holds the lock while it logs
or hands a job off.
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
from wakeboard.handlers.pool.future import Attempt, PoolFuture, State
from wakeboard.handlers.pool.metrics import PoolMetrics, Report, Running
from wakeboard.handlers.pool.state import PoolFull, PoolState, PoolStopped
from wakeboard.handlers.pool.threads import Threads
from wakeboard.handlers.registry import Handler, JobType, type_of

Full = Literal["block", "error", "drop"]
Handoff = Callable[..., int]
_JOIN_SECONDS = 1.0
# Python waits no longer than about three hundred years.
LONGEST_SECONDS = 2**31
_pools: WeakSet[Pool] = WeakSet()


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
        would be dropped. A handler may go on for `grace_seconds` after its deadline or a cancel, then it is
        abandoned; `most_abandoned` (as many as `concurrency`) such threads are replaced. `shutdown_seconds`
        is the deadline of `wait()`, `kept_failures` how many final failures `failures()` remembers. Threads
        start with the first job. Without `log_every_move` only what goes wrong is logged. Raises ValueError,
        in a sentence.
        """
        _check_counts(1, concurrency=concurrency, capacity=capacity)
        _check_counts(0, kept_failures=kept_failures)
        if most_abandoned is not None:
            _check_counts(0, most_abandoned=most_abandoned)
        _check_seconds(shutdown_seconds=shutdown_seconds, grace_seconds=grace_seconds)
        # With math.inf no delay is too long.
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
        self._full = full
        self._handoff, self._longest_delay_seconds = handoff, longest_delay_seconds
        self._shutdown_seconds, self._grace_seconds = shutdown_seconds, grace_seconds
        self._log_every_move = log_every_move
        self._state = PoolState(
            name,
            concurrency=concurrency,
            capacity=capacity,
            grace_seconds=grace_seconds,
            kept_failures=kept_failures,
        )
        self._threads = Threads(
            self._state,
            concurrency if most_abandoned is None else most_abandoned,
            run=self._run,
            abandon_overdue=self._abandon_overdue,
        )
        self._ids = count(1)
        self._process_id: int | None = None
        self._ended_before_stop: dict[State, int] = {}
        _pools.add(self)

    def submit(
        self,
        handler: str | JobType | Handler,
        payload: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        delay: float | timedelta | None = None,
        timeout: float | None = None,
        encoder: Encoder | None = None,
    ) -> PoolFuture:
        """Submit a job; returns at once unless the pool is full and blocks, then after `timeout` seconds.

        `handler` is a type's name, the decorated function or a JobType that nobody registered; payload, key,
        delay (seconds) and encoder are as for `enqueue`: JSON, copied now. While a job with the same key is
        unfinished, the answer is its future.
        Raises PoolFull, PoolStopped (also while it waits for room), LookupError for an unknown handler, and
        EnqueueError for a payload, key or delay that cannot be. A handler that submits to its own full pool
        never waits: it would wait for itself.
        """
        job_type = type_of(handler)
        _, text, _, seconds, *_ = NewRun(job_type.name, payload, delay=delay, key=key).columns(
            payload_limit(), encoder
        )
        self._check_process()
        future = PoolFuture(next(self._ids), job_type, text, key, self._cancel)
        if self._state.is_open and self._is_too_long(seconds):
            self._hand_off(future, seconds)
            return future
        future.due_ns += int(seconds * 1e9)
        self._threads.start_missing()
        may_wait = self._full == "block" and not self._threads.is_one_of_them()
        try:
            admitted = self._state.admit(future, may_wait=may_wait, timeout=timeout)
        except PoolFull:
            if self._full != "drop":
                raise
            self._hand_off_or_drop(future, 0.0, "pool_full", "the pool was full")
            return future
        if admitted.job_type != future.job_type:
            raise EnqueueError(
                f"The key '{key}' belongs to job {admitted.id} of type '{admitted.job_type}', "
                f"not '{future.job_type}'."
            )
        with suppress(RuntimeError):
            self._threads.start_missing()
        return admitted

    def stop(self, *, drain: bool = True) -> None:
        """Take no more jobs, raise PoolStopped in blocked submitters, and return without waiting.

        `drain`: what waits is still run; else it is dropped, or handed off. A second call may still drop.
        """
        if self._process_id not in (None, os.getpid()):
            return
        if not self._ended_before_stop:
            self._ended_before_stop = dict(self._state.counters.ended)
        for future in self._state.close(dropping=not drain):
            self._give_back(future)

    def wait(self, deadline_seconds: float | None = None) -> Report:
        """Wait for the end, at most `deadline_seconds` (None: `shutdown_seconds`), and report it.

        Then waiting jobs are dropped or handed off, and running ones have `grace_seconds` to stop. It does
        not wait for a job that cannot start before the deadline, such as a later retry. Raises RuntimeError
        before `stop()`.
        """
        self._check_process()
        if self._state.is_open:
            raise RuntimeError("wait() comes after stop(): a pool that takes jobs has no end to wait for.")
        seconds = self._shutdown_seconds if deadline_seconds is None else deadline_seconds
        for future in self._state.drain(monotonic() + seconds):
            self._give_back(future)
        for attempt in self._state.wait_for_interrupted(monotonic() + self._grace_seconds):
            self._end_abandoned(attempt)
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
        state, counters, ended = self._state, self._state.counters, self._state.counters.ended
        with state.lock:
            return PoolMetrics(
                accepting=state.is_open,
                concurrency=state.concurrency,
                capacity=state.capacity,
                queue_length=state.waiting.ready + state.waiting.later,
                retrying=state.waiting.later,
                in_flight=len(state.running),
                saturation=len(state.running) / state.concurrency,
                threads_alive=self._threads.alive,
                blocked_submitters=state.blocked,
                abandoned=len(state.abandoned),
                longest_running_seconds=max((each.seconds for each in self._running()), default=0.0),
                submitted_total=counters.submitted,
                started_total=counters.started,
                succeeded_total=ended["succeeded"],
                failed_total=counters.failed,
                retried_total=counters.retried,
                dead_total=ended["dead"],
                cancelled_total=ended["cancelled"],
                dropped_total=ended["dropped"],
                handed_off_total=ended["handed_off"],
                refused_total=counters.refused,
                blocked_total=counters.blocked,
                abandoned_total=counters.abandoned,
                late_total=counters.late,
                latency_average_seconds=counters.latency.average_seconds,
                latency_maximum_seconds=counters.latency.maximum_seconds,
                wait_average_seconds=counters.wait.average_seconds,
                wait_maximum_seconds=counters.wait.maximum_seconds,
                run_average_seconds=counters.run.average_seconds,
                run_maximum_seconds=counters.run.maximum_seconds,
            )

    def running(self) -> list[Running]:
        """Return the running handlers, the longest first, abandoned ones included."""
        with self._state.lock:
            return sorted(self._running(), key=lambda each: -each.seconds)

    def failures(self) -> list[PoolFuture]:
        """Return the latest jobs that gave up, oldest first, each with its last error and its payload."""
        with self._state.lock:
            return list(self._state.failures)

    @property
    def unfinished(self) -> int:
        """How many jobs were admitted and have not ended."""
        return self._state.unfinished

    def _running(self) -> list[Running]:
        """Return every running handler. The caller holds the lock."""
        return [
            Running(each.future.id, each.future.job_type, each.number, each.seconds, is_abandoned)
            for is_abandoned, attempts in ((False, self._state.running), (True, self._state.abandoned))
            for each in attempts.values()
        ]

    def _report(self) -> Report:
        with self._state.lock:
            ended, before = self._state.counters.ended, self._ended_before_stop
            finished: tuple[State, ...] = ("succeeded", "dead", "cancelled")
            return Report(
                finished=sum(ended[state] - before[state] for state in finished),
                dropped=tuple(self._state.dropped),
                handed_off=ended["handed_off"] - before["handed_off"],
                still_running=tuple(each for each in self._running() if each.given_up),
            )

    def _check_process(self) -> None:
        """Raise PoolStopped in a forked process: threads and locks do not survive a fork."""
        if self._process_id is None:
            self._process_id = os.getpid()
        if self._process_id != os.getpid():
            raise PoolStopped(
                f"The pool {self.name!r} has its threads in process {self._process_id}, and this is another, "
                "forked from it. Make a pool after the fork (under gunicorn: in post_worker_init)."
            )

    # -- called by the threads -----------------------------------------------------------------------------

    def _run(self, attempt: Attempt) -> None:
        """Run one attempt and finish it; an error of our own ends it as well."""
        try:
            self._log("claim", attempt.future)
            answer = attempt.run()
        except BaseException as failure:
            answer = result_of_exception(failure)
            raise
        finally:
            self._finish(attempt, answer)

    def _finish(self, attempt: Attempt, answer: AttemptResult) -> None:
        future = attempt.future
        ending = self._state.finish(attempt, answer)
        if ending is None:
            self._warn("A late answer was refused: the job had been given up.", attempt, outcome=answer.kind)
        elif ending.state == "dropped":
            self._give_back(future)
        elif ending.delay_seconds is None:
            event = "succeed" if ending.state == "succeeded" else ending.state
            self._log(event, future, attempt.seconds)
        else:
            self._log("fail", future, attempt.seconds, ending.delay_seconds)
            if self._is_too_long(ending.delay_seconds):
                self._hand_off(future, ending.delay_seconds)
            elif not self._state.retry(future, ending.delay_seconds):
                self._give_back(future, ending.delay_seconds)

    def _abandon_overdue(self) -> None:
        """End the jobs of handlers that ignored their deadline or a cancel."""
        for attempt in self._state.abandon_overdue():
            self._end_abandoned(attempt)

    def _end_abandoned(self, attempt: Attempt) -> None:
        """End the job of a handler that still runs."""
        future = attempt.future
        state: State = "dropped"
        if attempt.is_stopped:
            code, message = "still_running", "still ran when the pool stopped"
        elif attempt.is_cancelled:
            state, code, message = "cancelled", "cancelled", "was asked to stop and still runs"
        else:
            state, code = "dead", "timed_out"
            message = f"ran longer than its timeout of {future.type.timeout_seconds:g} s and still runs"
            future.failures += 1
        future.error_code, future.last_error = code, message
        self._state.end(future, state)
        self._warn(f"A handler was given up: it {message}.", attempt)

    def _cancel(self, future: PoolFuture) -> bool:
        is_effective = self._state.cancel(future)
        if is_effective and future.has_ended:
            self._log("cancelled", future)
        return is_effective

    def _give_back(self, future: PoolFuture, delay_seconds: float | None = None) -> None:
        """End a job that this pool will not run; it is due in `delay_seconds` (None: at its own time)."""
        if delay_seconds is None:
            delay_seconds = max(0.0, (future.due_ns - boottime_ns()) / 1e9)
        self._hand_off_or_drop(future, delay_seconds, "pool_stopped", "the pool stopped before it ran")

    def _hand_off_or_drop(self, future: PoolFuture, delay_seconds: float, code: str, reason: str) -> None:
        if self._handoff is not None:
            self._hand_off(future, delay_seconds)
            return
        if future.error_code is None:
            future.error_code, future.last_error = code, reason
        self._state.end(future, "dropped")
        self._log("drop", future)

    def _is_too_long(self, delay_seconds: float) -> bool:
        """Return whether a job with this delay is handed off."""
        return self._handoff is not None and delay_seconds > self._longest_delay_seconds

    def _hand_off(self, future: PoolFuture, delay_seconds: float) -> None:
        """Give the job to `handoff` and end it here. A hand-off that fails is a final failure."""
        assert self._handoff is not None
        attempts_left = max(1, future.type.max_attempts - future.failures) if future.failures else None
        try:
            future.handed_to = self._handoff(
                future.job_type,
                future.payload,
                key=future.key,
                delay=delay_seconds,
                max_attempts=attempts_left,
            )
        except Exception as error:
            future.error_code = "handoff_failed"
            future.last_error = f"It could not be handed off: {type(error).__name__}: {error}"
            self._state.end(future, "dead")
            self._log("dead", future)
        else:
            self._state.end(future, "handed_off")
            self._log("hand_off", future, next_delay=delay_seconds)

    def _log(
        self, event: str, future: PoolFuture, took: float | None = None, next_delay: float | None = None
    ) -> None:
        """Log one move of a job; `took` and `next_delay` in seconds."""
        is_normal = event in ("claim", "succeed")
        if is_normal and not self._log_every_move:
            return
        log.move(
            event, run_id=future.id, job_type=future.job_type, attempt=future.attempts, worker_id=self.name,
            duration_seconds=took, error_code=None if is_normal else future.error_code,
            reason=None if is_normal else future.last_error and future.last_error[:200],
            next_delay_seconds=next_delay,
        )  # fmt: skip

    def _warn(self, sentence: str, attempt: Attempt, **fields: Any) -> None:
        log.warn(
            sentence, run_id=attempt.future.id, job_type=attempt.future.job_type, attempt=attempt.number,
            worker_id=self.name, duration_seconds=attempt.seconds, **fields,
        )  # fmt: skip


def run_until_signal(pool: Pool, *, drain: bool = True, deadline_seconds: float | None = None) -> Report:
    """Sleep until SIGINT or SIGTERM, then stop the pool and wait for it. For the main thread alone.

    `drain` and `deadline_seconds` as in `Pool.stop` and `Pool.wait`. A signal handler may run in the middle
    of anything, so it only puts the signal into the queue that the main thread waits for.
    """
    signals: SimpleQueue[int] = SimpleQueue()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda which, _frame: signals.put(which)) for number in numbers}
    try:
        why = signal.Signals(signals.get()).name
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


# A forked process does not lose these jobs: they are its parent's.
os.register_at_fork(after_in_child=_pools.clear)


@atexit.register
def _warn_of_lost_jobs() -> None:
    lost = sum(pool.unfinished for pool in _pools)
    if lost:
        log.warn("The process ends with unfinished jobs in a pool that nobody waited for.", count=lost)
