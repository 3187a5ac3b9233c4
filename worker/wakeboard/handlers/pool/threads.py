"""A pool's threads: those that run handlers, and the one that keeps the time. They start with the work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, current_thread, local

from wakeboard.config.service_thread import ServiceThread
from wakeboard.core.outcome import Answer, answer_for_exception
from wakeboard.handlers.pool.handling import Attempt
from wakeboard.handlers.pool.state import Board

_here = local()


class Staff:
    """The threads of one pool.

    They are daemons: a handler that hangs for ever cannot keep a process from ending.
    """

    def __init__(
        self,
        board: Board,
        name: str,
        concurrency: int,
        most_abandoned: int,
        *,
        started: Callable[[Attempt], None],
        finished: Callable[[Attempt, Answer], None],
        overdue: Callable[[], None],
        resting: Callable[[], None],
    ) -> None:
        """`started` and `finished` are called by the thread that runs an attempt, `overdue` by the clock's
        thread, `resting` by a thread that finds nothing to do."""
        self._board, self._name = board, name
        self._concurrency, self._most_abandoned = concurrency, most_abandoned
        self._started, self._finished = started, finished
        self._overdue, self._resting = overdue, resting
        self._threads: set[Thread] = set()
        self._clock: Thread | None = None
        self._number = 0

    @property
    def alive(self) -> int:
        """How many threads there are for handlers, those with a handler that was given up included."""
        return len(self._threads)

    def is_one_of_us(self) -> bool:
        """Whether the caller is a handler of this very pool."""
        return getattr(_here, "staff", None) is self

    def call_in(self) -> None:
        """Start what is missing. Raises RuntimeError when the system has no room for a single thread.

        A handler that was given up keeps its thread; up to `most_abandoned` of them are replaced.
        """
        board = self._board
        if len(self._threads) >= self._concurrency and not board.given_up:
            return
        with board.lock:
            if board.is_over:
                return
            if self._clock is None:
                self._clock = self._thread(self._keep_time, "clock")
            wanted = max(board.waiting.ready - board.idle, 0 if self._threads else 1)
            for _ in range(min(wanted, self._most - len(self._threads))):
                self._number += 1
                try:
                    self._threads.add(self._thread(self._work, str(self._number)))
                except RuntimeError:
                    if not self._threads:
                        raise
                    return

    @property
    def _most(self) -> int:
        return self._concurrency + min(len(self._board.given_up), self._most_abandoned)

    def _thread(self, target: Callable[[], None], name: str) -> Thread:
        thread = ServiceThread(f"{self._name} {name}", target)
        thread.start()
        return thread

    def join(self, seconds: float) -> None:
        """Wait, `seconds` at most for each, for the threads that have nothing left to do."""
        with self._board.lock:
            deaf = {attempt.thread for attempt in self._board.given_up.values()}
            threads = [thread for thread in (*self._threads, self._clock) if thread and thread not in deaf]
        for thread in threads:
            if thread is not current_thread():
                thread.join(seconds)

    def _work(self) -> None:
        """Run handlers until there is nothing to do any more, or another thread has this one's place."""
        _here.staff = self
        while (attempt := self._next()) is not None:
            self._attend(attempt)
            del attempt
            if self._is_surplus():
                break
        with self._board.lock:
            self._threads.discard(current_thread())
        _close_own_connection()
        self._resting()

    def _attend(self, attempt: Attempt) -> None:
        """Run one attempt to its end; an error of ours around it is its end as well."""
        try:
            self._started(attempt)
            answer = attempt.run()
        except BaseException as failure:
            self._finished(attempt, answer_for_exception(failure))
            raise
        self._finished(attempt, answer)

    def _next(self) -> Attempt | None:
        attempt = self._board.take(may_wait=False)
        if attempt is None:
            self._resting()
            attempt = self._board.take(may_wait=True)
        return attempt

    def _is_surplus(self) -> bool:
        """Whether this thread was replaced while its handler outstayed its time; it is then off the list."""
        with self._board.lock:
            if len(self._threads) <= self._most:
                return False
            self._threads.discard(current_thread())
            return True

    def _keep_time(self) -> None:
        while self._board.tick():
            self._overdue()
            with suppress(RuntimeError):
                self.call_in()


def _close_own_connection() -> None:
    """Close the database connection that handlers have opened in this thread."""
    own = sys.modules.get("wakeboard.queue.handler_connection")
    if own is not None:
        own.drop()
