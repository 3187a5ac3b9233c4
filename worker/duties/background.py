"""The list of a worker's background duties, and the one that speaks for the worker itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from worker import schedule, statistics
from worker.duties.alerts import ALERTS_SECONDS, Alerts
from worker.duties.hearing import LISTEN_SECONDS
from worker.duties.lease import LeaseKeeper
from worker.duties.live_output import LiveOutput
from worker.duties.presence import Beat, Presence
from worker.duties.reaper import Reaper
from worker.duties.thread import Connection, Duties, Duty
from worker.duties.watchdog import Watchdog
from worker.loop.claims import Claims
from worker.loop.held import Holdings
from worker.retention.keep import Keep
from worker.retention.sweep import LOOK_SECONDS, Retention
from worker.settings import Settings

PRESENCE_SECONDS = 2.0
SCHEDULE_SECONDS = 1.0
REAP_SECONDS = 5.0
MERGE_SECONDS = 60.0
LIVE_OUTPUT_SECONDS = 2.0
FORGET_SECONDS = 3600.0


class Background:
    """Reaping, firing, presence and the rest, on a thread of their own.

    ``registered`` and ``stop_wanted`` are called from that thread when the worker's row stands and when a
    person wants the worker gone; ``listen`` proves that notifications arrive, ``claim_beat`` tells how the
    loop itself stands.
    """

    def __init__(
        self,
        url: str,
        settings: Settings,
        presence: Presence,
        claims: Claims,
        holdings: Holdings,
        lease: LeaseKeeper,
        *,
        read_output: Callable[[int], str],
        waits_before_reaping: bool,
        registered: Callable[[], None],
        stop_wanted: Callable[[], None],
        claim_beat: Callable[[], Beat],
        listen: Callable[[Connection], Mapping[str, Any]],
    ) -> None:
        self._settings = settings
        self._presence = presence
        self._claims = claims
        self._holdings = holdings
        self._lease = lease
        self._registered = registered
        self._stop_wanted = stop_wanted
        self._claim_beat = claim_beat
        self._listen = listen
        self._live_output = LiveOutput(read_output)
        self._reaper = Reaper(
            lease_seconds=settings.lease_seconds, heartbeat_seconds=settings.heartbeat_seconds,
            waits_first=waits_before_reaping,
        )  # fmt: skip
        self._retention = Retention(Keep.from_settings(settings), presence.worker_id)
        self._duties = Duties(url, self._list(), reconnected=self._reaper.reconnected)
        self._policies: Sequence[dict[str, Any]] | None = None
        self.is_registered = False
        self.is_draining = False
        self.is_stopping = False

    @property
    def watchdog(self) -> Watchdog:
        """What the loop looks at, so that a silent database cannot hold the duties for ever."""
        return self._duties.watchdog

    @property
    def rounds(self) -> int:
        """How often the duties have been looked at."""
        return self._duties.rounds

    def start(self) -> None:
        """Start the thread."""
        self._duties.start()

    def stop(self) -> None:
        """End the thread."""
        self._duties.stop()

    def publish(self, policies: Sequence[dict[str, Any]]) -> None:
        """The handlers are known: register the worker as soon as the database answers."""
        self._policies = policies
        self._duties.hurry("presence")

    def _list(self) -> list[Duty]:
        settings = self._settings
        return [
            Duty("presence", min(settings.heartbeat_seconds, PRESENCE_SECONDS), self._be_present),
            Duty("schedule", SCHEDULE_SECONDS, schedule.step),
            Duty("reap", min(REAP_SECONDS, settings.lease_seconds / 2), self._reaper.step),
            Duty("listen", LISTEN_SECONDS, self._listen, due_at=monotonic() + LISTEN_SECONDS / 4),
            Duty("statistics", MERGE_SECONDS, statistics.merge),
            Duty("alerts", ALERTS_SECONDS, Alerts(settings).step),
            Duty("live output", LIVE_OUTPUT_SECONDS, self._show_output),
            Duty("forget", FORGET_SECONDS, self._presence.forget_old),
            Duty("retention", LOOK_SECONDS, self._retain),
        ]

    def _show_output(self, connection: Connection) -> None:
        self._live_output.step(connection, self._holdings.all())

    def _retain(self, connection: Connection) -> Mapping[str, Any]:
        """Remove what was kept for long enough, a slice at a time: the other duties come in between."""
        numbers = self._retention.step(connection)
        if self._retention.pause_seconds is not None:
            self._duties.hurry("retention", in_seconds=self._retention.pause_seconds)
        return numbers

    def _be_present(self, connection: Connection) -> None:
        """Say that the process lives, and hear what people want of it."""
        if self._policies is None:
            return
        if not self.is_registered:
            schedule.sync_registered(connection, self._policies)
            self._presence.register(connection, self._policies)
            self._claims.limited = self._presence.limited_types(connection)
            self.is_registered = True
            self._registered()
            return
        wanted = self._presence.seen(connection, len(self._holdings), is_stopping=self.is_stopping)
        self._presence.publish(connection, self._policies)
        self._claims.limited = self._presence.limited_types(connection)
        self._presence.beat(connection, [*self._duties.beats(), self._claim_beat(), self._lease.beat()])
        self.is_draining = wanted.drain
        if wanted.stop and not self.is_stopping:
            self._stop_wanted()
