"""The list of a worker's background duties, and the one that speaks for the worker itself."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

import psycopg

from wakeboard.alerts.heartbeat import Heartbeat
from wakeboard.alerts.watch import Watch
from wakeboard.config.settings import Settings
from wakeboard.database.outage_log import MissingTables
from wakeboard.maintenance.retention.keep import Keep
from wakeboard.maintenance.retention.sweep import LOOK_SECONDS as RETENTION_SECONDS
from wakeboard.maintenance.retention.sweep import Retention
from wakeboard.queue import pauses
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.duties.clock import CLOCK_SECONDS, Clock
from wakeboard.runtime.duties.duty_thread import Connection, Duties, Duty, Step
from wakeboard.runtime.duties.indexes import INDEXES_SECONDS, Indexes
from wakeboard.runtime.duties.live_output import LiveOutput
from wakeboard.runtime.duties.notify_check import LISTEN_SECONDS, NotifyCheck
from wakeboard.runtime.duties.operations import Operations
from wakeboard.runtime.duties.poll import PollRequest, PollResult, limited, look, say_alive
from wakeboard.runtime.duties.presence import Presence
from wakeboard.runtime.duties.reaper import Reaper
from wakeboard.runtime.duties.statistics_merge import MERGE_SECONDS, StatisticsMerge
from wakeboard.runtime.duties.watchdog import Watchdog
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.loop.in_flight import RunsInFlight
from wakeboard.runtime.loop.inbox import Looked, StopAsked, WorkMayBeDue
from wakeboard.runtime.processes.memory import resident_bytes
from wakeboard.schedules import code_schedules, scheduler

LOOK_SECONDS = 2.0
# While something is due; a fire is known beforehand and needs no look.
SOON_SECONDS = 1.0
# A due duty must not come before the database's clock says so.
PUNCTUAL_SECONDS = 0.005
POLICIES_SECONDS = 60.0
# How long the threads have to end what they are at.
STOP_SECONDS = 2.0
DUE_DUTIES = ("schedule", "pauses", "reap", "operations")
MEMORY_SECONDS = 10.0
LIVE_OUTPUT_SECONDS = 2.0
FORGET_SECONDS = 3600.0


ALERTS_SECONDS = 15.0


class Alerts:
    """The duty of one worker process; what it finds is delivered by runs of type ``alert``."""

    def __init__(self, settings: Settings) -> None:
        self._watch = Watch("worker", settings)
        self._heartbeat = Heartbeat(settings.heartbeat_url)

    def step(self, connection: psycopg.Connection[Any]) -> dict[str, int]:
        """Look once; return how many rules were looked at, fire, and how many messages were written."""
        self._heartbeat.step(connection)
        return self._watch.step(connection)


class Paced(Protocol):
    """Work that is done a part at a time, or may be due before the usual time."""

    pause_seconds: float | None

    def step(self, connection: Connection, /) -> Mapping[str, Any] | None:
        """Do a part of it; ``pause_seconds`` then says when to go on, None for the usual time."""


class HasBeat(Protocol):
    """A loop that tells how it stands, from any thread."""

    def beat(self) -> Beat:
        """Return when it last succeeded, and why not since."""


class Background:
    """The heartbeat, on a thread and a connection of its own; reaping, firing and the rest, on another.

    A heartbeat so waits for no slow duty: a worker that is well never looks silent for one.
    """

    def __init__(
        self,
        url: str,
        settings: Settings,
        presence: Presence,
        claims: ClaimPlanner,
        in_flight: RunsInFlight,
        loops: Sequence[HasBeat],
        hearing: NotifyCheck,
        lack: MissingTables,
        *,
        read_output: Callable[[int], str],
        is_tick: bool,
        tell: Callable[[WorkMayBeDue | Looked | StopAsked], None],
    ) -> None:
        """``loops``: who else tells how it stands; ``hearing`` proves that notifications arrive;
        ``read_output`` returns what a slot's run has printed; ``tell`` leaves word for the loop. Both are
        called from these threads."""
        self._settings = settings
        self._presence = presence
        self._claims = claims
        self._in_flight = in_flight
        self._loops = loops
        self._tell = tell
        self._hearing = hearing
        self._look_seconds = min(settings.heartbeat_seconds, LOOK_SECONDS)
        self._publish_at = self._weigh_at = 0.0
        self._memory_bytes = 0
        self._live_output = LiveOutput(read_output)
        self._reaper = Reaper(
            lease_seconds=settings.lease_seconds, heartbeat_seconds=settings.heartbeat_seconds,
            waits_first=not is_tick,
        )  # fmt: skip
        self._clock = Clock(presence.worker_id)
        self._jumps = 0
        self._has_more_fires = False
        self._operations = Operations()
        self._counting = StatisticsMerge()
        self._retention = Retention(Keep.from_settings(settings), presence.worker_id)
        # A tick ends before a rebuild would.
        self._indexes = None if is_tick else Indexes(url)
        self._heartbeat = Duties(url, self._heartbeats(), name="heartbeat", lack=lack)
        # A claim from before proves to no tick that nothing is left: what was due is fired now.
        self._duties = Duties(
            url, self._list(), lack=lack, reconnected=self._reaper.reconnected, came_round=self._wake
        )
        self._policies: Sequence[dict[str, Any]] | None = None
        self._registered_with: Sequence[dict[str, Any]] | None = None
        self._locked_schedules: Sequence[str] = ()
        self.is_draining = False
        self.is_stopping = False

    @property
    def is_registered(self) -> bool:
        """Whether the worker's row stands: from then on it claims."""
        return self._registered_with is not None

    @property
    def watchdogs(self) -> Sequence[Watchdog]:
        """What the loop looks at, so that a silent database cannot hold the threads for ever."""
        return self._heartbeat.watchdog, self._duties.watchdog

    @property
    def ended_threads(self) -> list[str]:
        """The threads that have ended, though nobody stopped them."""
        return [duties.name for duties in (self._heartbeat, self._duties) if duties.is_gone]

    @property
    def is_without_tables(self) -> bool:
        """Whether the database was never migrated: nothing can be done until it is."""
        return self._heartbeat.is_without_tables or self._duties.is_without_tables

    @property
    def rounds(self) -> int:
        """How often the duties have been looked at since all that was due had been fired, 0 before that."""
        return 0 if self._has_more_fires else self._duties.rounds

    def start(self) -> None:
        """Start the threads."""
        self._heartbeat.start()
        self._duties.start()

    def stop(self) -> None:
        """End the threads."""
        until = monotonic() + STOP_SECONDS
        for patience in (0.0, STOP_SECONDS):
            for duties in (self._heartbeat, self._duties):
                duties.stop(max(0.0, min(patience, until - monotonic())))
        if self._indexes is not None:
            self._indexes.stop()

    def publish(self, policies: Sequence[dict[str, Any]]) -> None:
        """The handlers are known, perhaps anew: register the worker as soon as the database answers."""
        self._policies = policies
        self._heartbeat.hurry("presence")

    def _wake(self) -> None:
        """A claim may bring something now."""
        self._tell(WorkMayBeDue())

    def _heartbeats(self) -> list[Duty]:
        return [
            Duty("presence", self._look_seconds, self._be_present),
            Duty("listen", LISTEN_SECONDS, self._hearing.step, on_demand=True, due_at=math.inf),
        ]

    def _list(self) -> list[Duty]:
        settings, look_seconds = self._settings, self._look_seconds
        steps: Sequence[Step] = (
            self._fire,
            pauses.end_due,
            self._reap,
            self._go_on("operations", self._operations),
        )
        return [
            # First: what is due is found by times that it puts right.
            Duty("clock", CLOCK_SECONDS, self._put_right),
            *(
                Duty(name, look_seconds, self._soon_again(step), on_demand=True)
                for name, step in zip(DUE_DUTIES, steps, strict=True)
            ),
            Duty("statistics", MERGE_SECONDS, self._go_on("statistics", self._counting)),
            Duty("alerts", ALERTS_SECONDS, Alerts(settings).step),
            Duty("live output", LIVE_OUTPUT_SECONDS, self._show_output),
            Duty("forget", FORGET_SECONDS, self._presence.forget_old),
            Duty("retention", RETENTION_SECONDS, self._go_on("retention", self._retention)),
            *self._housekeeping(),
        ]

    def _housekeeping(self) -> list[Duty]:
        """Return what is in no hurry when a worker starts."""
        if self._indexes is None:
            return []
        later = monotonic() + INDEXES_SECONDS
        return [Duty("indexes", INDEXES_SECONDS, self._indexes.step, due_at=later)]

    def _soon_again(self, step: Step) -> Step:
        """Return ``step`` with a look soon after it: what it was hurried for may not have been all."""

        def stepped(connection: Connection) -> Mapping[str, Any] | None:
            try:
                return step(connection)
            finally:
                self._heartbeat.hurry("presence", in_seconds=SOON_SECONDS)

        return stepped

    def _show_output(self, connection: Connection) -> None:
        self._live_output.step(connection, self._in_flight.all())

    def _fire(self, connection: Connection) -> Mapping[str, Any]:
        """Fire what is due; what is left comes after the other duties that are due by then."""
        settled, had_more = scheduler.settle(connection), self._has_more_fires
        self._has_more_fires = settled.has_more
        if settled.has_more:
            self._duties.hurry("schedule")
        elif had_more:
            # A claim from before proves to no tick that nothing is left.
            self._wake()
        return {"due": settled.due}

    def _reap(self, connection: Connection) -> Mapping[str, Any]:
        """Take back ended leases; what is left comes after the other duties that are due by then."""
        counts = self._reaper.step(connection)
        if self._reaper.has_more:
            self._duties.hurry("reap")
        return counts

    def _put_right(self, connection: Connection) -> Mapping[str, Any] | None:
        """Write anew what the database's clock wrote while it was ahead."""
        if self._reaper.jumps > self._jumps:
            self._jumps = self._reaper.jumps
            self._clock.walk()
        return self._go_on("clock", self._clock)(connection)

    def _go_on(self, name: str, work: Paced) -> Step:
        """Return the step of ``work``, the duty ``name``, which comes again when it says so."""

        def stepped(connection: Connection) -> Mapping[str, Any] | None:
            numbers = work.step(connection)
            if work.pause_seconds is not None:
                self._duties.hurry(name, in_seconds=work.pause_seconds)
            return numbers

        return stepped

    def _be_present(self, connection: Connection) -> None:
        """Say that the process lives, hear what people want of it, and see what is due."""
        try:
            self._register(connection)
            asked = self._asked()
            found, before, after = look(connection, self._presence, asked)
        except Exception:
            # What stands in the way of this is in nobody else's, and does not make the worker dead.
            for name in DUE_DUTIES:
                self._duties.hurry(name)
            with suppress(psycopg.Error):
                say_alive(connection, self._presence.worker_id)
            raise
        if asked.proof is not None:
            self._heartbeat.hurry("listen")
        self._see_what_is_due(found, before, after)
        if asked.wants_work:
            self._tell(Looked(found.has_work, before))
        if self._registered_with is not None:
            self._obey(connection, found, self._registered_with)

    def _register(self, connection: Connection) -> None:
        """Write what the worker can run and the worker itself, when that is not how they stand."""
        policies = self._policies
        if policies is None or policies is self._registered_with:
            return
        is_first = self._registered_with is None
        # Then others find who says it, when they ask whether the newest is still said.
        self._presence.register(connection, policies)
        self._locked_schedules = code_schedules.sync(connection, policies)
        self._publish_at = monotonic() + POLICIES_SECONDS
        self._claims.limited = limited(connection, self._presence.job_types)
        self._registered_with = policies
        if is_first:
            self._wake()

    def _asked(self) -> PollRequest:
        if monotonic() >= self._weigh_at:
            self._weigh_at = monotonic() + MEMORY_SECONDS
            self._memory_bytes = resident_bytes(os.getpid())
        beats = (
            [*self._heartbeat.beats(), *self._duties.beats(), *(loop.beat() for loop in self._loops)]
            if self.is_registered
            else []
        )
        return PollRequest(
            len(self._in_flight), self._memory_bytes or None, self.is_stopping, beats,
            wants_work=self._can_stand_for_polls, channel=self._hearing.channel, proof=self._hearing.ask(),
        )  # fmt: skip

    @property
    def _can_stand_for_polls(self) -> bool:
        """Whether a look comes as often as a poll, and a worker that it stands for hears of new runs."""
        comes_in_time = self._look_seconds <= self._settings.poll_seconds < 2 * self._look_seconds
        claims = self.is_registered and not (self.is_draining or self.is_stopping)
        return comes_in_time and claims and self._hearing.is_proven

    def _see_what_is_due(self, found: PollResult, before: float, after: float) -> None:
        """Let each duty come at its time; one that has nothing to do is well."""
        ended = 0.0 if found.has_ended_leases else None
        jumped = self._reaper.clock_jumped(found.clock, before, after)
        if jumped:
            self._duties.hurry("clock")
        self._clock.looked(is_anything_ahead=found.is_anything_ahead)
        due = {
            "schedule": found.fires_in,
            "pauses": found.ends_in,
            "operations": found.steps_in,
            "reap": None if jumped else ended,
        }
        for name, seconds in due.items():
            if seconds is None or seconds > 0:
                self._duties.well(name)
            if seconds is not None and seconds <= self._look_seconds:
                at = before + max(0.0, seconds) + PUNCTUAL_SECONDS
                self._duties.hurry(name, in_seconds=at - monotonic())

    def _obey(self, connection: Connection, found: PollResult, policies: Sequence[dict[str, Any]]) -> None:
        """Take over what people decided, and write again what somebody took away."""
        if found.drain is None:
            self._presence.insert(connection)
        if found.drain is None or monotonic() >= self._publish_at:
            self._publish_at = monotonic() + POLICIES_SECONDS
            self._locked_schedules = code_schedules.resync(connection, policies, self._locked_schedules)
            self._presence.publish(connection, policies)
        self._claims.limited = found.limited
        self.is_draining = bool(found.drain)
        if found.stop and not self.is_stopping:
            self._tell(StopAsked("asked from the dashboard"))
