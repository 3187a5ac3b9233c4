"""The jobs of one pool, wherever each of them is, and the one lock around them.

Every public method takes the lock unless its docstring says that the caller holds it. Calls no handler, logs
nothing, and waits for nothing but its own conditions.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from itertools import count
from threading import Condition, Lock
from time import monotonic
from typing import Literal, NamedTuple

from wakeboard.core.outcome import AttemptResult
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.core.retry import delay_seconds, is_final
from wakeboard.handlers.pool.attempt import Attempt
from wakeboard.handlers.pool.future import State, Ticket
from wakeboard.handlers.pool.metrics import Tally
from wakeboard.handlers.registry import JobType

Refusal = Literal["full", "stopped"]
_NEVER_NS = 2**63


class Ending(NamedTuple):
    """What becomes of a job after an attempt.

    `state`: succeeded, dead, cancelled, failed (tried again after `delay_seconds`), or dropped: cut short
    because the pool leaves, which costs no failure.
    """

    state: State
    failures: int
    error_code: str | None = None
    message: str | None = None
    delay_seconds: float | None = None


def decide(ticket: Ticket, answer: AttemptResult, *, cancel_asked: bool, is_leaving: bool) -> Ending:
    """Return what to do after `answer`; `cancel_asked` by a person, `is_leaving` by a pool that ends."""
    if answer.kind == "returned":
        return Ending("succeeded", ticket.failures)
    if cancel_asked:
        return Ending("cancelled", ticket.failures, "cancelled", "cancelled on request")
    if is_leaving and answer.kind in ("cancelled", "timed_out"):
        return Ending("dropped", ticket.failures, "cut_short", "was cut short because the pool stopped")
    failures = ticket.failures + 1
    if is_final(answer, failures, ticket.type.max_attempts):
        return Ending("dead", failures, answer.error_code, answer.message)
    delay = delay_seconds(answer, ticket.type.backoff, failures)
    return Ending("failed", failures, answer.error_code, answer.message, delay)


class WaitingJobs:
    """The jobs that wait: those that are ready, first come first served, and those that are due later."""

    def __init__(self) -> None:
        # A line for each type, so that a type at its limit holds up nobody else.
        self._ready: dict[str, deque[Ticket]] = {}
        self._later: list[tuple[int, int, Ticket]] = []
        self._busy: Counter[str] = Counter()
        self._places = count()

    @property
    def ready(self) -> int:
        """How many could start now, were there a thread and room under their type's limit."""
        return sum(map(len, self._ready.values()))

    @property
    def later(self) -> int:
        """How many wait for their time, retries above all."""
        return len(self._later)

    @property
    def next_due_ns(self) -> int:
        """When the next of those that wait for their time is due."""
        return self._later[0][0] if self._later else _NEVER_NS

    def add(self, ticket: Ticket) -> None:
        """Put a job that is ready behind the others."""
        ticket.place = next(self._places)
        self._ready.setdefault(ticket.job_type, deque()).append(ticket)

    def add_later(self, ticket: Ticket) -> None:
        """Keep a job aside until its `due_ns`."""
        heapq.heappush(self._later, (ticket.due_ns, ticket.id, ticket))

    def wake(self, now_ns: int) -> int:
        """Make ready what is due by now; returns how many."""
        woken = 0
        while self.next_due_ns <= now_ns:
            self.add(heapq.heappop(self._later)[2])
            woken += 1
        return woken

    def take(self) -> Ticket | None:
        """Take the first ready job whose type has room under its `max_running`."""
        heads = [line[0] for line in self._ready.values() if self._has_room(line[0].type)]
        ticket = min(heads, key=lambda head: head.place, default=None)
        if ticket is not None:
            self._remove_ready(ticket)
            self._busy[ticket.job_type] += 1
        return ticket

    def _has_room(self, job_type: JobType) -> bool:
        return job_type.max_running is None or self._busy[job_type.name] < job_type.max_running

    def free(self, ticket: Ticket) -> None:
        """Give back the room under its type's limit: the handler has returned."""
        self._busy[ticket.job_type] -= 1
        if not self._busy[ticket.job_type]:
            del self._busy[ticket.job_type]

    def remove(self, ticket: Ticket) -> bool:
        """Take one particular job out; False when it does not wait."""
        if ticket in self._ready.get(ticket.job_type, ()):
            self._remove_ready(ticket)
            return True
        others = [entry for entry in self._later if entry[2] is not ticket]
        was_later = len(others) < len(self._later)
        self._later = others
        heapq.heapify(self._later)
        return was_later

    def _remove_ready(self, ticket: Ticket) -> None:
        line = self._ready[ticket.job_type]
        line.remove(ticket)
        if not line:
            del self._ready[ticket.job_type]

    def clear(self) -> list[Ticket]:
        """Take everything out, in the order in which it would have come up."""
        ready = [ticket for line in self._ready.values() for ticket in line]
        later = [ticket for _, _, ticket in sorted(self._later)]
        self._ready.clear()
        self._later.clear()
        return [*sorted(ready, key=lambda ticket: ticket.place), *later]


