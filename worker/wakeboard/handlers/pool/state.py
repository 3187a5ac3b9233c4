"""A pool's whiteboard: what waits, what runs, what has been given up, and the one lock around all of it.

Every method takes the lock itself unless its docstring says that the caller holds it. Calls no handler, logs
nothing and waits for nothing but its own conditions.
"""

from __future__ import annotations

from collections import deque
from threading import Condition, Lock
from time import monotonic
from typing import Literal

from wakeboard.core.outcome import Answer
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.handlers.pool.ending import Ending, decide
from wakeboard.handlers.pool.future import State, Ticket
from wakeboard.handlers.pool.handling import Attempt
from wakeboard.handlers.pool.metrics import Tally
from wakeboard.handlers.pool.waiting import Waiting

Refusal = Literal["full", "stopped"]


class Board:
    """The state of one pool. A job counts against the bound until it has ended, however it waits."""

    def __init__(self, *, concurrency: int, capacity: int, grace_seconds: float, kept_failures: int) -> None:
        """At most `capacity` jobs wait beside `concurrency` that run; so many final failures are kept."""
        self.bound = capacity + concurrency
        self.lock = Lock()
        self.work, self.room, self.ended, self.clock = (Condition(self.lock) for _ in range(4))
        self.waiting = Waiting()
        self.running: dict[int, Attempt] = {}
        self.given_up: dict[int, Attempt] = {}
        self.by_key: dict[str, Ticket] = {}
        self.failures: deque[Ticket] = deque(maxlen=kept_failures)
        self.dropped: list[Ticket] = []
        self.tally = Tally()
        self.is_open, self.is_dropping = True, False
        self.idle = self.blocked = 0
        self._in_hand = 0
        self._grace_seconds = grace_seconds
        self._clock_ns = 0

    @property
    def unfinished(self) -> int:
        """How many jobs have not ended. The caller holds the lock."""
        return len(self.waiting) + len(self.running) + self._in_hand

    @property
    def is_over(self) -> bool:
        """Whether nothing will ever be left to do. The caller holds the lock."""
        return not self.is_open and not self.unfinished

    def admit(self, ticket: Ticket, *, may_wait: bool, timeout: float | None) -> Ticket | Refusal:
        """Let a job in; returns it, or the unfinished job that has its key, or why it is not let in."""
        until = None if timeout is None else monotonic() + timeout
        waited = False
        with self.lock:
            while True:
                refusal: Refusal | None = None
                known = self.by_key.get(ticket.key) if ticket.key is not None else None
                if not self.is_open:
                    refusal = "stopped"
                elif known is None and self.unfinished >= self.bound:
                    remaining = None if until is None else until - monotonic()
                    if may_wait and (remaining is None or remaining > 0):
                        waited = True
                        self._wait_for_room(remaining)
                        continue
                    refusal = "full"
                break
            self.tally.blocked += waited
            if known is not None or refusal is not None:
                if waited:
                    self.room.notify()  # The room that woke this one is for another.
                self.tally.refused += refusal == "full"
                return refusal or known or ticket
            self._let_in(ticket)
            return ticket

    def turn_away(self, ticket: Ticket, state: State) -> None:
        """A job that was not let in has ended all the same."""
        with self.lock:
            self.tally.ended[state] += 1
            if state == "dead":
                self.failures.append(ticket)
            ticket.end(state)

    def _wait_for_room(self, seconds: float | None) -> None:
        self.blocked += 1
        try:
            self.room.wait(seconds)
        except BaseException:
            self.room.notify()
            raise
        finally:
            self.blocked -= 1

    def _let_in(self, ticket: Ticket) -> None:
        self.tally.submitted += 1
        if ticket.key is not None:
            self.by_key[ticket.key] = ticket
        self._line_up(ticket)

    def _line_up(self, ticket: Ticket) -> None:
        if ticket.due_ns > boottime_ns():
            self.waiting.add_later(ticket)
            self.look_by(ticket.due_ns)
        else:
            self.waiting.add(ticket)
            self.work.notify()

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
            self.look_by(attempt.next_ns)
            return attempt

    def settle(self, attempt: Attempt, answer: Answer) -> Ending | None:
        """A handler has returned: write down what becomes of its job. None: it came too late to matter.

        A job to be tried again or dropped is in the caller's hand: `retry` or `end` it.
        """
        ticket = attempt.ticket
        with self.lock:
            if self.waiting.free(ticket):
                self.work.notify()
            self.tally.run.add(boottime_ns() - attempt.started_ns)
            if self.running.get(ticket.id) is not attempt:
                self.tally.late += 1
                self.given_up.pop(ticket.id, None)
                return None
            ending = decide(ticket, answer, cancel_asked=attempt.cancel_asked, is_leaving=attempt.is_leaving)
            del self.running[ticket.id]
            self._in_hand += 1
            ticket.failures = ending.failures
            if ending.error_code is not None:
                ticket.error_code, ticket.last_error = ending.error_code, ending.message
            if ending.state == "failed":
                ticket.state = "failed"
            if ending.state in ("failed", "dead"):
                self.tally.failed += 1
            if ending.state in ("succeeded", "dead", "cancelled"):
                self._end(ticket, ending.state, answer.result)
            return ending

    def retry(self, ticket: Ticket, delay_seconds: float) -> bool:
        """Let a job in hand wait for its next attempt; False when the pool drops what waits by now."""
        with self.lock:
            if self.is_dropping:
                return False
            self._in_hand -= 1
            self.tally.retried += 1
            ticket.due_ns = boottime_ns() + int(delay_seconds * 1e9)
            self._line_up(ticket)
            return True

    def end(self, ticket: Ticket, state: State) -> None:
        """End a job in hand."""
        with self.lock:
            self._end(ticket, state)

    def _end(self, ticket: Ticket, state: State, result: str | None = None) -> None:
        self._in_hand -= 1
        self.tally.ended[state] += 1
        if state == "dead":
            self.failures.append(ticket)
        elif state == "dropped" and ticket.id not in self.given_up:
            self.dropped.append(ticket)
        if state in ("succeeded", "dead"):
            self.tally.latency.add(boottime_ns() - ticket.submitted_ns)
        if ticket.key is not None:
            self.by_key.pop(ticket.key, None)
        ticket.end(state, result)
        self.room.notify()
        self.ended.notify_all()
        if self.is_over:
            self._dismiss()

    def _dismiss(self) -> None:
        for condition in (self.work, self.clock, self.ended):
            condition.notify_all()

    def cancel(self, ticket: Ticket) -> bool:
        """A person decided against `ticket`; returns whether it had not ended."""
        with self.lock:
            if self.waiting.remove(ticket):
                self._in_hand += 1
                ticket.error_code, ticket.last_error = "cancelled", "cancelled on request"
                self._end(ticket, "cancelled")
                return True
            attempt = self.running.get(ticket.id)
            if attempt is None:
                return False
            attempt.cancel_asked = True
            self._ask(attempt)
            return True

    def _ask(self, attempt: Attempt) -> None:
        attempt.ask_cancel()
        self.look_by(attempt.next_ns)

    def give_up(self) -> list[Attempt]:
        """Take the job of each attempt that has outstayed its limits off it; returns those attempts.

        The thread goes on, its answer counts no more. Their jobs are in the caller's hand.
        """
        with self.lock:
            deaf = [attempt for attempt in self.running.values() if attempt.is_overdue]
            for attempt in deaf:
                self._leave_behind(attempt)
            return deaf

    def _leave_behind(self, attempt: Attempt) -> None:
        del self.running[attempt.ticket.id]
        self.given_up[attempt.ticket.id] = attempt
        self.tally.abandoned += 1
        self._in_hand += 1

    def close(self, *, dropping: bool) -> list[Ticket]:
        """Let nobody in any more and wake who waits to be let in; returns what is dropped, now in hand."""
        with self.lock:
            self.is_open = False
            self.room.notify_all()
            left = self._clear() if dropping else []
            if self.is_over:
                self._dismiss()
            return left

    def _clear(self) -> list[Ticket]:
        self.is_dropping = True
        left = self.waiting.clear()
        self._in_hand += len(left)
        return left

    def drain(self, until: float) -> list[Ticket]:
        """Wait until everything has ended, or nothing more can before `until` (monotonic); then drop what
        waits, ask what runs to stop, and return the dropped, now in hand."""
        with self.lock:
            while self.unfinished and (seconds := until - monotonic()) > 0 and self._has_time(seconds):
                self.ended.wait(seconds)
            left = self._clear()
            for attempt in self.running.values():
                attempt.is_leaving = True
                self._ask(attempt)
            return left

    def _has_time(self, seconds: float) -> bool:
        due = self.waiting.next_due_ns()
        busy = self.waiting.ready or self.running or self._in_hand
        return bool(busy) or (due is not None and due < boottime_ns() + int(seconds * 1e9))

    def leave(self, until: float) -> list[Attempt]:
        """Wait for what was asked to stop until `until`; leave behind what runs on, its jobs in hand."""
        with self.lock:
            while self.unfinished and (seconds := until - monotonic()) > 0:
                self.ended.wait(seconds)
            deaf = list(self.running.values())
            for attempt in deaf:
                self._leave_behind(attempt)
            return deaf

    def look_by(self, at_ns: int) -> None:
        """Wake the clock's thread no later than `at_ns`. The caller holds the lock."""
        if at_ns < self._clock_ns:
            self._clock_ns = at_ns
            self.clock.notify()

    def tick(self) -> bool:
        """Put in line what is due, cut what has passed its deadline, then sleep until the next such moment,
        or until something is to be given up; False when the pool is over."""
        with self.lock:
            for _ in range(self.waiting.wake(boottime_ns())):
                self.work.notify()
            for attempt in self.running.values():
                if boottime_ns() >= attempt.next_ns and not attempt.is_overdue:
                    attempt.cut()
            times = [attempt.next_ns for attempt in self.running.values()]
            times += [due] if (due := self.waiting.next_due_ns()) is not None else []
            self._clock_ns = min(times, default=2**63)
            if self.is_over:
                return False
            seconds = (self._clock_ns - boottime_ns()) / 1e9
            if seconds > 0:
                self.clock.wait(min(seconds, 3600.0))
            return True
