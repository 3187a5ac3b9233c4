"""A thread that a process cannot do without: whatever ends its body is logged, and the body is run again.

An unexpected exception (no free descriptor, no memory, a bug) would end a plain thread silently, while the
rest of the process goes on and looks healthy.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from time import monotonic

from wakeboard.config import log
from wakeboard.core.text.sanitize import describe_error

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0
# A body that ran for this long had recovered from its last failure.
SETTLED_SECONDS = 60.0
REPEAT_SECONDS = 60.0


class FailureLog:
    """Logs the failures of one place: a new kind with its trace at once, the same one once a minute."""

    def __init__(self, sentence: str) -> None:
        """``sentence`` says what failed and what happens next, without a full stop."""
        self._sentence = sentence
        # Kind → (when it was last logged, how often it came since).
        self._logged: dict[str, tuple[float, int]] = {}

    def add(self, failure: BaseException) -> None:
        """Log ``failure``, or count it when its kind was logged less than a minute ago."""
        kind, now = type(failure).__qualname__, monotonic()
        times, trace = "", "".join(traceback.format_exception(failure))
        if kind in self._logged:
            at, count = self._logged[kind]
            if now - at < REPEAT_SECONDS:
                self._logged[kind] = at, count + 1
                return
            times, trace = f" ({count + 1} times since it was last logged)", ""
        self._logged[kind] = now, 0
        log.error(f"{self._sentence}{times}: {describe_error(failure)}", trace)


class ServiceThread(Thread):
    """A daemon thread that runs ``body`` until that returns, and again after a pause when it raises.

    The pause grows from 0.5 to 5 s and begins anew once the body has called ``mark_recovered``.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[], None],
        *,
        stopping: Event | None = None,
        on_failure: Callable[[BaseException], object] = lambda failure: None,
    ) -> None:
        """Once ``stopping`` is set the body is not run again. ``on_failure`` gets each exception that ended
        the body, in this thread."""
        super().__init__(name=name, daemon=True)
        self._body = body
        self._stopping = stopping or Event()
        self._on_failure = on_failure
        self._failing_since: float | None = None
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._failures = FailureLog(f"The thread {name!r} ended by an error and is started again")
        self._began_at = monotonic()

    def mark_recovered(self) -> None:
        """Called by the body: it works."""
        if self._failing_since is not None:
            self._failing_since, self._pause_seconds = None, FIRST_PAUSE_SECONDS

    @property
    def failing_seconds(self) -> float:
        """Seconds since the body first failed without having recovered; 0.0 while it works."""
        since = self._failing_since
        return 0.0 if since is None else monotonic() - since

    def is_lost(self, patience_seconds: float) -> bool:
        """Return whether it was started and has ended, or fails for longer than ``patience_seconds``."""
        is_gone = self.ident is not None and not self.is_alive() and not self._stopping.is_set()
        return is_gone or self.failing_seconds > patience_seconds

    def run(self) -> None:
        """Run the body until it returns."""
        while not self._stopping.is_set():
            # Logging a failure may fail as well, when memory is short.
            with suppress(BaseException):
                if self._run_once():
                    return
            with suppress(BaseException):
                self._stopping.wait(self._pause_seconds)
                self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)

    def _run_once(self) -> bool:
        """Run the body; return whether it returned."""
        self._began_at = monotonic()
        try:
            self._body()
        except BaseException as failure:
            now = monotonic()
            if self._failing_since is None or now - self._began_at > SETTLED_SECONDS:
                self._failing_since, self._pause_seconds = now, FIRST_PAUSE_SECONDS
            try:
                self._failures.add(failure)
            finally:
                self._on_failure(failure)
            return False
        return True
