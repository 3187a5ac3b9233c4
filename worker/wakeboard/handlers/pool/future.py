"""One job of a pool as its submitter sees it. Only the pool changes it, under the pool's lock."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from threading import Event
from typing import Any, Literal

from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.handlers.memory_effect_store import MemoryEffectStore
from wakeboard.handlers.registry import JobType

State = Literal["queued", "running", "failed", "succeeded", "dead", "cancelled", "dropped", "handed_off"]
ENDED: tuple[State, ...] = ("succeeded", "dead", "cancelled", "dropped", "handed_off")
_BECAUSE = {
    "dead": "gave up",
    "cancelled": "was cancelled",
    "dropped": "was dropped",
    "handed_off": "was handed to the table and runs there",
}


class NoResult(Exception):
    """The job ended without a result: `state` says how, `error_code` and the text say why."""

    def __init__(self, ticket: Ticket) -> None:
        why = f" ({ticket.error_code}: {ticket.last_error})" if ticket.error_code else ""
        super().__init__(f"Job {ticket.id} ({ticket.job_type}) {_BECAUSE[ticket.state]}{why}.")
        self.state = ticket.state
        self.error_code = ticket.error_code


class Ticket:
    """A submitted job.

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
        cancel: Callable[[Ticket], bool],
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
        # Where it stands among those that are ready.
        self.place = 0
        self._payload_text = payload_text
        self._result_text: str | None = None
        self._cancel = cancel
        self._ended = Event()

    def __repr__(self) -> str:
        return f"<Ticket {self.id} {self.job_type} {self.state}>"

    @property
    def payload(self) -> Any:
        """The payload, decoded anew each time: with `job_type` and `key` all it takes to submit it again."""
        return json.loads(self._payload_text)

    @cached_property
    def effect_store(self) -> MemoryEffectStore:
        """What `once()` keeps over the job's attempts."""
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
        """Decide against the job; returns whether that can still change anything.

        What waits is cancelled at once. What runs is asked: `ctx.check()` raises, an `async def` is cut at
        its next `await`; a handler that succeeds all the same has succeeded.
        """
        return self._cancel(self)

    def end(self, state: State, result_text: str | None = None) -> None:
        """For the pool: the job has ended so; whoever waits for its result wakes."""
        self.state = state
        self._result_text = result_text
        self._ended.set()
