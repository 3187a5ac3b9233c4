"""`Pool`: submit, stop, wait, look. What a job is, when it is tried again and how it is called is decided
elsewhere, in the rooms that the database worker uses too.
"""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import count
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self
from weakref import WeakSet

from wakeboard.config import log
from wakeboard.core.run_spec import Encoder, EnqueueError, NewRun, payload_limit
from wakeboard.handlers.pool.dispatcher import Clerk, Handoff
from wakeboard.handlers.pool.future import Ticket
from wakeboard.handlers.pool.measuring import look, measure
from wakeboard.handlers.pool.metrics import PoolMetrics, Running
from wakeboard.handlers.pool.report import Report
from wakeboard.handlers.pool.state import Board
from wakeboard.handlers.pool.threads import Staff
from wakeboard.handlers.registry import JobType, type_of

Full = Literal["block", "error", "drop"]
_JOIN_SECONDS = 1.0
# Python waits no longer than about three hundred years.
LONGEST_SECONDS = 2**31
_boards: WeakSet[Board] = WeakSet()


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
        self._shutdown_seconds, self._grace_seconds = shutdown_seconds, grace_seconds
        self._board = Board(
            concurrency=concurrency,
            capacity=capacity,
            grace_seconds=grace_seconds,
            kept_failures=kept_failures,
        )
        self._clerk = Clerk(self._board, name, handoff, longest_delay_seconds, log_every_move=log_every_move)
        self._staff = Staff(
            self._board,
            name,
            concurrency,
            concurrency if most_abandoned is None else most_abandoned,
            started=self._clerk.started,
            finished=self._clerk.finished,
            overdue=self._clerk.give_up,
            resting=log.flush,
        )
        self._ids = count(1)
        self._process_id: int | None = None
        self._ended_before_stop: dict[str, int] = {}
        _boards.add(self._board)

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
        if self._board.is_open and self._clerk.hands_off(seconds):
            self._clerk.hand_off(ticket, seconds, self._board.turn_away)
            return ticket
        ticket.due_ns += int(seconds * 1e9)
        self._staff.call_in()
        may_wait = self._full == "block" and not self._staff.is_one_of_us()
        found = self._board.admit(ticket, may_wait=may_wait, timeout=timeout)
        if found == "stopped":
            raise PoolStopped(f"The pool {self.name!r} has stopped and takes no jobs any more.")
        if found == "full":
            if self._full != "drop":
                raise self._full_up()
            self._clerk.turn_away(ticket)
            return ticket
        if found is not ticket and found.job_type != ticket.job_type:
            raise EnqueueError(
                f"The key '{key}' belongs to job {found.id} of type '{found.job_type}', "
                f"not '{ticket.job_type}'."
            )
        with suppress(RuntimeError):
            self._staff.call_in()
        return found

    def stop(self, *, drain: bool = True) -> None:
        """Take no more jobs, wake who waits to submit with PoolStopped, and return without waiting.

        `drain`: what waits is still run; else it is dropped, or handed off. A second call may still drop.
        """
        if self._process_id not in (None, os.getpid()):
            return
        if not self._ended_before_stop:
            self._ended_before_stop = dict(self._board.tally.ended)
        for ticket in self._board.close(dropping=not drain):
            self._clerk.put_back(ticket)

    def wait(self, deadline_seconds: float | None = None) -> Report:
        """Wait for the end, `deadline_seconds` at most (None: `shutdown_seconds`), and say how it was.

        Then what still waits is dropped or handed off, and what still runs is asked to stop and given
        `grace_seconds` to do so. What cannot come up before the deadline (a later retry) is not waited for.
        Raises RuntimeError before `stop()`.
        """
        self._check_process()
        if self._board.is_open:
            raise RuntimeError("wait() comes after stop(): a pool that takes jobs has no end to wait for.")
        seconds = self._shutdown_seconds if deadline_seconds is None else deadline_seconds
        for ticket in self._board.drain(monotonic() + seconds):
            self._clerk.put_back(ticket)
        for attempt in self._board.leave(monotonic() + self._grace_seconds):
            self._clerk.leave_behind(attempt)
        self._staff.join(_JOIN_SECONDS)
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
        return measure(self._board, self._concurrency, self._capacity, self._staff.alive)

    def running(self) -> list[Running]:
        """Return what runs, the longest first, handlers that were given up among them."""
        with self._board.lock:
            return sorted(look(self._board), key=lambda each: -each.seconds)

    def failures(self) -> list[Ticket]:
        """Return the latest jobs that gave up, oldest first, each with its last error and its payload."""
        with self._board.lock:
            return list(self._board.failures)

    def _check_process(self) -> None:
        """Threads and held locks do not come along into a forked process."""
        if self._process_id is None:
            self._process_id = os.getpid()
        if self._process_id != os.getpid():
            raise PoolStopped(
                f"The pool {self.name!r} has its threads in process {self._process_id}, and this is another, "
                "forked from it. Make a pool after the fork (under gunicorn: in post_worker_init)."
            )

    def _full_up(self) -> PoolFull:
        return PoolFull(
            f"The pool {self.name!r} is full: {self._capacity} jobs wait and {self._concurrency} run. "
            "Submit later, or make it larger."
        )

    def _cancel(self, ticket: Ticket) -> bool:
        done = self._board.cancel(ticket)
        if done and ticket.has_ended:
            self._clerk.log("cancelled", ticket)
        return done

    def _report(self) -> Report:
        with self._board.lock:
            ended, before = self._board.tally.ended, self._ended_before_stop
            of_their_own = ("succeeded", "dead", "cancelled")
            return Report(
                finished=sum(ended[state] - before[state] for state in of_their_own),
                dropped=tuple(self._board.dropped),
                handed_off=ended["handed_off"] - before["handed_off"],
                still_running=tuple(each for each in look(self._board) if each.given_up),
            )


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
os.register_at_fork(after_in_child=_boards.clear)


@atexit.register
def _tell_what_is_lost() -> None:
    lost = sum(board.unfinished for board in _boards)
    if lost:
        log.warn("The process ends with unfinished jobs in a pool that nobody waited for.", count=lost)
