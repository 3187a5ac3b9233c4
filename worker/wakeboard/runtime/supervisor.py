"""The worker: a dumb loop around the moves. Hear → watch → record → claim; reaping and firing go on beside.

One thread drives two libpq connections and the children's sockets without blocking. Leases are renewed by
``lease``, background duties run in ``background``, each with a thread and a connection of its own; both
speak to the loop through its inbox. Handlers never run in this process.
"""

from __future__ import annotations

import gc
import math
import selectors
import signal
from collections.abc import Sequence
from time import monotonic

import psycopg

from wakeboard.config import log, stop_signals
from wakeboard.config.settings import Settings
from wakeboard.database.db import DatabaseError, connect
from wakeboard.database.outage_log import MissingTables
from wakeboard.queue.operator import CANCEL_CHANNEL, WAKE_CHANNEL
from wakeboard.runtime.duties.background import Background
from wakeboard.runtime.duties.lease import CancelAsked, LeaseKeeper, LeaseTaken
from wakeboard.runtime.duties.notify_check import NotifyCheck
from wakeboard.runtime.duties.presence import Presence, new_worker_id
from wakeboard.runtime.loop.app import App
from wakeboard.runtime.loop.claim_state import ClaimState
from wakeboard.runtime.loop.claimer import Claimer
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.loop.connections import Connected, LoopConnections, NotConnected
from wakeboard.runtime.loop.in_flight import RunsInFlight
from wakeboard.runtime.loop.inbox import HearsNothing, Inbox, Looked, StopAsked, WorkMayBeDue
from wakeboard.runtime.loop.limits import Limits
from wakeboard.runtime.loop.shutdown import Shutdown
from wakeboard.runtime.loop.slots import Slots
from wakeboard.runtime.loop.deferred_results import DeferredResults
from wakeboard.runtime.loop.result_writer import ResultWriter
from wakeboard.runtime.processes.children import Children
from wakeboard.runtime.processes.events import (
    AppFailed,
    Died,
    Event,
    Finished,
    Ready,
    Returned,
    TemplateDied,
    Warned,
)
from wakeboard.runtime.processes.zygote import Zygote

WATCH_SECONDS, RESTING_SECONDS = 0.05, 0.5
CUT_SECONDS = 0.25
FAILED, USE_ERROR = 1, 2
# Between two looks for garbage: runs leave none, and each claim of hundreds would have set off several.
GARBAGE_OBJECTS = 10_000
# How long a tick waits for a database that does not answer, or for handlers' processes that do not start,
# before it leaves the work to the next one.
PATIENCE_SECONDS = 60.0