class PoolState:
    """The state of one pool. A job counts against the bound from its admission to its end."""

    def __init__(self, *, concurrency: int, capacity: int, grace_seconds: float, kept_failures: int) -> None:
        """At most `capacity` jobs wait beside `concurrency` that run; so many final failures are kept."""
        self.bound = capacity + concurrency
        self.lock = Lock()
        self.work, self.room, self.ended, self.clock = (Condition(self.lock) for _ in range(4))
        self.waiting = WaitingJobs()
        self.running: dict[int, Attempt] = {}
        # Handlers that still run although their job has ended.
        self.given_up: dict[int, Attempt] = {}
        self.failures: deque[Ticket] = deque(maxlen=kept_failures)
        self.dropped: list[Ticket] = []
        self.tally = Tally()
        self.is_open, self.is_dropping = True, False
        self.unfinished = self.idle = self.blocked = 0
        self._by_key: dict[str, Ticket] = {}
        self._grace_seconds = grace_seconds
        # When the clock's thread wakes up next.
        self._clock_ns = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing will ever be left to do. The caller holds the lock."""
        return not self.is_open and not self.unfinished

    # -- in ----------------------------------------------------------------------------------------------

    def admit(self, ticket: Ticket, *, may_wait: bool, timeout: float | None) -> Ticket | Refusal:
        """Let a job in; returns it, or the unfinished job that has its key, or why it is not let in."""
        until = None if timeout is None else monotonic() + timeout
        has_waited = False
        with self.lock:
            while (found := self._admit_now(ticket)) == "full" and may_wait:
                remaining = None if until is None else until - monotonic()
                if remaining is not None and remaining <= 0:
                    break
                has_waited = True
                self._wait_for_room(remaining)
            self.tally.blocked += has_waited
            self.tally.refused += found == "full"
            if has_waited and found is not ticket:
                self.room.notify()  # The room that woke this one is for another.
            return found

    def _admit_now(self, ticket: Ticket) -> Ticket | Refusal:
        if not self.is_open:
            return "stopped"
        if ticket.key is not None and (known := self._by_key.get(ticket.key)) is not None:
            return known
        if self.unfinished >= self.bound:
            return "full"
        ticket.is_admitted = True
        self.unfinished += 1
        self.tally.submitted += 1
        if ticket.key is not None:
            self._by_key[ticket.key] = ticket
        self._line_up(ticket)
        return ticket

    def _wait_for_room(self, seconds: float | None) -> None:
        self.blocked += 1
        try:
            self.room.wait(seconds)
        except BaseException:
            self.room.notify()
            raise
        finally:
            self.blocked -= 1

    def _line_up(self, ticket: Ticket) -> None:
        if ticket.due_ns > boottime_ns():
            self.waiting.add_later(ticket)
            self._wake_clock_by(ticket.due_ns)
        else:
            self.waiting.add(ticket)
            self.work.notify()

    # -- an attempt --------------------------------------------------------------------------------------

    def take(self, *, may_wait: bool) -> Attempt | None:
        """Start the next job: returns the attempt to run, None when there is none (to wait for, with
        `may_wait`: when the pool is over)."""
        with self.lock:
            while (ticket := self.waiting.take()) is None:
                if self.is_over or not may_wait:
                    return None
                self.idle += 1
                try:
                    self.work.wait()
                finally:
                    self.idle -= 1
            ticket.state = "running"
            ticket.attempts += 1
            attempt = self.running[ticket.id] = Attempt(ticket, self._grace_seconds)
            self.tally.started += 1
            self.tally.wait.add(attempt.started_ns - ticket.due_ns)
            self._wake_clock_by(attempt.next_ns)
            return attempt

    def settle(self, attempt: Attempt, answer: AttemptResult) -> Ending | None:
        """A handler has returned: write down what becomes of its job. None: it came too late to matter.

        A job to be tried again or dropped is then for the caller to `retry` or `end`.
        """
        ticket = attempt.ticket
        with self.lock:
            self.waiting.free(ticket)
            if ticket.type.max_running is not None:
                self.work.notify()
            self.tally.run.add(boottime_ns() - attempt.started_ns)
            if self.running.get(ticket.id) is not attempt:
                self.tally.late += 1
                self.given_up.pop(ticket.id, None)
                return None
            ending = decide(ticket, answer, cancel_asked=attempt.cancel_asked, is_leaving=attempt.is_leaving)
            del self.running[ticket.id]
            ticket.failures = ending.failures
            if ending.error_code is not None:
                ticket.error_code, ticket.last_error = ending.error_code, ending.message
            self.tally.failed += ending.state in ("failed", "dead")
            if ending.state == "failed":
                ticket.state = "failed"
            elif ending.state != "dropped":
                self._end(ticket, ending.state, answer.result)
            return ending

    def retry(self, ticket: Ticket, delay_seconds: float) -> bool:
        """Let a job wait for its next attempt; False when the pool drops what waits by now."""
        with self.lock:
            if self.is_dropping:
                return False
            self.tally.retried += 1
            ticket.due_ns = boottime_ns() + int(delay_seconds * 1e9)
            self._line_up(ticket)
            return True

    def cancel(self, ticket: Ticket) -> bool:
        """Decide against `ticket`; returns whether it had not ended."""
        with self.lock:
            if self.waiting.remove(ticket):
                ticket.error_code, ticket.last_error = "cancelled", "cancelled on request"
                self._end(ticket, "cancelled")
                return True
            attempt = self.running.get(ticket.id)
            if attempt is None:
                return False
            attempt.cancel_asked = True
            self._ask_to_stop(attempt)
            return True

    def _ask_to_stop(self, attempt: Attempt) -> None:
        attempt.ask_cancel()
        self._wake_clock_by(attempt.next_ns)

    def give_up(self) -> list[Attempt]:
        """Part each attempt that has outstayed its limits from its job; returns those attempts.

        The thread goes on, its answer counts no more. Their jobs are for the caller to end.
        """
        with self.lock:
            return self._part([attempt for attempt in self.running.values() if attempt.is_overdue])

    def _part(self, attempts: list[Attempt]) -> list[Attempt]:
        for attempt in attempts:
            del self.running[attempt.ticket.id]
            self.given_up[attempt.ticket.id] = attempt
            self.tally.abandoned += 1
        return attempts

    # -- the end -----------------------------------------------------------------------------------------

    def end(self, ticket: Ticket, state: State) -> None:
        """End a job that neither waits nor runs, whether it was let in or not."""
        with self.lock:
            self._end(ticket, state)

    def _end(self, ticket: Ticket, state: State, result: str | None = None) -> None:
        self.tally.ended[state] += 1
        if state == "dead":
            self.failures.append(ticket)
        if ticket.is_admitted:
            self.unfinished -= 1
            if state == "dropped" and ticket.id not in self.given_up:
                self.dropped.append(ticket)
            if state in ("succeeded", "dead"):
                self.tally.latency.add(boottime_ns() - ticket.submitted_ns)
            if ticket.key is not None:
                self._by_key.pop(ticket.key, None)
        ticket.end(state, result)
        self.room.notify()
        self.ended.notify_all()
        self._wake_all_if_over()

    def _wake_all_if_over(self) -> None:
        if self.is_over:
            for condition in (self.work, self.clock, self.ended):
                condition.notify_all()

    def close(self, *, dropping: bool) -> list[Ticket]:
        """Let nobody in any more and wake who waits to be let in; returns the jobs that are dropped."""
        with self.lock:
            self.is_open = False
            self.room.notify_all()
            left = self._drop_waiting() if dropping else []
            self._wake_all_if_over()
            return left

    def _drop_waiting(self) -> list[Ticket]:
        self.is_dropping = True
        return self.waiting.clear()

    def drain(self, until: float) -> list[Ticket]:
        """Wait until everything has ended, or nothing more can before `until` (monotonic); then ask what runs
        to stop, and return what waits, which is dropped."""
        with self.lock:
            while (seconds := until - monotonic()) > 0 and self._can_end_within(seconds):
                self.ended.wait(seconds)
            for attempt in self.running.values():
                attempt.is_leaving = True
                self._ask_to_stop(attempt)
            return self._drop_waiting()

    def _can_end_within(self, seconds: float) -> bool:
        """Whether a job can end so soon: all but those that are due later."""
        is_busy = self.unfinished > self.waiting.later
        return is_busy or self.waiting.next_due_ns < boottime_ns() + int(seconds * 1e9)

    def leave(self, until: float) -> list[Attempt]:
        """Wait for what was asked to stop until `until`; give up what runs on."""
        with self.lock:
            while self.unfinished and (seconds := until - monotonic()) > 0:
                self.ended.wait(seconds)
            return self._part(list(self.running.values()))

    # -- the clock ---------------------------------------------------------------------------------------

    def _wake_clock_by(self, at_ns: int) -> None:
        if at_ns < self._clock_ns:
            self._clock_ns = at_ns
            self.clock.notify()

    def tick(self) -> bool:
        """Make ready what is due, cut what has passed its deadline, then sleep until the next such moment, or
        until something is to be given up; False when the pool is over."""
        with self.lock:
            for _ in range(self.waiting.wake(boottime_ns())):
                self.work.notify()
            for attempt in self.running.values():
                if boottime_ns() >= attempt.next_ns and not attempt.is_overdue:
                    attempt.cut()
            self._clock_ns = min(
                self.waiting.next_due_ns, *(attempt.next_ns for attempt in self.running.values()), _NEVER_NS
            )
            if self.is_over:
                return False
            seconds = (self._clock_ns - boottime_ns()) / 1e9
            if seconds > 0:
                self.clock.wait(min(seconds, 3600.0))
            return True
