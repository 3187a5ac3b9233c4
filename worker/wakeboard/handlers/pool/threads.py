"""The threads of a pool: those that run handlers, and the clock. They start with the first job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, current_thread

from wakeboard.config import log
from wakeboard.config.service_thread import ServiceThread
from wakeboard.handlers.pool.future import Attempt
from wakeboard.handlers.pool.state import PoolState


class Threads:
    """The threads of one pool.

    They are daemons, so a handler that hangs cannot keep the process from ending.
    """

    def __init__(
        self,
        state: PoolState,
        most_abandoned: int,
        *,
        run: Callable[[Attempt], None],
        abandon_overdue: Callable[[], None],
    ) -> None:
        """Each thread calls `run` with its attempts; the clock calls `abandon_overdue` after each tick."""
        self._state, self._most_abandoned = state, most_abandoned
        self._run, self._abandon_overdue = run, abandon_overdue
        self._threads: set[Thread] = set()
        self._clock: Thread | None = None
        self._number = 0

    @property
    def alive(self) -> int:
        """How many threads run handlers, abandoned ones included."""
        return len(self._threads)

    def is_one_of_them(self) -> bool:
        """Whether the caller is a handler of this pool."""
        return current_thread() in self._threads

    def start_missing(self) -> None:
        """Start the threads that are missing. Raises RuntimeError when the system starts not even one."""
        state = self._state
        if len(self._threads) >= state.concurrency and not state.abandoned:
            return
        with state.lock:
            if state.is_over:
                return
            if self._clock is None:
                self._clock = self._start(self._run_clock, "clock")
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
        """How many threads there may be: an abandoned handler keeps its own, and some are replaced."""
        return self._state.concurrency + min(len(self._state.abandoned), self._most_abandoned)

    def _start(self, target: Callable[[], None], name: str) -> Thread:
        thread = ServiceThread(f"{self._state.name} {name}", target)
        thread.start()
        return thread

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for each thread without an abandoned handler."""
        with self._state.lock:
            abandoned = {attempt.thread for attempt in self._state.abandoned.values()}
            threads = [each for each in (*self._threads, self._clock) if each and each not in abandoned]
        for thread in threads:
            if thread is not current_thread():
                thread.join(seconds)

    def _work(self) -> None:
        """Run handlers until the pool is over, or another thread has this one's place."""
        while (attempt := self._start_next()) is not None:
            self._run(attempt)
            del attempt
            if self._is_surplus():
                break
        with self._state.lock:
            self._threads.discard(current_thread())
        # Handlers may have opened a database connection in this thread; most never load the module.
        if (handler_connection := sys.modules.get("wakeboard.queue.handler_connection")) is not None:
            handler_connection.close_thread_connection()
        log.flush()

    def _start_next(self) -> Attempt | None:
        attempt = self._state.start_next(may_wait=False)
        if attempt is None:
            log.flush()
            attempt = self._state.start_next(may_wait=True)
        return attempt

    def _is_surplus(self) -> bool:
        """Return whether this thread was replaced after its handler was abandoned; it then counts no more."""
        with self._state.lock:
            if len(self._threads) <= self._most:
                return False
            self._threads.discard(current_thread())
            return True

    def _run_clock(self) -> None:
        while self._state.tick():
            self._abandon_overdue()
            with suppress(RuntimeError):
                self.start_missing()
