"""The jobs of one pool and the one lock around them.

Every public method takes the lock unless its docstring says that the caller holds it. Calls no handler, logs
nothing, and waits for nothing but its own conditions.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from itertools import count
from threading import Condition, Lock
from time import monotonic
from typing import NamedTuple

from wakeboard.core.outcome import AttemptResult
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.core.retry import delay_seconds, is_final
from wakeboard.handlers.pool.future import Attempt, PoolFuture, State
from wakeboard.handlers.pool.metrics import Counters
from wakeboard.handlers.registry import JobType

_NEVER_NS = 2**63


class PoolFull(Exception):
    """As many jobs are unfinished as the pool takes, and there was no room in time."""


class PoolStopped(Exception):
    """The pool takes no jobs any more, or none in this process."""


class Ending(NamedTuple):
    """What becomes of a job after an attempt.

    `state`: succeeded, dead, cancelled, failed (tried again after `delay_seconds`), or dropped: cut short
    because the pool stops, which costs no failure.
    """

    state: State
    failures: int
    error_code: str | None = None
    message: str | None = None
    delay_seconds: float | None = None


def decide(future: PoolFuture, answer: AttemptResult, *, is_cancelled: bool, is_stopped: bool) -> Ending:
    """Return what to do after `answer`; `is_cancelled` by a person, `is_stopped` by the end of the pool."""
    if answer.kind == "returned":
        return Ending("succeeded", future.failures)
    if is_cancelled:
        return Ending("cancelled", future.failures, "cancelled", "cancelled on request")
    if is_stopped and answer.kind in ("cancelled", "timed_out"):
        return Ending("dropped", future.failures, "cut_short", "was cut short because the pool stopped")
    failures = future.failures + 1
    if is_final(answer, failures, future.type.max_attempts):
        return Ending("dead", failures, answer.error_code, answer.message)
    delay = delay_seconds(answer, future.type.backoff, failures)
    return Ending("failed", failures, answer.error_code, answer.message, delay)


class WaitingJobs:
    """The jobs that wait: those that are ready, in order of arrival, and those that are due later."""

    def __init__(self) -> None:
        # One queue for each type, so that a type at its limit delays no other type.
        self._ready: dict[str, deque[PoolFuture]] = {}
        self._later: list[tuple[int, int, PoolFuture]] = []
        self._running: Counter[str] = Counter()
        self._positions = count()

    @property
    def ready(self) -> int:
        """How many could start now, were there a thread and room under their type's limit."""
        return sum(map(len, self._ready.values()))

    @property
    def later(self) -> int:
        """How many are due later, retries above all."""
        return len(self._later)

    @property
    def next_due_ns(self) -> int:
        """When the next of those that are due later is due."""
        return self._later[0][0] if self._later else _NEVER_NS

    def add(self, future: PoolFuture) -> None:
        """Append a job that is ready."""
        future.position = next(self._positions)
        self._ready.setdefault(future.job_type, deque()).append(future)

    def add_later(self, future: PoolFuture) -> None:
        """Add a job that is due at its `due_ns`."""
        heapq.heappush(self._later, (future.due_ns, future.id, future))

    def move_due(self, now_ns: int) -> int:
        """Make ready what is due by now; returns how many."""
        moved = 0
        while self.next_due_ns <= now_ns:
            self.add(heapq.heappop(self._later)[2])
            moved += 1
        return moved

    def take(self) -> PoolFuture | None:
        """Take the first ready job whose type has room under its `max_running`."""
        heads = [queue[0] for queue in self._ready.values() if self._has_room(queue[0].type)]
        future = min(heads, key=lambda head: head.position, default=None)
        if future is not None:
            self._remove_ready(future)
            self._running[future.job_type] += 1
        return future

    def _has_room(self, job_type: JobType) -> bool:
        return job_type.max_running is None or self._running[job_type.name] < job_type.max_running

    def release(self, future: PoolFuture) -> None:
        """Give back the room under its type's limit: the handler has returned."""
        self._running[future.job_type] -= 1
        if not self._running[future.job_type]:
            del self._running[future.job_type]

    def remove(self, future: PoolFuture) -> bool:
        """Remove one job; False when it does not wait."""
        if future in self._ready.get(future.job_type, ()):
            self._remove_ready(future)
            return True
        others = [entry for entry in self._later if entry[2] is not future]
        was_later = len(others) < len(self._later)
        self._later = others
        heapq.heapify(self._later)
        return was_later

    def _remove_ready(self, future: PoolFuture) -> None:
        queue = self._ready[future.job_type]
        queue.remove(future)
        if not queue:
            del self._ready[future.job_type]

    def clear(self) -> list[PoolFuture]:
        """Remove all jobs; returns them in the order in which they would have started."""
        ready = [future for queue in self._ready.values() for future in queue]
        later = [future for _, _, future in sorted(self._later)]
        self._ready.clear()
        self._later.clear()
        return [*sorted(ready, key=lambda future: future.position), *later]


