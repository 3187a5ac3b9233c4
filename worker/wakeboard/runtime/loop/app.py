"""The handlers' module as the worker knows it: which types it can run, why it cannot be imported, and when
its fork server is started again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic

from wakeboard.config import log
from wakeboard.core.text.sanitize import describe_error
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.processes.children import Children
from wakeboard.runtime.worker import Worker

RESTART_PAUSE, BROKEN_APP_PAUSE = 1.0, 30.0
# The death of a fork server that lived for so long says nothing about the next one.
SETTLED_SECONDS = 60.0

Policies = Sequence[Mapping[str, object]]


class App:
    """The handlers' module of one worker, through every fork server that imports it."""

    def __init__(
        self, worker: Worker, children: Children, planner: ClaimPlanner, wanted_types: Sequence[str] | None
    ) -> None:
        """``wanted_types``: the only types to claim, None for all."""
        self._worker = worker
        self._children = children
        self._planner = planner
        self._wanted_types = None if wanted_types is None else set(wanted_types)
        self._restart_at: float | None = None
        self._is_loading = False
        self._started_at, self._pause = monotonic(), RESTART_PAUSE
        self._down_since: float | None = None
        self.is_misused = False

    @property
    def is_down(self) -> bool:
        """Whether there is no fork server: its restart is due later, or it imports the handlers."""
        return self._restart_at is not None or self._is_loading

    @property
    def down_seconds(self) -> float:
        """How long ago the last fork server that could run handlers went; 0.0 while there is one."""
        return 0.0 if self._down_since is None else monotonic() - self._down_since

    def handle_ready(self, policies: Policies) -> Policies:
        """Use the types of a fork server that has imported the module.

        Returns the policies of the types to claim, none when a wanted type is unknown.
        """
        self._is_loading, self._down_since = False, None
        known = {str(policy["name"]) for policy in policies}
        wanted = known if self._wanted_types is None else self._wanted_types
        if unknown := sorted(wanted - known):
            log.warn(f"No handler is registered for {', '.join(unknown)}; known: {', '.join(sorted(known))}.")
            self.is_misused = True
            return []
        chosen = [policy for policy in policies if policy["name"] in wanted]
        self._warn_of_short_leases(chosen)
        self._planner.set_types(chosen)
        return chosen

    def _warn_of_short_leases(self, policies: Policies) -> None:
        """Log which types have a lease shorter than the worker's, which counts instead."""
        # Cron would mail a tick's warning every minute.
        warn = log.defer if self._worker.is_tick else log.warn
        for policy in policies:
            lease_seconds = policy["lease_seconds"]
            if isinstance(lease_seconds, float | int) and lease_seconds < self._worker.lease_seconds:
                warn(
                    "A type's lease is shorter than this worker's (WAKEBOARD_LEASE_SECONDS), which counts.",
                    job_type=policy["name"],
                    lease_seconds=lease_seconds,
                    worker_lease_seconds=self._worker.lease_seconds,
                )

    def handle_failed_import(self, message: str) -> None:
        """End the worker when its first import failed. Later the deploy went wrong: try again."""
        self._is_loading = False
        sentence, _, trace = message.partition("\n")
        log.error(sentence, trace)
        if self._planner.types:
            self._plan_restart(BROKEN_APP_PAUSE, message)
        else:
            self.is_misused = True

    def handle_dead_fork_server(self, how: str) -> None:
        """Plan a restart of the fork server, which is gone with its children; each pause is twice as long."""
        self._is_loading = False
        has_settled = monotonic() - self._started_at > SETTLED_SECONDS
        pause = RESTART_PAUSE if has_settled else self._pause
        self._pause = min(2 * pause, BROKEN_APP_PAUSE)
        log.warn("The fork server died; starting another.", how=how, in_seconds=pause)
        self._plan_restart(pause, how)

    def _plan_restart(self, pause_seconds: float, reason: str) -> None:
        self._down_since = self._down_since or monotonic()
        self._restart_at = monotonic() + pause_seconds
        self._planner.demand.error = reason

    def step(self) -> None:
        """Start another fork server when the pause is over."""
        if self._restart_at is not None and monotonic() >= self._restart_at:
            self._restart_at = None
            self._is_loading, self._started_at = True, monotonic()
            try:
                self._children.start()
            except (OSError, RuntimeError) as failure:
                # There is no room for a process, a descriptor or a thread.
                self.handle_dead_fork_server(f"not started: {describe_error(failure)}")
