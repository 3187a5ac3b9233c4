"""The worker process: a loop that collects events, stops runs, writes results and claims runs.

============  =====================================================================================
part          what it does
============  =====================================================================================
claims        ``loop.claimer`` sends what ``loop.claim_planner`` plans
runs          ``loop.in_flight`` has every claimed run; ``loop.limits`` stops it when it must end
children      ``loop.dispatcher`` gives runs to ``processes.children`` and decides what their answers mean
results       ``loop.result_writer`` writes how attempts ended
============  =====================================================================================

One thread drives two libpq connections and the children's sockets without blocking. ``duties.lease`` renews
leases and ``duties.background`` runs the other duties, each on threads and connections of its own; they post
messages to the loop's inbox. Handlers never run in this process.
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
from wakeboard.queue.operator import CANCEL_CHANNEL, WAKE_CHANNEL
from wakeboard.runtime.deadlines import CHILD_OVERRUN_SECONDS
from wakeboard.runtime.duties.background import Background
from wakeboard.runtime.duties.lease import LeaseKeeper
from wakeboard.runtime.duties.notify_check import NotifyCheck
from wakeboard.runtime.loop.app import App
from wakeboard.runtime.loop.claim_planner import ClaimDemand, ClaimPlanner
from wakeboard.runtime.loop.claimer import Claimer
from wakeboard.runtime.loop.connections import LoopConnections
from wakeboard.runtime.loop.dispatcher import Dispatcher
from wakeboard.runtime.loop.in_flight import RunsInFlight
from wakeboard.runtime.loop.inbox import (
    CancelRequest,
    ConnectFailure,
    Inbox,
    LeaseLoss,
    Message,
    NewConnection,
    NotifyTimeout,
    StopRequest,
    WorkCheck,
    WorkHint,
)
from wakeboard.runtime.loop.limits import RunLimits, Shutdown
from wakeboard.runtime.loop.result_writer import ResultWriter
from wakeboard.runtime.processes.children import Children
from wakeboard.runtime.processes.fork_server import Zygote
from wakeboard.runtime.processes.protocol import (
    AppFailure,
    AppTypes,
    AttemptEnd,
    ChildExit,
    Event,
    ForkServerExit,
    Notice,
    SuccessBatch,
)
from wakeboard.runtime.worker import Worker, new_worker_id

# How often limits, connections and the app are checked, and how long an idle loop sleeps at most.
CHECK_SECONDS, IDLE_SECONDS = 0.05, 0.5
FAILED, USE_ERROR = 1, 2
# How many objects are created between two garbage collections. Runs leave no garbage, and each claim of
# hundreds would start several collections.
GARBAGE_OBJECTS = 10_000
# How long a tick waits for a database that does not answer, or for children that do not start, before it
# leaves the work to the next tick.
PATIENCE_SECONDS = 60.0


class Supervisor:
    """One worker process. ``run`` it; ``begin_shutdown`` is what SIGTERM calls."""

    def __init__(
        self,
        worker: Worker,
        settings: Settings,
        *,
        url: str,
        types: Sequence[str] | None = None,
        claim_seconds: float | None = None,
        zygote: Zygote | None = None,
    ) -> None:
        """See ``run``."""
        self._worker = worker
        self._settings = settings
        self._url = url
        self._claim_until = math.inf if claim_seconds is None else monotonic() + claim_seconds
        self._checked_at = 0.0
        self._began_at = self._stepped_at = monotonic()
        self._exit_code: int | None = None
        self._shutdown = Shutdown(settings.shutdown_seconds, settings.kill_seconds)
        self._inbox = Inbox()
        self._selector = selectors.DefaultSelector()
        post = self._inbox.post
        self._notify_check = NotifyCheck(worker, post)
        channels = (WAKE_CHANNEL, CANCEL_CHANNEL, self._notify_check.channel)
        self._connections = LoopConnections(url, self._selector, post, channels)
        self._in_flight = RunsInFlight()
        self._children = Children(
            worker.concurrency, app=settings.app, child_exit_seconds=settings.child_exit_seconds,
            environment=settings.environment_variables() | {"WAKEBOARD_DATABASE_URL": url},
            zygote=zygote,
        )  # fmt: skip
        self._limits = RunLimits(
            self._children, self._in_flight, worker.concurrency, kill_seconds=settings.kill_seconds
        )
        self._demand = ClaimDemand(is_tick=worker.is_tick)
        planner = ClaimPlanner(worker.concurrency, self._demand)
        self._writer = ResultWriter(self._connections.finish, self._in_flight, planner, worker.id)
        self._dispatcher = Dispatcher(worker, self._children, self._in_flight, planner, self._writer)
        self._app = App(worker, self._children, planner, types)
        self._background = Background(
            worker, settings, url, planner, self._dispatcher, self._notify_check, post
        )
        self._claimer = Claimer(
            worker, self._connections.claim, planner, self._dispatcher, self._writer,
            self._background.missing_tables,
        )  # fmt: skip
        self._lease = LeaseKeeper(
            url, worker, self._in_flight, loop_silent_seconds=lambda: monotonic() - self._stepped_at,
            progress=self._dispatcher.progress, post=post,
        )  # fmt: skip

    # ---- the loop -----------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop, or until no work is left; return the exit code."""
        self._start()
        try:
            while self._exit_code is None:
                self.step(self._sleep_seconds())
            return self._exit_code
        finally:
            self._end()

    def step(self, timeout_seconds: float) -> None:
        """Wait for events at most ``timeout_seconds``, then handle them, check limits, write and claim."""
        self._stepped_at = monotonic()
        self._connections.watch_writing()
        for key, _ in self._selector.select(timeout_seconds):
            key.data()
        for event in self._children.collect():
            self._handle_event(event)
        for channel, payload in self._connections.notifications():
            self._handle_notification(channel, payload)
        for message in self._inbox.messages():
            self._handle_message(message)
        if monotonic() - self._checked_at >= CHECK_SECONDS:
            self._check()
        self._write_and_claim()
        self._set_exit_code()
        log.flush()

    def _sleep_seconds(self) -> float:
        """Return how long the loop may wait for events: briefly while runs are in flight."""
        if len(self._in_flight) or self._shutdown.has_begun or not self._writer.is_clear:
            waits = self._writer.seconds_to_send, self._claimer.seconds_to_gather
            return min(seconds or CHECK_SECONDS for seconds in waits)
        return max(CHECK_SECONDS, min(IDLE_SECONDS, self._claimer.seconds_to_claim))

    def _write_and_claim(self) -> None:
        """Send the next statement on each connection that is free."""
        deferred = self._writer.deferred
        self._claimer.may_claim = may_claim = self._may_claim()
        if not may_claim:
            self._claimer.give_back_overdue()
            deferred.flush()
        self._writer.step()
        if may_claim:
            self._claimer.step(self._background.rounds)
            if not (self._claimer.is_active and deferred.may_wait) and deferred.flush():
                self._writer.step()
        elif not self._app.is_down:
            if self._shutdown.has_begun:
                # The end waits for no further statement.
                self._claimer.mark_healthy()
            else:
                self._claimer.stand_down()

    def _may_claim(self) -> bool:
        return (
            self._background.is_registered
            and not (self._background.is_draining or self._shutdown.has_begun)
            and not self._app.is_down
            and not self._lease.is_failing
            and monotonic() < self._claim_until
        )

    def _set_exit_code(self) -> None:
        """Set the exit code when no work is left, or no time to do it."""
        if self._exit_code is not None:
            return
        is_clear = not len(self._in_flight) and self._writer.is_clear
        if self._app.is_misused:
            self._exit_code = USE_ERROR
        elif self._shutdown.has_begun:
            if (is_clear and self._claimer.is_quiet) or self._shutdown.is_over:
                self._exit_code = 0
        elif self._worker.is_tick and is_clear:
            self._exit_code = self._tick_exit_code()

    def _tick_exit_code(self) -> int | None:
        """Return the exit code of a tick that has no run in flight, None while there may be work."""
        if self._background.is_without_tables:
            # A thread has logged it. Another worker waits for the migration; a tick leaves that to the next
            # one.
            return FAILED
        is_over = self._background.is_draining or monotonic() >= self._claim_until
        if self._claimer.is_drained or (is_over and self._claimer.is_quiet):
            if self._background.is_registered:
                return 0
            log.warn(
                "The time of --for was over before this tick had loaded its handlers and registered: "
                "it ran nothing, and the work is left to the next one. Give --for more seconds."
            )
            return FAILED
        if not self._background.is_registered and monotonic() - self._began_at >= PATIENCE_SECONDS:
            log.warn(
                f"No database would have this tick for {PATIENCE_SECONDS:.0f} s: nothing was fired or "
                "run, and the work is left to the next one."
            )
            return FAILED
        if max(self._demand.blocked_seconds, self._app.down_seconds) >= PATIENCE_SECONDS:
            log.warn(f"Nothing could be run for {PATIENCE_SECONDS:.0f} s: the work is left to the next tick.")
            return FAILED
        return None

    # ---- start and end ------------------------------------------------------------------------------

    def _start(self) -> None:
        self._inbox.register(self._selector)
        self._children.register(self._selector, lambda: None)
        signal.set_wakeup_fd(self._inbox.wakeup_fd, warn_on_full_buffer=False)
        for number in stop_signals.ENDS:
            signal.signal(number, self._handle_signal)
        stop_signals.set_no_action(signal.SIGHUP)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._children.start()
        self._lease.start()
        self._background.start((self._claimer.beat, self._writer.beat, self._lease.beat))
        # Cron mails whatever a tick prints: one that finds nothing to do prints nothing.
        write = log.defer if self._worker.is_tick else log.note
        worker = self._worker
        write("Worker started.", worker_id=worker.id, slots=worker.concurrency, app=self._settings.app)
        if stop_signals.is_stop_requested():
            self.begin_shutdown("asked while it started")

    def _handle_signal(self, number: int, _frame: object) -> None:
        """Only post a message: the loop may be writing its log, which is not reentrant."""
        self._inbox.post(StopRequest(signal.Signals(number).name))

    def _end(self) -> None:
        """End the children first, then threads and connections."""
        self._notify_check.stop()
        seconds = self._settings.child_exit_seconds + CHILD_OVERRUN_SECONDS
        self._children.end_idle_and_wait(min(seconds, self._shutdown.seconds_left))
        for event in self._children.collect():
            if isinstance(event, Notice):
                self._handle_event(event)
        self._children.kill_all()
        self._lease.stop()
        self._background.stop()
        self._write_end()
        self._connections.close()
        signal.set_wakeup_fd(-1)
        stop_signals.ignore()
        if self._exit_code == 0 and log.drop_deferred():
            return
        left_running = len(self._in_flight) or None
        log.note("Worker stopped.", worker_id=self._worker.id, left_running=left_running)

    def _write_end(self) -> None:
        """Write that the worker ended, unless the database is silent: it would take five more seconds."""
        if not (self._background.is_registered and self._connections.are_free):
            return
        try:
            with connect(self._url, name="wakeboard goodbye", statement_timeout_seconds=2) as connection:
                self._background.mark_stopped(connection)
        except (DatabaseError, psycopg.Error) as failure:
            log.warn("The worker's end could not be noted.", error=str(failure)[:200])

    def begin_shutdown(self, reason: str) -> None:
        """Stop claiming and let runs end until the deadline. A second call ends their grace."""
        if self._shutdown.begin():
            self._dispatcher.is_stopping = self._background.is_stopping = True
            log.note("Stopping: no more claims.", why=reason, running=len(self._in_flight))

    # ---- events -------------------------------------------------------------------------------------

    def _handle_message(self, message: Message) -> None:
        match message:
            case NewConnection(connection, channel):
                self._connections.adopt(connection, channel)
                if connection is self._connections.claim:
                    self._notify_check.handle_new_connection(is_pooled=connection.is_pooled)
                    self._claimer.handle_new_connection()
            case ConnectFailure(connection, reason, is_final):
                connection.fail(reason)
                if is_final and not self._background.is_registered:
                    # Nothing was claimed here yet, so nothing is lost.
                    self._exit_code = USE_ERROR
            case CancelRequest(run_id, lease_epoch):
                self._limits.cancel(run_id, lease_epoch)
            case LeaseLoss(run_id, lease_epoch):
                self._limits.mark_lost(run_id, lease_epoch)
            case WorkHint():
                self._demand.wake()
            case WorkCheck(has_work, checked_at):
                self._claimer.handle_poll(has_work, checked_at)
            case StopRequest(reason):
                self.begin_shutdown(reason)
            case NotifyTimeout():
                if self._notify_check.is_waiting:
                    self._connections.renew_listener()

    def _handle_notification(self, channel: str, payload: str) -> None:
        """Handle a notification; whoever may connect to the database may have sent it."""
        if channel == WAKE_CHANNEL:
            self._demand.wake()
        elif channel == self._notify_check.channel:
            self._notify_check.receive(payload)
        elif channel == CANCEL_CHANNEL and _is_id(payload) and self._in_flight.has(int(payload)):
            self._lease.wake()

    def _handle_event(self, event: Event) -> None:
        """Handle what a child or the fork server did."""
        match event:
            case SuccessBatch():
                self._dispatcher.handle_returned(event)
            case AttemptEnd():
                self._dispatcher.handle_finished(event)
            case ChildExit():
                self._dispatcher.handle_died(event)
            case AppTypes(types):
                if policies := self._app.handle_ready(types):
                    self._background.publish(policies)
            case AppFailure(message):
                self._app.handle_failed_import(message)
            case ForkServerExit(text):
                self._app.handle_dead_fork_server(text)
            case Notice(message):
                log.warn(message)

    # ---- what time brings ---------------------------------------------------------------------------

    def _check(self) -> None:
        """Check connections, threads, limits of runs, the fork server and the shutdown's deadlines."""
        self._checked_at = monotonic()
        self._connections.check()
        self._end_without_threads()
        self._limits.step()
        self._dispatcher.step()
        if not self._shutdown.has_begun:
            self._app.step()
        else:
            self._children.end_idle()
        if self._shutdown.must_kill:
            self._limits.kill_all()
        elif self._shutdown.must_interrupt:
            self._limits.terminate_all()

    def _end_without_threads(self) -> None:
        """End the worker when a thread that it needs cannot be kept alive.

        Nobody would renew its leases, or write that it lives. A new process can do so in its place.
        """
        ended = [*(["lease"] if self._lease.has_ended else []), *self._background.ended_threads]
        if ended and self._exit_code is None:
            log.warn(
                "A thread that this worker cannot do without does not stay alive, so the worker ends: others "
                "take its runs over when their leases end. Start it again.",
                thread=", ".join(ended), running=len(self._in_flight) or None,
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
    zygote: Zygote | None = None,
) -> int:
    """Run a worker in this process until it is told to stop. It installs signal handlers.

    Args:
        settings: The worker's settings.
        url: The database's libpq URL.
        types: The only job types to claim, None for all.
        name: The worker's name, which need not be unique.
        until_drained: Whether to return when no work is due.
        claim_seconds: After so many seconds nothing more is claimed; what runs is waited for.
        zygote: The process that becomes the first fork server.

    Returns the exit code.
    """
    gc.set_threshold(GARBAGE_OBJECTS)
    worker = Worker(
        new_worker_id(name), name, settings.concurrency, settings.lease_seconds, settings.heartbeat_seconds,
        settings.poll_seconds, is_tick=until_drained,
    )  # fmt: skip
    supervisor = Supervisor(
        worker, settings, url=url, types=types, claim_seconds=claim_seconds, zygote=zygote
    )
    return supervisor.run()
