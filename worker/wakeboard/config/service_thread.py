"""A thread that a process cannot do without: whatever ends its body is logged, and the body begins anew.

An exception that nobody expects (no free descriptor, no memory, an error of ours) would end a plain thread in
silence, while the rest of the process goes on and looks healthy.
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
# A body that ran for so long before its end had recovered from the one before.
SETTLED_SECONDS = 60.0
LOGGED_AGAIN_SECONDS = 60.0


class FailureLog:
    """Logs what fails in one place: a new failure with its trace at once, the same one once a minute."""

    def __init__(self, sentence: str) -> None:
        """``sentence`` says what failed and what follows, without a full stop."""
        self._sentence = sentence
        # Of each kind, when it was logged and how often it was met since.
        self._logged: dict[str, tuple[float, int]] = {}

    def add(self, failure: BaseException) -> None:
        """Log ``failure``, or count it when its kind was logged less than a minute ago."""
        kind, now = type(failure).__qualname__, monotonic()
        times, trace = "", "".join(traceback.format_exception(failure))
        if kind in self._logged:
            at, count = self._logged[kind]
            if now - at < LOGGED_AGAIN_SECONDS:
                self._logged[kind] = at, count + 1
                return
            times, trace = f" ({count + 1} times since it was last logged)", ""
        self._logged[kind] = now, 0
        log.trouble(f"{self._sentence}{times}: {describe_error(failure)}", trace)


class ServiceThread(Thread):
    """A daemon thread that runs ``body`` until that returns, and again after a pause when it raises.

    The pause grows from 0.5 to 5 s and begins anew once the body has called ``recovered``.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[], None],
        *,
        stopping: Event | None = None,
        failed: Callable[[BaseException], object] = lambda failure: None,
    ) -> None:
        """``stopping``: when it is set the body is not run again; ``failed`` gets what ended the body, in
        this thread."""
        super().__init__(name=name, daemon=True)
        self._body = body
        self._stopping = stopping or Event()
        self._failed = failed
        self._failing_since: float | None = None
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._failures = FailureLog(f"The thread {name!r} ended by an error and is started again")
        self._began_at = monotonic()

    def recovered(self) -> None:
        """Called by the body: it works."""
        if self._failing_since is not None:
            self._failing_since, self._pause_seconds = None, FIRST_PAUSE_SECONDS

    @property
    def failing_seconds(self) -> float:
        """How long ago the body first failed without having worked since; 0.0 while it works."""
        since = self._failing_since
        return 0.0 if since is None else monotonic() - since

    def is_lost(self, patience_seconds: float) -> bool:
        """Whether it was started and is gone, or its body fails for longer than ``patience_seconds``."""
        is_gone = self.ident is not None and not self.is_alive() and not self._stopping.is_set()
        return is_gone or self.failing_seconds > patience_seconds

    def run(self) -> None:
        """Run the body until it returns."""
        while not self._stopping.is_set():
            # Logging a failure may fail as well, when memory is short.
            with suppress(BaseException):
                if self._returns():
                    return
            with suppress(BaseException):
                self._pause()

    def _returns(self) -> bool:
        """Run the body once; return whether it returned."""
        self._began_at = monotonic()
        try:
            self._body()
        except BaseException as failure:
            self._note(failure)
            return False
        return True

    def _note(self, failure: BaseException) -> None:
        now = monotonic()
        if self._failing_since is None or now - self._began_at > SETTLED_SECONDS:
            self._failing_since, self._pause_seconds = now, FIRST_PAUSE_SECONDS
        try:
            self._failures.add(failure)
        finally:
            self._failed(failure)

    def _pause(self) -> None:
        self._stopping.wait(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
