"""One job of a pool: the future that its submitter holds, and an attempt in a thread of the pool."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from threading import Event, Thread, current_thread
from typing import Any, Literal, cast

from wakeboard.core.outcome import AttemptResult
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.handlers.context import Context
from wakeboard.handlers.invoke import HandlerCoroutine, invoke
from wakeboard.handlers.memory_effects import MemoryEffectStore
from wakeboard.handlers.registry import JobType

State = Literal["queued", "running", "failed", "succeeded", "dead", "cancelled", "dropped", "handed_off"]
ENDED: tuple[State, ...] = ("succeeded", "dead", "cancelled", "dropped", "handed_off")
_SECOND = 1_000_000_000
_ENDINGS = {
    "dead": "gave up",
    "cancelled": "was cancelled",
    "dropped": "was dropped",
    "handed_off": "was handed to the table and runs there",
}


class NoResult(Exception):
    """The job ended without a result: `state` says how, `error_code` and the text say why."""

    def __init__(self, future: PoolFuture) -> None:
        why = f" ({future.error_code}: {future.last_error})" if future.error_code else ""
        super().__init__(f"Job {future.id} ({future.job_type}) {_ENDINGS[future.state]}{why}.")
        self.state = future.state
        self.error_code = future.error_code


class PoolFuture:
    """A submitted job. Only the pool changes it, under the pool's lock.

    `state` is a run's (queued, running, failed: waits to be tried again, succeeded, dead, cancelled) or one
    of the pool's own: dropped, handed_off (`handed_to` is then what the hand-off returned: the run's id).
    `attempts` counts starts, `failures` what backoff and dying count; `error_code` and `last_error` are the
    last failure's.
    """

    def __init__(
        self,
        id_: int,
        type_: JobType,
        payload_text: str,
        key: str | None,
        cancel: Callable[[PoolFuture], bool],
    ) -> None:
        """`payload_text` is JSON, so nothing that the submitter does later changes it."""
        self.id = id_
        self.type = type_
        self.job_type = type_.name
        self.key = key
        self.state: State = "queued"
        self.attempts = self.failures = 0
        self.error_code: str | None = None
        self.last_error: str | None = None
        self.handed_to: int | None = None
        self.submitted_ns = self.due_ns = boottime_ns()
        self.is_admitted = False
        # Its position among the jobs that are ready.
        self.position = 0
        self._payload_text = payload_text
        self._result_text: str | None = None
        self._cancel = cancel
        self._ended = Event()

    def __repr__(self) -> str:
        return f"<PoolFuture {self.id} {self.job_type} {self.state}>"

    @property
    def payload(self) -> Any:
        """The payload, decoded anew each time: with `job_type` and `key` all it takes to submit it again."""
        return json.loads(self._payload_text)

    @cached_property
    def effect_store(self) -> MemoryEffectStore:
        """What `once()` remembers over the job's attempts."""
        return MemoryEffectStore()

    @property
    def has_ended(self) -> bool:
        """Whether nothing will happen to this job any more."""
        return self.state in ENDED

    def result(self, timeout: float | None = None) -> Any:
        """Wait at most `timeout` seconds (None: without end) and return what the handler returned.

        That is its JSON value, or None where it was too long or no JSON. Raises NoResult when the job ended
        in any other way than succeeded, TimeoutError when it has not ended yet. Not for use inside a handler
        of the same pool, which may be waiting for its own thread.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"Job {self.id} ({self.job_type}) is still {self.state} after {timeout:g} s.")
        if self.state != "succeeded":
            raise NoResult(self)
        return None if self._result_text is None else json.loads(self._result_text)

    def cancel(self) -> bool:
        """Cancel the job; returns whether that can still change anything.

        A waiting job is cancelled at once. In a running one `ctx.check()` raises and an `async def` is cut at
        its next `await`; a handler that succeeds all the same has succeeded.
        """
        return self._cancel(self)

    def end(self, state: State, result_text: str | None = None) -> None:
        """For the pool: the job has ended in `state`; wakes who waits for its result."""
        self.state = state
        self._result_text = result_text
        self._ended.set()


class _PrefixAdapter(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        job = self.extra or {}
        return f"run={job['run']} type={job['type']} {msg}", kwargs


class _PooledContext(Context):
    """The context of a handler in a pool, which shares its process's output with others.

    Its log lines have a prefix, and the next attempt knows what `once()` did.
    """

    def __init__(self, future: PoolFuture, enqueued_at: str, started_ns: int) -> None:
        super().__init__(
            job_type=future.job_type,
            run_id=future.id,
            attempt=future.attempts,
            key=future.key,
            enqueued_at=enqueued_at,
            timeout_seconds=future.type.timeout_seconds,
            started_ns=started_ns,
        )
        self._future = future

    @property
    def effect_store(self) -> MemoryEffectStore:
        return self._future.effect_store

    @property
    def log(self) -> logging.Logger:
        logger = super().log
        return cast("logging.Logger", _PrefixAdapter(logger, {"run": self.run_id, "type": self.job_type}))


class Attempt:
    """One start of one job. Times are on the clock of `boottime_ns`."""

    def __init__(self, future: PoolFuture, grace_seconds: float) -> None:
        """`grace_seconds`: how long the handler may go on after its deadline or a cancel."""
        now = boottime_ns()
        self.future = future
        self.number = future.attempts
        self.started_ns = now
        self.is_cancelled = self.is_stopped = False
        self.deadline_ns = now + int(future.type.timeout_seconds * _SECOND)
        self._grace_ns = int(grace_seconds * _SECOND)
        self._is_interrupted = False
        self.thread: Thread | None = None
        self._cancel_task: Callable[[], object] | None = None
        waited = timedelta(microseconds=(now - future.submitted_ns) // 1000)
        self.context = _PooledContext(future, (datetime.now(UTC) - waited).isoformat(), now)

    @property
    def seconds(self) -> float:
        """How long ago it started."""
        return (boottime_ns() - self.started_ns) / _SECOND

    @property
    def next_ns(self) -> int:
        """When the clock has to act on this attempt: first to interrupt it, then to abandon it."""
        return self.deadline_ns + self._grace_ns if self._is_interrupted else self.deadline_ns

    @property
    def is_overdue(self) -> bool:
        """Whether the handler runs on although its grace after the interruption is over."""
        return self._is_interrupted and boottime_ns() >= self.next_ns

    def run(self) -> AttemptResult:
        """Call the handler, in this thread, and return how it ended."""
        self.thread = current_thread()
        try:
            self.context.payload = self.future.payload
        except RecursionError as error:
            return AttemptResult("raised", "payload_unreadable", f"The payload cannot be read: {error}")
        return invoke(self.future.type, self.context, await_it=self._run_coroutine)

    def cancel(self) -> None:
        """Make `check()` raise Cancelled, and interrupt the handler."""
        self.context.ask_cancel()
        self.deadline_ns = min(self.deadline_ns, boottime_ns())
        self.interrupt()

    def interrupt(self) -> None:
        """After the deadline or a cancel: cut an async handler at its next `await`."""
        self._is_interrupted = True
        if self._cancel_task is not None:
            with suppress(RuntimeError):  # Its loop has just closed: the handler has ended.
                self._cancel_task()

    def _run_coroutine(self, coroutine: HandlerCoroutine) -> object:
        import asyncio

        return asyncio.run(self._await(coroutine))

    async def _await(self, coroutine: HandlerCoroutine) -> object:
        import asyncio

        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._cancel_task = lambda: loop.call_soon_threadsafe(task.cancel)
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
