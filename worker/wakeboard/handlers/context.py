"""The argument of a handler: its run, its deadline, its payload, and what it may ask of the worker.

Tests and the in-process pool use it without a shared page; cancel and progress are then in the context alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from wakeboard.core.outcome import Cancelled, DeadlineExceeded
from wakeboard.core.process.assignment import Assignment
from wakeboard.core.process.shared_slot import LARGEST_PROGRESS, SharedSlot, boottime_ns

if TYPE_CHECKING:
    import logging

    from wakeboard.handlers.memory_effects import MemoryEffectStore

_SECOND = 1_000_000_000


class Context:
    """One run as its handler sees it.

    `run_id`, `job_type`, `attempt` (from 1), `payload` (decoded), `key` (idempotency key or None);
    `committed` is set by `transaction()` once its commit has finished the run.
    """

    committed = False
    progress_done = progress_total = 0
    _effect_store: MemoryEffectStore | None = None
    _is_cancelled = False

    def __init__(
        self,
        *,
        payload: Any = None,
        job_type: str = "",
        run_id: int = 0,
        attempt: int = 1,
        key: str | None = None,
        scheduled_for: datetime | str | None = None,
        enqueued_at: str | None = None,
        timeout_seconds: float = 300.0,
        lease_epoch: int = 0,
        worker_id: str = "",
        definition_id: int | None = None,
        traceparent: str | None = None,
        page: SharedSlot | None = None,
        started_ns: int | None = None,
    ) -> None:
        """`scheduled_for` is a time with a zone, or ISO text that may end in a zone's name in brackets;
        `enqueued_at` is ISO text; `started_ns` is on the clock of `boottime_ns` (None: now). ValueError, in a
        sentence, for a `scheduled_for` that is no time with a zone."""
        self.run_id = run_id
        self.job_type = job_type
        self.attempt = attempt
        self.payload = payload
        self.key = key
        self.timeout_seconds = timeout_seconds
        self.lease_epoch = lease_epoch
        self.worker_id = worker_id
        self.definition_id = definition_id
        self.traceparent = traceparent
        self._scheduled_for = None if scheduled_for is None else _to_text(scheduled_for)
        if isinstance(scheduled_for, datetime):
            self.scheduled_for = scheduled_for
        self._enqueued_at = enqueued_at
        self._page = page
        self._started_ns = boottime_ns() if started_ns is None else started_ns
        self._deadline_ns = self._started_ns + int(timeout_seconds * _SECOND)

    @classmethod
    def for_assignment(
        cls, assignment: Assignment, payload: Any, page: SharedSlot, started_ns: int
    ) -> Context:
        """Return the context of an assignment in a child, faster than `__init__`; `payload` is decoded."""
        context = cls.__new__(cls)
        (
            context.run_id,
            context.lease_epoch,
            context.attempt,
            context.job_type,
            _,
            context.key,
            context.definition_id,
            context._scheduled_for,
            context._enqueued_at,
            context.timeout_seconds,
            context.traceparent,
            context.worker_id,
            _,
        ) = assignment
        context.payload = payload
        context._page = page
        context._started_ns = started_ns
        context._deadline_ns = started_ns + int(context.timeout_seconds * _SECOND)
        return context

    @cached_property
    def scheduled_for(self) -> datetime | None:
        """The fire of its schedule in the schedule's zone, so that `.date()` is the day there.

        None for a run without a schedule.
        """
        return None if self._scheduled_for is None else _parse_time(self._scheduled_for)

    @cached_property
    def enqueued_at(self) -> datetime | None:
        """When the run was written, None outside the database worker."""
        return None if self._enqueued_at is None else datetime.fromisoformat(self._enqueued_at)

    @cached_property
    def started_at(self) -> datetime:
        """When this attempt started, by this machine's wall clock: to show, not to measure with."""
        return datetime.now(UTC) - timedelta(microseconds=(boottime_ns() - self._started_ns) // 1000)

    @cached_property
    def deadline(self) -> datetime:
        """When the timeout ends, by this machine's wall clock."""
        return self.started_at + timedelta(seconds=self.timeout_seconds)

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline, negative after it."""
        return (self._deadline_ns - boottime_ns()) / _SECOND

    @property
    def cancelled(self) -> bool:
        """True once somebody asked this run to stop."""
        if self._page is None:
            return self._is_cancelled
        return self._page.is_cancel_requested(self.run_id, self.lease_epoch)

    def ask_cancel(self) -> None:
        """Ask a run without a shared page to stop: from then on `cancelled` is true and `check()` raises."""
        self._is_cancelled = True

    def check(self) -> None:
        """Raise `Cancelled` or `DeadlineExceeded` when the run should stop; call it wherever stopping is
        safe."""
        if self.cancelled:
            raise Cancelled("The run was asked to stop.")
        if boottime_ns() >= self._deadline_ns:
            raise DeadlineExceeded(f"The run passed its deadline of {self.timeout_seconds:g} s.")

    @property
    def effect_store(self) -> MemoryEffectStore:
        """The effects of `once()` where there is no table for them."""
        if self._effect_store is None:
            # Imported late: only runs outside of a worker need it.
            from wakeboard.handlers.memory_effects import MemoryEffectStore

            self._effect_store = MemoryEffectStore()
        return self._effect_store

    def progress(self, done: int, total: int) -> None:
        """Show how far the run is: `done` of `total`, whole numbers, cut to 0 … 2^62."""
        self.progress_done, self.progress_total = _clamp(done), _clamp(total)
        if self._page is not None:
            self._page.set_progress(self.progress_done, self.progress_total)

    @property
    def log(self) -> logging.Logger:
        """A logger whose records go, one line each, to the run's captured output."""
        return _logger()

    def once(
        self,
        key: str,
        function: Callable[[], Any],
        *,
        scope: str = "run",
        if_unconfirmed: str | Callable[..., Any] = "skip",
    ) -> Any:
        """Call `function()` unless the effect `key` is done already; returns its JSON result, then and later.

        `scope` "run" or "global"; `if_unconfirmed` ("skip", "redo" or a callable that asks the provider)
        decides when an earlier attempt died between start and done. Whatever `function` raises goes on.
        """
        # Imported late: it loads the database driver, which most handlers do not need.
        from wakeboard.handlers import effects

        return effects.once(self, key, function, scope=scope, if_unconfirmed=if_unconfirmed)

    def transaction(self) -> AbstractContextManager[Any]:
        """`with ctx.transaction() as connection:` a SQLAlchemy connection whose commit also finishes the
        run."""
        # Imported late: it loads SQLAlchemy, which most handlers do not need.
        from wakeboard.handlers.transaction import finishing_transaction

        return finishing_transaction(self)


def _to_text(scheduled_for: object) -> str:
    """Return a time as text. Raises ValueError for what is no time with a zone."""
    if isinstance(scheduled_for, datetime):
        moment, text = scheduled_for, scheduled_for.isoformat()
    elif isinstance(scheduled_for, str):
        moment, text = _parse_time(scheduled_for), scheduled_for
    else:
        raise ValueError(f"scheduled_for={scheduled_for!r} is no datetime.")
    if moment.utcoffset() is None:
        raise ValueError(
            f"scheduled_for={text} has no time zone, and a schedule always has one; give it as tzinfo, for "
            "example ZoneInfo('Europe/Berlin') or UTC."
        )
    return text


def _parse_time(text: str) -> datetime:
    """Parse an ISO time that may end in a zone's name, as in 2026-03-08 07:00:00+00[America/New_York]."""
    time, _, zone = text.rstrip("]").partition("[")
    moment = datetime.fromisoformat(time)
    if not zone:
        return moment
    # Imported late: only fires of schedules have a zone, and the names of zones load slowly.
    from wakeboard.core.time.zones import check_timezone

    try:
        return moment.astimezone(check_timezone(zone))
    # The zone was edited to an unknown one, or the local day is outside of the calendar.
    except (ValueError, OverflowError):
        return moment


def _clamp(value: float) -> int:
    try:
        return max(0, min(int(value), LARGEST_PROGRESS))
    except (ValueError, OverflowError):
        return 0


def _logger() -> logging.Logger:
    import logging

    logger = logging.getLogger("wakeboard.run")
    if logger.handlers:
        return logger

    class OutputHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                line = self.format(record).replace("\r", "\\r").replace("\n", "\\n")
                sys.stderr.write(line + "\n")
            except Exception:
                self.handleError(record)

    handler = OutputHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    return logger