class PoolState:
    """The state of one pool. A job counts against the bound from its admission to its end."""

    def __init__(
        self, name: str, *, concurrency: int, capacity: int, grace_seconds: float, kept_failures: int
    ) -> None:
        """At most `capacity` jobs wait beside `concurrency` that run; so many final failures are kept."""
        self.name, self.concurrency, self.capacity = name, concurrency, capacity
        self.lock = Lock()
        self.work, self.room, self.ended, self.clock = (Condition(self.lock) for _ in range(4))
        self.waiting = WaitingJobs()
        self.running: dict[int, Attempt] = {}
        # Handlers that still run although their job has ended.
        self.abandoned: dict[int, Attempt] = {}
        self.failures: deque[PoolFuture] = deque(maxlen=kept_failures)
        self.dropped: list[PoolFuture] = []
        self.counters = Counters()
        self.is_open, self.is_dropping = True, False
        self.unfinished = self.idle = self.blocked = 0
        self._by_key: dict[str, PoolFuture] = {}
        self._grace_seconds = grace_seconds
        # When the thread of the clock wakes up next.
        self._clock_ns = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing will ever be left to do. The caller holds the lock."""
        return not self.is_open and not self.unfinished

    # -- admission ---------------------------------------------------------------------------------------

    def admit(self, future: PoolFuture, *, may_wait: bool, timeout: float | None) -> PoolFuture:
        """Admit a job; returns it, or the unfinished job that has its key.

        With `may_wait` it waits for room for `timeout` seconds, None: without end. Raises PoolFull and
        PoolStopped.
        """
        with self.lock:
            if may_wait and (timeout is None or timeout > 0) and self._must_wait(future.key):
                self._wait_for_room(future.key, timeout)
            if not self.is_open:
                raise PoolStopped(f"The pool {self.name!r} has stopped and takes no jobs any more.")
            if future.key is not None and (same_key := self._by_key.get(future.key)) is not None:
                self.room.notify()  # The room that woke this submitter is for another.
                return same_key
            if self._is_full():
                self.counters.refused += 1
                raise PoolFull(
                    f"The pool {self.name!r} is full: {self.capacity} jobs wait and {self.concurrency} run. "
                    "Submit later, or make it larger."
                )
            future.is_admitted = True
            self.unfinished += 1
            self.counters.submitted += 1
            if future.key is not None:
                self._by_key[future.key] = future
            self._enqueue(future)
            return future

    def _is_full(self) -> bool:
        return self.unfinished >= self.capacity + self.concurrency

    def _must_wait(self, key: str | None) -> bool:
        return self.is_open and self._is_full() and (key is None or key not in self._by_key)

    def _wait_for_room(self, key: str | None, timeout: float | None) -> None:
        self.counters.blocked += 1
        self.blocked += 1
        try:
            self.room.wait_for(lambda: not self._must_wait(key), timeout)
        except BaseException:
            self.room.notify()
            raise
        finally:
            self.blocked -= 1

    def _enqueue(self, future: PoolFuture) -> None:
        if future.due_ns > boottime_ns():
            self.waiting.add_later(future)
            self._wake_clock_by(future.due_ns)
        else:
            self.waiting.add(future)
            self.work.notify()

    # -- attempts ----------------------------------------------------------------------------------------

    def start_next(self, *, may_wait: bool) -> Attempt | None:
        """Start the next job and return its attempt, None when no job is ready.

        With `may_wait` it waits for a job; None then means that the pool is over.
        """
        with self.lock:
            while (future := self.waiting.take()) is None:
                if self.is_over or not may_wait:
                    return None
                self.idle += 1
                try:
                    self.work.wait()
                finally:
                    self.idle -= 1
            future.state = "running"
            future.attempts += 1
            attempt = self.running[future.id] = Attempt(future, self._grace_seconds)
            self.counters.started += 1
            self.counters.wait.add(attempt.started_ns - future.due_ns)
            self._wake_clock_by(attempt.next_ns)
            return attempt

    def finish(self, attempt: Attempt, answer: AttemptResult) -> Ending | None:
        """Record the answer of a handler; returns what becomes of its job, None when it was abandoned.

        The caller then calls `retry` for a job that is tried again, `end` for one that is dropped.
        """
        future = attempt.future
        with self.lock:
            self.waiting.release(future)
            if future.type.max_running is not None:
                self.work.notify()
            self.counters.run.add(boottime_ns() - attempt.started_ns)
            if self.running.get(future.id) is not attempt:
                self.counters.late += 1
                self.abandoned.pop(future.id, None)
                return None
            ending = decide(future, answer, is_cancelled=attempt.is_cancelled, is_stopped=attempt.is_stopped)
            del self.running[future.id]
            future.failures = ending.failures
            if ending.error_code is not None:
                future.error_code, future.last_error = ending.error_code, ending.message
            self.counters.failed += ending.state in ("failed", "dead")
            if ending.state == "failed":
                future.state = "failed"
            elif ending.state != "dropped":
                self._end(future, ending.state, answer.result)
            return ending

    def retry(self, future: PoolFuture, delay_seconds: float) -> bool:
        """Let a job wait for its next attempt; False when the pool drops waiting jobs by now."""
        with self.lock:
            if self.is_dropping:
                return False
            self.counters.retried += 1
            future.due_ns = boottime_ns() + int(delay_seconds * 1e9)
            self._enqueue(future)
            return True

    def cancel(self, future: PoolFuture) -> bool:
        """Cancel a job; returns whether it had not ended."""
        with self.lock:
            if self.waiting.remove(future):
                future.error_code, future.last_error = "cancelled", "cancelled on request"
                self._end(future, "cancelled")
                return True
            attempt = self.running.get(future.id)
            if attempt is None:
                return False
            attempt.is_cancelled = True
            self._interrupt(attempt)
            return True

    def _interrupt(self, attempt: Attempt) -> None:
        attempt.cancel()
        self._wake_clock_by(attempt.next_ns)

    def abandon_overdue(self) -> list[Attempt]:
        """Abandon each attempt that ignored its interruption for the whole grace; returns those attempts.

        Their threads go on, but their answers no longer count. The caller ends their jobs.
        """
        with self.lock:
            return self._abandon([attempt for attempt in self.running.values() if attempt.is_overdue])

    def _abandon(self, attempts: list[Attempt]) -> list[Attempt]:
        for attempt in attempts:
            del self.running[attempt.future.id]
            self.abandoned[attempt.future.id] = attempt
            self.counters.abandoned += 1
        return attempts

    # -- the end -----------------------------------------------------------------------------------------

    def end(self, future: PoolFuture, state: State) -> None:
        """End a job that neither waits nor runs, whether it was admitted or not."""
        with self.lock:
            self._end(future, state)

    def _end(self, future: PoolFuture, state: State, result: str | None = None) -> None:
        self.counters.ended[state] += 1
        if state == "dead":
            self.failures.append(future)
        if future.is_admitted:
            self.unfinished -= 1
            if state == "dropped" and future.id not in self.abandoned:
                self.dropped.append(future)
            if state in ("succeeded", "dead"):
                self.counters.latency.add(boottime_ns() - future.submitted_ns)
            if future.key is not None:
                self._by_key.pop(future.key, None)
        future.end(state, result)
        self.room.notify()
        self.ended.notify_all()
        self._wake_all_if_over()

    def _wake_all_if_over(self) -> None:
        if self.is_over:
            for condition in (self.work, self.clock, self.ended):
                condition.notify_all()

    def close(self, *, dropping: bool) -> list[PoolFuture]:
        """Admit no more jobs and wake blocked submitters; returns the jobs that are dropped."""
        with self.lock:
            self.is_open = False
            self.room.notify_all()
            dropped = self._drop_waiting() if dropping else []
            self._wake_all_if_over()
            return dropped

    def _drop_waiting(self) -> list[PoolFuture]:
        self.is_dropping = True
        return self.waiting.clear()

    def drain(self, until: float) -> list[PoolFuture]:
        """Wait until every job has ended, or no other can end before `until` (monotonic).

        Then interrupt what runs, and return what waits, which is dropped.
        """
        with self.lock:
            while (seconds := until - monotonic()) > 0 and self._can_end_within(seconds):
                self.ended.wait(seconds)
            for attempt in self.running.values():
                attempt.is_stopped = True
                self._interrupt(attempt)
            return self._drop_waiting()

    def _can_end_within(self, seconds: float) -> bool:
        is_busy = self.unfinished > self.waiting.later
        return is_busy or self.waiting.next_due_ns < boottime_ns() + int(seconds * 1e9)

    def wait_for_interrupted(self, until: float) -> list[Attempt]:
        """Wait until `until` (monotonic) for what was interrupted; abandon and return what runs on."""
        with self.lock:
            while self.unfinished and (seconds := until - monotonic()) > 0:
                self.ended.wait(seconds)
            return self._abandon(list(self.running.values()))

    # -- the clock ---------------------------------------------------------------------------------------

    def _wake_clock_by(self, at_ns: int) -> None:
        if at_ns < self._clock_ns:
            self._clock_ns = at_ns
            self.clock.notify()

    def tick(self) -> bool:
        """Make ready what is due and interrupt what has passed its deadline; False when the pool is over.

        Then it sleeps until the next such moment, or until an attempt is overdue.
        """
        with self.lock:
            for _ in range(self.waiting.move_due(boottime_ns())):
                self.work.notify()
            for attempt in self.running.values():
                if boottime_ns() >= attempt.next_ns and not attempt.is_overdue:
                    attempt.interrupt()
            self._clock_ns = min(
                self.waiting.next_due_ns, *(attempt.next_ns for attempt in self.running.values()), _NEVER_NS
            )
            if self.is_over:
                return False
            seconds = (self._clock_ns - boottime_ns()) / 1e9
            if seconds > 0:
                self.clock.wait(min(seconds, 3600.0))
            return True
