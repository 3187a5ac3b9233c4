"""The handlers' module, as the worker hears of it: what it can run, or why it cannot be imported, and when
its template is started once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

from wakeboard.config import log
from wakeboard.core.text.sanitize import described
from wakeboard.runtime.loop.claim_state import ClaimState
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.processes.children import Children

RESTART_PAUSE, BROKEN_APP_PAUSE = 1.0, 30.0
# A template that lived for so long had started well: its death is no sign of what the next one will do.
SETTLED_SECONDS = 60.0


class App:
    """The module of one worker, through every template that imports it."""

    def __init__(
        self,
        children: Children,
        claims: ClaimPlanner,
        claim_state: ClaimState,
        *,
        wanted_types: Sequence[str] | None,
        lease_seconds: float,
        is_tick: bool,
    ) -> None:
        """``wanted_types``: claim these only; ``lease_seconds``: the worker's own."""
        self._children = children
        self._claims = claims
        self._claim_state = claim_state
        self._wanted_types = None if wanted_types is None else set(wanted_types)
        self._lease_seconds = lease_seconds
        # Cron would mail a tick's warning every minute.
        self._advise = log.hold if is_tick else log.warn
        self._restart_at: float | None = None
        self._is_loading = False
        self._started_at, self._pause = monotonic(), RESTART_PAUSE
        self._lacking_since: float | None = None
        self.is_misused = False

    @property
    def is_down(self) -> bool:
        """Whether a template is lacking: a restart is to come, or imports the handlers."""
        return self._restart_at is not None or self._is_loading

    @property
    def lacking_seconds(self) -> float:
        """How long ago the last template that could run handlers went; 0.0 while there is one."""
        return 0.0 if self._lacking_since is None else monotonic() - self._lacking_since

    def ready(self, types: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """A template imported it: these types can run. Return the policies of those that are claimed."""
        self._is_loading, self._lacking_since = False, None
        known = {policy["name"] for policy in types}
        wanted = known if self._wanted_types is None else self._wanted_types
        if unknown := sorted(wanted - known):
            log.warn(f"No handler is registered for {', '.join(unknown)}; known: {', '.join(sorted(known))}.")
            self.is_misused = True
            return []
        chosen = [policy for policy in types if policy["name"] in wanted]
        self._say_which_lease_counts(chosen)
        self._claims.learn(chosen)
        return chosen

    def _say_which_lease_counts(self, policies: Sequence[dict[str, Any]]) -> None:
        """Of a type's lease and the worker's the longer one counts: the type's author may not know."""
        for policy in policies:
            if policy["lease_seconds"] is not None and policy["lease_seconds"] < self._lease_seconds:
                self._advise(
                    "A type's lease is shorter than this worker's (WAKEBOARD_LEASE_SECONDS), which counts.",
                    job_type=policy["name"],
                    lease_seconds=policy["lease_seconds"],
                    worker_lease_seconds=self._lease_seconds,
                )

    def failed(self, message: str) -> None:
        """A module that cannot be imported at the first start is wrong use; later, a deploy gone wrong."""
        self._is_loading = False
        sentence, _, trace = message.partition("\n")
        log.trouble(sentence, trace)
        if self._claims.types:
            self._restart(BROKEN_APP_PAUSE, message)
        else:
            self.is_misused = True

    def template_died(self, how: str) -> None:
        """Its template is gone, and the children with it. One that dies again and again is started at longer
        and longer intervals."""
        self._is_loading = False
        has_settled = monotonic() - self._started_at > SETTLED_SECONDS
        pause = RESTART_PAUSE if has_settled else self._pause
        self._pause = min(2 * pause, BROKEN_APP_PAUSE)
        log.warn("The template process died; starting another.", how=how, in_seconds=pause)
        self._restart(pause, how)

    def _restart(self, pause_seconds: float, why: str) -> None:
        self._lacking_since = self._lacking_since or monotonic()
        self._restart_at = monotonic() + pause_seconds
        self._claim_state.error = why

    def step(self) -> None:
        """Start another template when the pause is over."""
        if self._restart_at is not None and monotonic() >= self._restart_at:
            self._restart_at = None
            self._is_loading, self._started_at = True, monotonic()
            try:
                self._children.start()
            except (OSError, RuntimeError) as failure:
                # There is no room for a process, a descriptor or a thread.
                self.template_died(f"not started: {described(failure)}")
