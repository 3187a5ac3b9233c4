"""A pool's threads: those that run handlers, and the one that keeps the time. They start with the work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, current_thread

from wakeboard.config import log
from wakeboard.config.service_thread import ServiceThread
from wakeboard.handlers.pool.attempt import Attempt
from wakeboard.handlers.pool.state import PoolState


class Threads:
    """The threads of one pool.

    They are daemons: a handler that hangs for ever cannot keep a process from ending.
    """

    def __init__(
        self,
        state: PoolState,
        name: str,
        concurrency: int,
        most_abandoned: int,
        *,
        run: Callable[[Attempt], None],
        give_up: Callable[[], None],
    ) -> None:
        """`run` is called with each attempt, by the thread that runs it; `give_up` by the clock's thread when
        an attempt may be overdue."""
        self._state, self._name = state, name
        self._concurrency, self._most_abandoned = concurrency, most_abandoned
        self._run, self._give_up = run, give_up
        self._threads: set[Thread] = set()
        self._clock: Thread | None = None
        self._number = 0

    @property
    def alive(self) -> int:
        """How many threads there are for handlers, those with a handler that was given up included."""
        return len(self._threads)

    def has_caller(self) -> bool:
        """Whether the caller is a handler of this very pool."""
        return current_thread() in self._threads

    def start_missing(self) -> None:
        """Start what is missing. Raises RuntimeError when the system has no room for a single thread."""
        state = self._state
        if len(self._threads) >= self._concurrency and not state.given_up:
            return
        with state.lock:
            if state.is_over:
                return
            if self._clock is None:
                self._clock = self._start(self._keep_time, "clock")
            wanted = max(state.waiting.ready - state.idle, 0 if self._threads else 1)
            for _ in range(min(wanted, self._most - len(self._threads))):
                self._number += 1
                try:
                    self._threads.add(self._start(self._work, str(self._number)))
                except RuntimeError:
                    if not self._threads:
                        raise
                    return

    @property
    def _most(self) -> int:
        """How many threads there may be: a handler that was given up keeps its own, and some are replaced."""
        return self._concurrency + min(len(self._state.given_up), self._most_abandoned)

    def _start(self, target: Callable[[], None], name: str) -> Thread:
        thread = ServiceThread(f"{self._name} {name}", target)
        thread.start()
        return thread

    def join(self, seconds: float) -> None:
        """Wait, `seconds` at most for each, for the threads that have nothing left to do."""
        with self._state.lock:
            hanging = {attempt.thread for attempt in self._state.given_up.values()}
            threads = [each for each in (*self._threads, self._clock) if each and each not in hanging]
        for thread in threads:
            if thread is not current_thread():
                thread.join(seconds)

    def _work(self) -> None:
        """Run handlers until there is nothing to do any more, or another thread has this one's place."""
        while (attempt := self._next()) is not None:
            self._run(attempt)
            del attempt
            if self._is_surplus():
                break
        with self._state.lock:
            self._threads.discard(current_thread())
        _close_own_connection()
        log.flush()

    def _next(self) -> Attempt | None:
        attempt = self._state.take(may_wait=False)
        if attempt is None:
            log.flush()
            attempt = self._state.take(may_wait=True)
        return attempt

    def _is_surplus(self) -> bool:
        """Whether this thread was replaced while its handler outstayed its time; it is then off the list."""
        with self._state.lock:
            if len(self._threads) <= self._most:
                return False
            self._threads.discard(current_thread())
            return True

    def _keep_time(self) -> None:
        while self._state.tick():
            self._give_up()
            with suppress(RuntimeError):
                self.start_missing()


def _close_own_connection() -> None:
    """Close the database connection that handlers have opened in this thread, if they have loaded any."""
    own = sys.modules.get("wakeboard.queue.handler_connection")
    if own is not None:
        own.close_thread_connection()
