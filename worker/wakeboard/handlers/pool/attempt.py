"""One attempt under way in a pool's thread: its context, its time limits, and what cuts an async handler."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Thread, current_thread
from typing import Any, cast

from wakeboard.core.outcome import AttemptResult
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.handlers.context import Context
from wakeboard.handlers.invoke import invoke
from wakeboard.handlers.memory_effect_store import MemoryEffectStore
from wakeboard.handlers.pool.future import Ticket

_SECOND = 1_000_000_000


class _Prefixed(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        job = self.extra or {}
        return f"run={job['run']} type={job['type']} {msg}", kwargs


class _PooledContext(Context):
    """The context of a handler that shares its process's output with others: its log lines say whose they
    are, and what `once()` made is known to the next attempt."""

    def __init__(self, ticket: Ticket, enqueued_at: str, started_ns: int) -> None:
        super().__init__(
            job_type=ticket.job_type,
            run_id=ticket.id,
            attempt=ticket.attempts,
            key=ticket.key,
            enqueued_at=enqueued_at,
            timeout_seconds=ticket.type.timeout_seconds,
            started_ns=started_ns,
        )
        self._ticket = ticket

    @property
    def effect_store(self) -> MemoryEffectStore:
        return self._ticket.effect_store

    @property
    def log(self) -> logging.Logger:
        logger = super().log
        return cast("logging.Logger", _Prefixed(logger, {"run": self.run_id, "type": self.job_type}))


class Attempt:
    """One start of one job. Times are on the clock of `boottime_ns`."""

    def __init__(self, ticket: Ticket, grace_seconds: float) -> None:
        """`grace_seconds`: how long after its deadline, or a cancel, the handler is waited for."""
        now = boottime_ns()
        self.ticket = ticket
        self.number = ticket.attempts
        self.started_ns = now
        self.cancel_asked = self.is_leaving = False
        self.cut_ns = now + int(ticket.type.timeout_seconds * _SECOND)
        self._grace_ns = int(grace_seconds * _SECOND)
        self._was_cut = False
        self.thread: Thread | None = None
        self._interrupt: Callable[[], object] | None = None
        waited = timedelta(microseconds=(now - ticket.submitted_ns) // 1000)
        self.context = _PooledContext(ticket, (datetime.now(UTC) - waited).isoformat(), now)

    @property
    def seconds(self) -> float:
        """How long ago it started."""
        return (boottime_ns() - self.started_ns) / _SECOND

    @property
    def next_ns(self) -> int:
        """When somebody has to look at this attempt again: to cut it, then to give it up."""
        return self.cut_ns + self._grace_ns if self._was_cut else self.cut_ns

    @property
    def is_overdue(self) -> bool:
        """Whether it has been cut, and has not heeded that for the whole grace."""
        return self._was_cut and boottime_ns() >= self.next_ns

    def run(self) -> AttemptResult:
        """Call the handler, in this thread, and return how it ended."""
        self.thread = current_thread()
        try:
            self.context.payload = self.ticket.payload
        except RecursionError as error:
            return AttemptResult("raised", "payload_unreadable", f"The payload cannot be read: {error}")
        return invoke(self.ticket.type, self.context, await_it=self._await)

    def ask_cancel(self) -> None:
        """Make `check()` raise Cancelled, and cut."""
        self.context.ask_cancel()
        self.cut_ns = min(self.cut_ns, boottime_ns())
        self.cut()

    def cut(self) -> None:
        """The deadline has passed or a cancel was asked: an async handler is cut at its next `await`."""
        self._was_cut = True
        if self._interrupt is not None:
            with suppress(RuntimeError):  # Its loop has just closed: the handler has ended.
                self._interrupt()

    def _await(self, coroutine: Any) -> object:
        import asyncio

        return asyncio.run(self._to_its_end(coroutine))

    async def _to_its_end(self, coroutine: Any) -> object:
        import asyncio

        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._interrupt = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            self.context.check()
        except BaseException:
            coroutine.close()
            raise
        try:
            return await coroutine
        except asyncio.CancelledError:
            self.context.check()
            raise