class Supervisor:
    """One worker process. Build it, ``run()`` it; ``stop()`` is what SIGTERM calls."""

    def __init__(
        self,
        settings: Settings,
        *,
        url: str,
        types: Sequence[str] | None = None,
        name: str | None = None,
        until_drained: bool = False,
        claim_seconds: float | None = None,
        firstborn: Zygote | None = None,
    ) -> None:
        """``types``: claim these only; ``until_drained``: return when nothing is due; ``claim_seconds``: stop
        claiming after so long (what runs is waited for); ``firstborn``: what becomes the first template."""
        self._settings = settings
        self._url = url
        self._until_drained = until_drained
        self._claims_end = math.inf if claim_seconds is None else monotonic() + claim_seconds
        self.worker_id = new_worker_id(name)
        self._inbox = Inbox()
        self._selector = selectors.DefaultSelector()
        self._watched_at = 0.0
        self._began_at = self._stepped_at = monotonic()
        self._shutdown = Shutdown(settings.shutdown_seconds, settings.kill_seconds)
        self._exit_code: int | None = None
        self._build(name, types, firstborn)

    def _build(self, name: str | None, types: Sequence[str] | None, firstborn: Zygote | None) -> None:
        """Make the parts and tie them together."""
        settings, url, me, tell = self._settings, self._url, self.worker_id, self._inbox.tell
        lease_seconds, poll_seconds = settings.lease_seconds, settings.poll_seconds
        environment = settings.environment_variables() | {"WAKEBOARD_DATABASE_URL": url}
        missing_tables = MissingTables()
        self._in_flight = RunsInFlight()
        self._children = Children(
            settings.concurrency, app=settings.app, environment=environment, firstborn=firstborn,
            exit_seconds=settings.child_exit_seconds,
        )  # fmt: skip
        self._claims = ClaimPlanner(settings.concurrency)
        self._claim_state = ClaimState(is_tick=self._until_drained)
        self._limits = Limits(
            self._children, self._in_flight, settings.concurrency, kill_seconds=settings.kill_seconds
        )
        self._hearing = NotifyCheck(me, poll_seconds=poll_seconds, tell=tell)
        listens = (WAKE_CHANNEL, CANCEL_CHANNEL, self._hearing.channel)
        self._connections = LoopConnections(url, self._selector, tell, listens)
        self._writer = ResultWriter(self._connections.finish, self._in_flight, self._claims, self._claim_state, me)
        self._turnover = DeferredResults(self._writer, self._claims, self._claim_state)
        self._slots = Slots(
            self._children, self._in_flight, self._claims, self._claim_state, self._turnover, self._writer,
            worker_id=me, lease_seconds=lease_seconds,
        )  # fmt: skip
        self._claimer = Claimer(
            self._connections.claim, self._claims, self._claim_state, self._slots, self._in_flight,
            self._turnover, self._writer, worker_id=me, lease_seconds=lease_seconds,
            poll_seconds=poll_seconds, lack=missing_tables,
        )  # fmt: skip
        self._lease = LeaseKeeper(
            url, me, self._in_flight, heartbeat_seconds=settings.heartbeat_seconds, poll_seconds=poll_seconds,
            patience_seconds=lease_seconds, loop_silent_seconds=lambda: monotonic() - self._stepped_at,
            progress=self._slots.progress, tell=tell,
        )  # fmt: skip
        self._presence = Presence(
            me, name=name, concurrency=settings.concurrency, heartbeat_seconds=settings.heartbeat_seconds,
            lease_seconds=lease_seconds, is_tick=self._until_drained,
        )  # fmt: skip
        self._background = Background(
            url, settings, self._presence, self._claims, self._in_flight,
            (self._claimer, self._writer, self._lease), self._hearing, missing_tables,
            read_output=self._slots.tail, is_tick=self._until_drained, tell=tell,
        )  # fmt: skip
        self._app = App(
            self._children, self._claims, self._claim_state, wanted_types=types, lease_seconds=lease_seconds,
            is_tick=self._until_drained,
        )  # fmt: skip

    # ---- the loop -----------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop (or drained); return the exit code."""
        self._start()
        try:
            while self._exit_code is None:
                self.step(self._pause_seconds())
            return self._exit_code
        finally:
            self._end()

    def step(self, timeout_seconds: float) -> None:
        """Wait for something to happen, at most ``timeout_seconds``, then hear, watch, record and claim."""
        self._stepped_at = monotonic()
        self._connections.watch_writing()
        for key, _ in self._selector.select(timeout_seconds):
            key.data()
        for event in self._children.collect():
            self._hear(event)
        for channel, payload in self._connections.notifications():
            self._notified(channel, payload)
        for message in self._inbox.messages():
            self._read(message)
        if monotonic() - self._watched_at >= WATCH_SECONDS:
            self._watch()
        self._claimer.may_claim = may_claim = self._may_claim()
        if not may_claim:
            self._claimer.give_back_overdue()
            self._turnover.let_go()
        self._writer.step()
        if may_claim:
            self._claimer.step(self._background.rounds)
            if not (self._claimer.is_at_it and self._turnover.may_wait) and self._turnover.let_go():
                self._writer.step()
        elif not self._app.is_down:
            if self._shutdown.has_begun:
                # A stop waits for no statement more.
                self._claimer.well()
            else:
                self._claimer.rest()
        self._decide_end()
        log.flush()

    def _pause_seconds(self) -> float:
        """Return how long the loop may sleep: briefly while something runs, else until the next poll."""
        if len(self._in_flight) or self._shutdown.has_begun or not self._writer.is_clear:
            waits = self._writer.seconds_to_send, self._claimer.seconds_to_gather
            return min(seconds or WATCH_SECONDS for seconds in waits)
        return max(WATCH_SECONDS, min(RESTING_SECONDS, self._claimer.seconds_to_poll))

    def _may_claim(self) -> bool:
        return (
            self._background.is_registered
            and not (self._background.is_draining or self._shutdown.has_begun)
            and not self._app.is_down
            and not self._lease.is_failing
            and monotonic() < self._claims_end
        )

    def _decide_end(self) -> None:
        """Set the exit code when there is nothing left to do, or no time left to do it."""
        if self._exit_code is not None:
            return
        is_clear = not len(self._in_flight) and self._writer.is_clear
        if self._app.is_misused:
            self._exit_code = USE_ERROR
        elif self._shutdown.has_begun:
            if (is_clear and self._claimer.is_quiet) or self._shutdown.is_over:
                self._exit_code = 0
        elif self._until_drained and is_clear:
            if self._background.is_without_tables:
                # Said by whoever met it. A worker waits for the migration, a tick has a successor.
                self._exit_code = FAILED
                return
            is_over = self._background.is_draining or monotonic() >= self._claims_end
            if self._claimer.is_drained or (is_over and self._claimer.is_quiet):
                self._exit_code = 0
                if not self._background.is_registered:
                    log.warn(
                        "The time of --for was over before this tick had loaded its handlers and registered: "
                        "it ran nothing, and the work is left to the next one. Give --for more seconds."
                    )
                    self._exit_code = FAILED
            elif not self._background.is_registered and monotonic() - self._began_at >= PATIENCE_SECONDS:
                log.warn(
                    f"No database would have this tick for {PATIENCE_SECONDS:.0f} s: nothing was fired or "
                    "run, and the work is left to the next one."
                )
                self._exit_code = FAILED
            elif max(self._claim_state.hindered_seconds, self._app.lacking_seconds) >= PATIENCE_SECONDS:
                log.warn(
                    f"Nothing could be run for {PATIENCE_SECONDS:.0f} s: the work is left to the next tick."
                )
                self._exit_code = FAILED

    # ---- beginning and end --------------------------------------------------------------------------

    def _start(self) -> None:
        self._inbox.register(self._selector)
        self._children.register(self._selector, lambda: None)
        signal.set_wakeup_fd(self._inbox.rope, warn_on_full_buffer=False)
        for number in stop_signals.ENDS:
            signal.signal(number, self._on_signal)
        stop_signals.outlast(signal.SIGHUP)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._children.start()
        self._lease.start()
        self._background.start()
        slots, app = self._settings.concurrency, self._settings.app
        # Cron mails whatever a tick prints: one that finds nothing to do prints nothing.
        say = log.hold if self._until_drained else log.note
        say("Worker started.", worker_id=self.worker_id, slots=slots, app=app)
        if stop_signals.was_asked():
            self.stop("asked while it started")

    def _on_signal(self, number: int, _frame: object) -> None:
        """Only take note: the loop may be in the middle of writing its log, which is not reentrant."""
        self._inbox.tell(StopAsked(signal.Signals(number).name))

    def _end(self) -> None:
        """Leave nothing behind: children first, then threads and connections."""
        self._hearing.stop()
        # A moment more than they have, to hear of those that took too long.
        seconds = self._settings.child_exit_seconds + CUT_SECONDS
        self._children.end_in_order(min(seconds, self._shutdown.seconds_left))
        for event in self._children.collect():
            if isinstance(event, Warned):
                self._hear(event)
        self._children.stop()
        self._lease.stop()
        self._background.stop()
        self._say_goodbye()
        self._connections.close()
        signal.set_wakeup_fd(-1)
        stop_signals.end()
        if self._exit_code == 0 and log.drop_held():
            return
        log.note("Worker stopped.", worker_id=self.worker_id, left_running=len(self._in_flight) or None)

    def _say_goodbye(self) -> None:
        # A database that does not answer would take another five seconds to say so.
        if not (self._background.is_registered and self._connections.are_free):
            return
        try:
            with connect(self._url, name="wakeboard goodbye", statement_timeout_seconds=2) as connection:
                self._presence.stopped(connection)
        except (DatabaseError, psycopg.Error) as failure:
            log.warn("The worker's end could not be noted.", error=str(failure)[:200])

    def stop(self, why: str = "asked") -> None:
        """Stop claiming; let what runs end until the deadline. A second call hurries."""
        if self._shutdown.begin():
            self._slots.is_stopping = self._background.is_stopping = True
            log.note("Stopping: no more claims.", why=why, running=len(self._in_flight))

    # ---- hearing ------------------------------------------------------------------------------------

    def _read(self, message: object) -> None:
        match message:
            case Connected(connection, channel):
                self._connections.connected(connection, channel)
                if connection is self._connections.claim:
                    self._hearing.connected(is_pooled=connection.is_pooled)
                    self._claimer.connected()
            case NotConnected(connection, reason, is_final):
                connection.failed(reason)
                if is_final and not self._background.is_registered:
                    # Nothing was claimed here yet, so nothing is lost.
                    self._exit_code = USE_ERROR
            case CancelAsked(run_id, lease_epoch):
                self._limits.cancel(run_id, lease_epoch)
            case LeaseTaken(run_id, lease_epoch):
                self._limits.lost(run_id, lease_epoch)
            case WorkMayBeDue():
                self._claim_state.wake()
            case Looked(has_work, asked_at):
                self._claimer.looked(has_work, asked_at)
            case StopAsked(why):
                self.stop(why)
            case HearsNothing():
                if self._hearing.is_waiting:
                    self._connections.listen_anew()

    def _notified(self, channel: str, payload: str) -> None:
        """Take in a notification; whoever may connect to the database may send one."""
        if channel == WAKE_CHANNEL:
            self._claim_state.wake()
        elif channel == self._hearing.channel:
            self._hearing.heard(payload)
        elif channel == CANCEL_CHANNEL and _is_id(payload) and self._in_flight.has(int(payload)):
            # A person may want this run to stop.
            self._lease.look()

    def _hear(self, event: Event) -> None:
        """Take in what the children say."""
        match event:
            case Returned():
                self._slots.returned(event)
            case Finished():
                self._slots.finished(event)
            case Died():
                self._slots.died(event)
            case Ready(types):
                if policies := self._app.ready(types):
                    self._background.publish(policies)
            case AppFailed(message):
                self._app.failed(message)
            case TemplateDied(text):
                self._app.template_died(text)
            case Warned(message):
                log.warn(message)

    # ---- watching -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look at what time brings: lost connections, limits of runs, restarts, the shutdown deadline."""
        self._watched_at = monotonic()
        self._connections.look()
        for watchdog in (self._lease.watchdog, *self._background.watchdogs):
            if watchdog.check():
                log.warn("The database has not answered a thread for too long; its connection was shut.")
        self._leave_without_threads()
        self._limits.step()
        self._slots.step()
        if not self._shutdown.has_begun:
            self._app.step()
        else:
            self._children.let_go()
        if self._shutdown.must_kill:
            self._limits.stop_all(kill=True)
        elif self._shutdown.must_interrupt:
            self._limits.stop_all(kill=False)

    def _leave_without_threads(self) -> None:
        """End the worker when a thread that it cannot do without can not be kept alive.

        Nobody renews its leases then, or says that it lives: another process can, in its place.
        """
        lost = [*(["lease"] if self._lease.is_lost else []), *self._background.ended_threads]
        if lost and self._exit_code is None:
            log.warn(
                "A thread that this worker cannot do without does not stay alive, so the worker ends: others "
                "take its runs over when their leases end. Start it again.",
                thread=", ".join(lost), running=len(self._in_flight) or None,
            )  # fmt: skip
            self._exit_code = FAILED


def _is_id(payload: str) -> bool:
    return payload.isascii() and payload.isdigit() and len(payload) < 20


def run(
    settings: Settings,
    *,
    url: str,
    types: Sequence[str] | None = None,
    name: str | None = None,
    until_drained: bool = False,
    claim_seconds: float | None = None,
    firstborn: Zygote | None = None,
) -> int:
    """Run a worker in this process until it is told to stop; return the exit code.

    ``url`` is the database's libpq URL. See ``Supervisor`` for the rest. Installs signal handlers, and has
    Python look for garbage less often.
    """
    gc.set_threshold(GARBAGE_OBJECTS)
    supervisor = Supervisor(
        settings, url=url, types=types, name=name, until_drained=until_drained, claim_seconds=claim_seconds,
        firstborn=firstborn,
    )  # fmt: skip
    return supervisor.run()
