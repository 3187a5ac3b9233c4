"""A worker's background duties: the heartbeat on one thread, all others on another.

So no slow duty delays a heartbeat: a healthy worker never looks silent.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Protocol

import psycopg

from wakeboard.alerts.evaluation import RuleEvaluator
from wakeboard.alerts.heartbeat import Heartbeat
from wakeboard.config.settings import Settings
from wakeboard.database.outage_log import MissingTables
from wakeboard.maintenance.retention.policy import RetentionPolicy
from wakeboard.maintenance.retention.sweep import LOOK_SECONDS as RETENTION_SECONDS
from wakeboard.maintenance.retention.sweep import Retention
from wakeboard.queue import types
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.duties.clock import CLOCK_SECONDS, Clock
from wakeboard.runtime.duties.duty_thread import Duty, DutyThread, Numbers, Step
from wakeboard.runtime.duties.indexes import INDEXES_SECONDS, Indexes
from wakeboard.runtime.duties.live_output import LiveOutput
from wakeboard.runtime.duties.notify_check import CHECK_SECONDS, NotifyCheck
from wakeboard.runtime.duties.operations import Operations
from wakeboard.runtime.duties.poll import PollRequest, PollResult, limited_types, poll, write_seen
from wakeboard.runtime.duties.reaper import Reaper
from wakeboard.runtime.duties.statistics_merge import MERGE_SECONDS, StatisticsMerge
from wakeboard.runtime.duties.worker_row import Policies, WorkerRow
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.loop.dispatcher import Dispatcher
from wakeboard.runtime.loop.inbox import Post, StopRequest, WorkCheck, WorkHint
from wakeboard.runtime.processes.memory import resident_bytes
from wakeboard.runtime.worker import Worker
from wakeboard.schedules import code_schedules, scheduler

# How often a worker polls at most; sooner after a duty had something to do.
POLL_SECONDS = 2.0
SOON_SECONDS = 1.0
# A duty runs so much later than it is due, so that the database's clock says that it is.
PUNCTUAL_SECONDS = 0.005
PUBLISH_SECONDS = 60.0
# How long the threads have to end the step under way.
STOP_SECONDS = 2.0
DUE_DUTIES = ("schedule", "pauses", "reap", "operations")
MEMORY_SECONDS = 10.0
LIVE_OUTPUT_SECONDS = 2.0
FORGET_SECONDS = 3600.0
ALERTS_SECONDS = 15.0


class PacedDuty(Protocol):
    """A duty that does its work in parts, or may be due before the usual time."""

    pause_seconds: float | None

    def step(self, connection: psycopg.Connection, /) -> Numbers | None:
        """Do a part. ``pause_seconds`` then says when to continue, None for the usual time."""


class Background:
    """The threads ``heartbeat`` and ``duties`` of one worker.

    ``is_draining``: whether a person drains the worker; ``is_stopping``: whether it stops, as the loop says.
    """

    def __init__(
        self,
        worker: Worker,
        settings: Settings,
        url: str,
        planner: ClaimPlanner,
        dispatcher: Dispatcher,
        notify_check: NotifyCheck,
        post: Post,
    ) -> None:
        """``url``: the database's libpq URL; ``post`` sends messages to the loop from these threads."""
        self._worker = worker
        self._settings = settings
        self._planner = planner
        self._dispatcher = dispatcher
        self._notify_check = notify_check
        self._post = post
        self._poll_seconds = min(worker.heartbeat_seconds, POLL_SECONDS)
        self._publish_at = self._measure_memory_at = 0.0
        self._memory_bytes = 0
        self._beats: Sequence[Callable[[], Beat]] = ()
        self._row = WorkerRow(worker)
        self._live_output = LiveOutput(dispatcher.output_tail)
        self._reaper = Reaper(
            lease_seconds=worker.lease_seconds, heartbeat_seconds=worker.heartbeat_seconds,
            waits_first=not worker.is_tick,
        )  # fmt: skip
        self._clock = Clock(worker.id)
        self._clock_jumps = 0
        self._has_more_fires = False
        self._operations = Operations()
        self._statistics_merge = StatisticsMerge()
        self._retention = Retention(RetentionPolicy.from_settings(settings), worker.id)
        self._alerts = RuleEvaluator("worker", settings)
        self._heartbeat_url = Heartbeat(settings.heartbeat_url)
        # A tick would end before a rebuild does.
        self._indexes = None if worker.is_tick else Indexes(url)
        self.missing_tables = MissingTables()
        self._heartbeat_thread = DutyThread(
            url, self._heartbeat_duties(), name="heartbeat", missing_tables=self.missing_tables
        )
        self._duty_thread = DutyThread(
            url, self._duties(), missing_tables=self.missing_tables, on_reconnect=self._reaper.reconnected,
            # Only a claim from now on proves to a tick that nothing is left: what was due is fired.
            on_first_round=self._post_work_hint,
        )  # fmt: skip
        self._policies: Policies | None = None
        self._registered_policies: Policies | None = None
        self._locked_schedules: Sequence[str] = ()
        self.is_draining = False
        self.is_stopping = False

    @property
    def is_registered(self) -> bool:
        """Whether the worker's row is written; only then it claims."""
        return self._registered_policies is not None

    @property
    def ended_threads(self) -> list[str]:
        """The names of threads that have ended though nobody stopped them."""
        return [thread.name for thread in (self._heartbeat_thread, self._duty_thread) if thread.has_ended]

    @property
    def is_without_tables(self) -> bool:
        """Whether the database was never migrated."""
        return self._heartbeat_thread.is_without_tables or self._duty_thread.is_without_tables

    @property
    def rounds(self) -> int:
        """How often all due duties have run, 0 while due schedules are left to fire."""
        return 0 if self._has_more_fires else self._duty_thread.rounds

    def start(self, beats: Sequence[Callable[[], Beat]]) -> None:
        """Start the threads. ``beats`` return the state of the worker's other loops, from any thread."""
        self._beats = beats
        self._heartbeat_thread.start()
        self._duty_thread.start()

    def stop(self) -> None:
        """End the threads, within two seconds."""
        until = monotonic() + STOP_SECONDS
        for patience in (0.0, STOP_SECONDS):
            for thread in (self._heartbeat_thread, self._duty_thread):
                thread.stop(max(0.0, min(patience, until - monotonic())))
        if self._indexes is not None:
            self._indexes.stop()

    def publish(self, policies: Policies) -> None:
        """Register the worker with these job types as soon as the database answers."""
        self._policies = policies
        self._heartbeat_thread.run_soon("presence")

    def mark_stopped(self, connection: psycopg.Connection) -> None:
        """Write that the worker ended in order."""
        self._row.mark_stopped(connection)

    def _post_work_hint(self) -> None:
        self._post(WorkHint())

    # ---- the duties ---------------------------------------------------------------------------------

    def _heartbeat_duties(self) -> list[Duty]:
        return [
            Duty("presence", self._poll_seconds, self._poll),
            Duty("listen", CHECK_SECONDS, self._notify_check.step, on_demand=True, due_at=math.inf),
        ]

    def _duties(self) -> list[Duty]:
        steps: Sequence[Step] = (
            self._fire,
            types.end_due_pauses,
            self._reap,
            self._paced("operations", self._operations),
        )
        duties = [
            # First: it corrects the times by which the others find what is due.
            Duty("clock", CLOCK_SECONDS, self._correct_clock),
            *(
                Duty(name, self._poll_seconds, self._followed_by_poll(step), on_demand=True)
                for name, step in zip(DUE_DUTIES, steps, strict=True)
            ),
            Duty("statistics", MERGE_SECONDS, self._paced("statistics", self._statistics_merge)),
            Duty("alerts", ALERTS_SECONDS, self._check_alerts),
            Duty("live output", LIVE_OUTPUT_SECONDS, self._write_output),
            Duty("forget", FORGET_SECONDS, self._row.delete_old),
            Duty("retention", RETENTION_SECONDS, self._paced("retention", self._retention)),
        ]
        if self._indexes is not None:
            later = monotonic() + INDEXES_SECONDS
            duties.append(Duty("indexes", INDEXES_SECONDS, self._indexes.step, due_at=later))
        return duties

    def _followed_by_poll(self, step: Step) -> Step:
        """Return ``step`` with a poll soon after it: more may be due by then."""

        def stepped(connection: psycopg.Connection) -> Numbers | None:
            try:
                return step(connection)
            finally:
                self._heartbeat_thread.run_soon("presence", in_seconds=SOON_SECONDS)

        return stepped

    def _paced(self, name: str, duty: PacedDuty) -> Step:
        """Return the step of ``duty``, which runs again when its pause is over."""

        def stepped(connection: psycopg.Connection) -> Numbers | None:
            numbers = duty.step(connection)
            if duty.pause_seconds is not None:
                self._duty_thread.run_soon(name, in_seconds=duty.pause_seconds)
            return numbers

        return stepped

    def _check_alerts(self, connection: psycopg.Connection) -> Numbers:
        """Check the alert rules; runs of type ``alert`` deliver the messages."""
        self._heartbeat_url.step(connection)
        return self._alerts.step(connection)

    def _write_output(self, connection: psycopg.Connection) -> None:
        self._live_output.step(connection, self._dispatcher.in_flight.all())

    def _fire(self, connection: psycopg.Connection) -> Numbers:
        """Fire due schedules; what is left comes after the other duties that are due."""
        settled, had_more = scheduler.settle(connection), self._has_more_fires
        self._has_more_fires = settled.has_more
        if settled.has_more:
            self._duty_thread.run_soon("schedule")
        elif had_more:
            # Only a claim from now on proves to a tick that nothing is left.
            self._post_work_hint()
        return {"due": settled.due}

    def _reap(self, connection: psycopg.Connection) -> Numbers:
        """Take back expired leases; what is left comes after the other duties that are due."""
        counts = self._reaper.step(connection)
        if self._reaper.has_more:
            self._duty_thread.run_soon("reap")
        return counts

    def _correct_clock(self, connection: psycopg.Connection) -> Numbers | None:
        """Correct the times that were written while the database's clock was ahead."""
        if self._reaper.jumps > self._clock_jumps:
            self._clock_jumps = self._reaper.jumps
            self._clock.walk()
        return self._paced("clock", self._clock)(connection)

    # ---- the heartbeat ------------------------------------------------------------------------------

    def _poll(self, connection: psycopg.Connection) -> None:
        """Write that the worker lives, and act on what the poll finds."""
        try:
            self._register(connection)
            request = self._poll_request()
            found = poll(connection, request)
        except Exception:
            # The obstacle may be the poll's alone: the duties run, and the worker is not dead.
            for name in DUE_DUTIES:
                self._duty_thread.run_soon(name)
            with suppress(psycopg.Error):
                write_seen(connection, self._worker.id)
            raise
        if request.payload is not None:
            self._heartbeat_thread.run_soon("listen")
        self._run_due_duties(found)
        if request.wants_work:
            self._post(WorkCheck(found.has_work, found.sent_at))
        if self._registered_policies is not None:
            self._apply_orders(connection, found, self._registered_policies)

    def _register(self, connection: psycopg.Connection) -> None:
        """Write the worker's row and types, when they are new."""
        policies = self._policies
        if policies is None or policies is self._registered_policies:
            return
        is_first = self._registered_policies is None
        # The row comes before the schedules of the code: others look there for who declares which.
        self._row.register(connection, policies)
        self._locked_schedules = code_schedules.sync(connection, policies)
        self._publish_at = monotonic() + PUBLISH_SECONDS
        self._planner.limited_types = limited_types(connection, self._row.job_types)
        self._registered_policies = policies
        if is_first:
            self._post_work_hint()

    def _poll_request(self) -> PollRequest:
        if monotonic() >= self._measure_memory_at:
            self._measure_memory_at = monotonic() + MEMORY_SECONDS
            self._memory_bytes = resident_bytes(os.getpid())
        beats: list[Beat] = []
        if self.is_registered:
            beats = [*self._heartbeat_thread.beats(), *self._duty_thread.beats()]
            beats += [beat() for beat in self._beats]
        return PollRequest(
            self._worker.id, self._row.job_types, len(self._dispatcher.in_flight), self._memory_bytes or None,
            self.is_stopping, beats, wants_work=self._replaces_claims, channel=self._notify_check.channel,
            payload=self._notify_check.next_payload(),
        )  # fmt: skip

    @property
    def _replaces_claims(self) -> bool:
        """Whether an empty poll may replace a claim: it comes as often, and notifications arrive."""
        comes_in_time = self._poll_seconds <= self._worker.poll_seconds < 2 * self._poll_seconds
        claims = self.is_registered and not (self.is_draining or self.is_stopping)
        return comes_in_time and claims and self._notify_check.is_proven

    def _run_due_duties(self, found: PollResult) -> None:
        """Run each duty when it is due; one that is not is healthy."""
        has_jumped = self._reaper.clock_jumped(found.clock, found.sent_at, found.received_at)
        if has_jumped:
            self._duty_thread.run_soon("clock")
        self._clock.note_poll(is_anything_ahead=found.is_anything_ahead)
        due = {
            "schedule": found.fires_in,
            "pauses": found.ends_in,
            "operations": found.steps_in,
            "reap": 0.0 if found.has_expired_leases and not has_jumped else None,
        }
        for name, seconds in due.items():
            if seconds is None or seconds > 0:
                self._duty_thread.mark_healthy(name)
            if seconds is not None and seconds <= self._poll_seconds:
                at = found.sent_at + max(0.0, seconds) + PUNCTUAL_SECONDS
                self._duty_thread.run_soon(name, in_seconds=at - monotonic())

    def _apply_orders(self, connection: psycopg.Connection, found: PollResult, policies: Policies) -> None:
        """Apply what people decided, and write again what somebody deleted."""
        if found.drain is None:
            self._row.insert(connection)
        if found.drain is None or monotonic() >= self._publish_at:
            self._publish_at = monotonic() + PUBLISH_SECONDS
            self._locked_schedules = code_schedules.resync(connection, policies, self._locked_schedules)
            self._row.publish_types(connection, policies)
        self._planner.limited_types = found.limited_types
        self.is_draining = bool(found.drain)
        if found.stop and not self.is_stopping:
            self._post(StopRequest("asked from the dashboard"))
