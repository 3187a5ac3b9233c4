"""The worker: a dumb loop around the moves. Hear → watch → record → claim; reaping and firing go on beside.

One thread drives two libpq connections and the children's sockets without blocking. Leases are renewed by
``lease``, background duties run in ``background``, each with a thread and a connection of its own; both
speak to the loop through its inbox. Handlers never run in this process.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import sys
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

import psycopg

from worker import log
from worker.db import DatabaseError, connect
from worker.duties.background import Background
from worker.duties.hearing import Hearing
from worker.duties.lease import CancelAsked, LeaseKeeper, LeaseLost
from worker.duties.presence import Presence, new_worker_id
from worker.loop.channel import Channel, ChannelLost
from worker.loop.claimer import Claimer
from worker.loop.claims import Claims
from worker.loop.held import Held, Holdings
from worker.loop.limits import Limits
from worker.loop.line import Connected, Line, NotConnected
from worker.loop.slots import Slots
from worker.loop.writer import Writer, log_end
from worker.processes.children import Children
from worker.processes.events import AppFailed, Died, Event, Finished, Ready, Returned, TemplateDied, Warned
from worker.processes.firstborn import Firstborn
from worker.settings import Settings
from worker.transitions.operator import CANCEL_CHANNEL, WAKE_CHANNEL

WATCH_SECONDS, RESTING_SECONDS = 0.05, 0.5
RESTART_PAUSE, BROKEN_APP_PAUSE = 1.0, 30.0
# Between two proofs of hearing, so that the second failure in a row finds a silent claim.
SILENT_CLAIM_SECONDS = 7.0
# What the last writes and the end of the process take off the shutdown time.
LAST_WRITES_SECONDS = 1.0
EXIT_SECONDS = 0.4
STOPS = (signal.SIGTERM, signal.SIGINT)
FAILED, USE_ERROR = 1, 2
# Between two looks for garbage: runs leave none, and each claim of hundreds would have set off several.
GARBAGE_OBJECTS = 10_000
# How long a tick waits for a database that does not answer, before it leaves the work to the next one.
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
        firstborn: Firstborn | None = None,
    ) -> None:
        """``types``: claim these only; ``until_drained``: return when nothing is due; ``claim_seconds``: stop
        claiming after so long (what runs is waited for); ``firstborn``: what becomes the first template."""
        self._settings = settings
        self._url = url
        self._wanted_types = None if types is None else set(types)
        self._until_drained = until_drained
        self._claims_end = None if claim_seconds is None else monotonic() + claim_seconds
        self.worker_id = new_worker_id(name)
        self._inbox: deque[Any] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._watched_at = 0.0
        self._began_at = self._stepped_at = monotonic()
        self._restart_at: float | None = None
        self._stop_at: float | None = None
        self._exit_code: int | None = None
        self._build(name, firstborn)

    def _build(self, name: str | None, firstborn: Firstborn | None) -> None:
        """Make the parts and tie them together."""
        settings, url, me = self._settings, self._url, self.worker_id
        lease_seconds, poll_seconds = settings.lease_seconds, settings.poll_seconds
        environment = settings.environment_variables() | {"WAKEBOARD_DATABASE_URL": url}
        self._holdings = Holdings()
        self._children = Children(
            settings.concurrency, app=settings.app, environment=environment, firstborn=firstborn
        )
        self._claims = Claims(settings.concurrency)
        self._limits = Limits(
            self._children, self._holdings, settings.concurrency, kill_seconds=settings.kill_seconds
        )
        self._hearing = Hearing(
            me, poll_seconds=poll_seconds, listen_anew=lambda: self._tell(self._listen_anew)
        )
        listens = (WAKE_CHANNEL, CANCEL_CHANNEL, self._hearing.channel)
        self._claim_line = Line(url, "claim", self._tell, listens=listens)
        self._finish_line = Line(url, "finish", self._tell)
        self._writer = Writer(self._finish_line, self._holdings, me, wrote=self._wrote)
        self._slots = Slots(
            self._children, self._holdings, self._claims, worker_id=me, lease_seconds=lease_seconds,
            ended=self._writer.add, succeeded=self._writer.add_succeeded, committed=self._committed,
            pause=lambda seconds: self._claimer.pause(seconds),
        )  # fmt: skip
        self._lease = LeaseKeeper(
            url, me, self._holdings, heartbeat_seconds=settings.heartbeat_seconds, poll_seconds=poll_seconds,
            patience_seconds=lease_seconds, loop_silent_seconds=lambda: monotonic() - self._stepped_at,
            progress=self._slots.progress, tell=self._tell,
        )  # fmt: skip
        self._presence = Presence(
            me, name=name, concurrency=settings.concurrency, heartbeat_seconds=settings.heartbeat_seconds,
            lease_seconds=lease_seconds, is_tick=self._until_drained,
        )  # fmt: skip
        self._background = Background(
            url, settings, self._presence, self._claims, self._holdings, self._lease,
            read_output=self._slots.tail, is_tick=self._until_drained,
            wake=lambda: self._tell(self._claimer.wake),
            stop_wanted=lambda: self._tell(lambda: self.stop("asked from the dashboard")),
            claim_beat=lambda: self._claimer.beat(), hearing=self._hearing,
            looked=lambda has_work, at: self._tell(lambda: self._claimer.looked(has_work, at)),
        )  # fmt: skip
        self._claimer = Claimer(
            self._claim_line, self._claims, self._slots, self._holdings, worker_id=me,
            lease_seconds=lease_seconds, poll_seconds=poll_seconds, rounds=lambda: self._background.rounds,
            may_claim=self._may_claim,
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
        self._watch_writing()
        for key, _ in self._selector.select(timeout_seconds):
            key.data()
        for event in self._children.collect():
            self._hear(event)
        while self._inbox:
            self._read(self._inbox.popleft())
        if monotonic() - self._watched_at >= WATCH_SECONDS:
            self._watch()
        self._writer.step()
        if self._may_claim():
            self._claimer.step()
        elif self._restart_at is None:
            self._claimer.well()
        self._decide_end()
        log.flush()

    def _pause_seconds(self) -> float:
        """Return how long the loop may sleep: briefly while something runs, else until the next poll."""
        if len(self._holdings) or self._is_stopping or not self._writer.is_clear:
            return min(WATCH_SECONDS, self._writer.seconds_to_send or WATCH_SECONDS)
        return max(WATCH_SECONDS, min(RESTING_SECONDS, self._claimer.seconds_to_poll))

    def _may_claim(self) -> bool:
        return (
            self._background.is_registered
            and not (self._background.is_draining or self._is_stopping)
            and self._restart_at is None
            and (self._claims_end is None or monotonic() < self._claims_end)
        )

    def _decide_end(self) -> None:
        """Set the exit code when there is nothing left to do, or no time left to do it."""
        if self._exit_code is not None:
            return
        is_clear = not len(self._holdings) and self._writer.is_clear
        if self._stop_at is not None:
            deadline = max(LAST_WRITES_SECONDS, self._settings.shutdown_seconds - EXIT_SECONDS)
            if (is_clear and self._claimer.is_quiet) or monotonic() - self._stop_at >= deadline:
                self._exit_code = 0
        elif self._until_drained and is_clear:
            is_over = self._background.is_draining or (
                self._claims_end is not None and monotonic() >= self._claims_end
            )
            if self._claimer.is_drained or (is_over and self._claimer.is_quiet):
                self._exit_code = 0 if self._background.is_registered else FAILED
            elif not self._background.is_registered and monotonic() - self._began_at >= PATIENCE_SECONDS:
                self._exit_code = FAILED

    # ---- beginning and end --------------------------------------------------------------------------

    def _start(self) -> None:
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._drain_wake)
        self._children.register(self._selector, lambda: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in STOPS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._children.start()
        self._lease.start()
        self._background.start()
        slots, app = self._settings.concurrency, self._settings.app
        log.note("Worker started.", worker_id=self.worker_id, slots=slots, app=app)

    def _on_signal(self, number: int, _frame: object) -> None:
        """Only take note: the loop may be in the middle of writing its log, which is not reentrant."""
        self._tell(lambda: self.stop(signal.Signals(number).name))

    def _end(self) -> None:
        """Leave nothing behind: children first, then threads and connections."""
        self._children.stop()
        self._lease.stop()
        self._background.stop()
        self._say_goodbye()
        self._claim_line.drop()
        self._finish_line.drop()
        signal.set_wakeup_fd(-1)
        # Python gives its handlers back before the process is gone: who says it once more then would kill it.
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        log.note("Worker stopped.", worker_id=self.worker_id, left_running=len(self._holdings) or None)

    def _say_goodbye(self) -> None:
        if not self._background.is_registered:
            return
        try:
            with connect(self._url, name="wakeboard goodbye", statement_timeout_seconds=2) as connection:
                self._presence.stopped(connection)
        except (DatabaseError, psycopg.Error) as failure:
            log.warn("The worker's end could not be noted.", error=str(failure)[:200])

    @property
    def _is_stopping(self) -> bool:
        return self._stop_at is not None

    @property
    def _grace_seconds(self) -> float:
        """Seconds from the stop to the TERM for what still runs."""
        return max(0.0, self._settings.shutdown_seconds - self._settings.kill_seconds - LAST_WRITES_SECONDS)

    def stop(self, why: str = "asked") -> None:
        """Stop claiming; let what runs end until the deadline. A second call hurries."""
        if self._stop_at is None:
            self._stop_at = monotonic()
            self._slots.is_stopping = self._background.is_stopping = True
            log.note("Stopping: no more claims.", why=why, running=len(self._holdings))
        else:
            self._stop_at = min(self._stop_at, monotonic() - self._grace_seconds)

    # ---- hearing ------------------------------------------------------------------------------------

    def _tell(self, message: object) -> None:
        """Put something into the inbox from any thread, and wake the loop."""
        self._inbox.append(message)
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass

    def _drain_wake(self) -> None:
        try:
            os.read(self._wake_read, 65_536)
        except BlockingIOError:
            pass

    def _read(self, message: object) -> None:
        match message:
            case Connected(line, channel):
                self._connected(line, channel)
            case NotConnected(line, reason):
                line.failed(reason)
            case CancelAsked(run_id, lease_epoch):
                self._limits.cancel(run_id, lease_epoch)
            case LeaseLost(run_id, lease_epoch):
                self._limits.lost(run_id, lease_epoch)
            case _ if callable(message):
                message()

    def _connected(self, line: Line, channel: Channel) -> None:
        line.adopt(channel)
        self._selector.register(channel.fileno(), selectors.EVENT_READ, lambda: self._pump(line))
        if line is self._claim_line:
            self._hearing.connected(is_pooled=line.is_pooled)
            self._claimer.connected()

    def _watch_writing(self) -> None:
        """Watch a line for writing while its socket has not taken all of a statement yet."""
        for line in (self._claim_line, self._finish_line):
            channel = line.channel
            if channel is None or channel.is_lost:
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wants_write else 0)
            key = self._selector.get_key(channel.fileno())
            if key.events != wanted:
                self._selector.modify(channel.fileno(), wanted, key.data)

    def _pump(self, line: Line) -> None:
        """Let a connection go on; losing it is a sentence in the log and a new one soon."""
        channel = line.channel
        if channel is None:
            return
        try:
            for name, payload in channel.pump():
                if name == WAKE_CHANNEL:
                    self._claimer.wake()
                elif name == CANCEL_CHANNEL and payload.isascii() and payload.isdigit() and len(payload) < 20:
                    self._limits.cancel(int(payload), None)
                elif name == self._hearing.channel:
                    self._hearing.heard(payload)
        except ChannelLost as lost:
            self._drop(line, "A database connection was lost; opening another.", str(lost))

    def _drop(self, line: Line, why: str, error: str | None = None) -> None:
        assert line.channel is not None
        self._selector.unregister(line.channel.fileno())
        line.drop()
        log.warn(why, connection=line.name, error=error)

    def _listen_anew(self) -> None:
        """Open another connection for what hears nothing, unless a claim got under way on it just now.

        The notification was sent through another connection, so the database answers: a claim that is silent
        for long waits on a connection that is half open.
        """
        channel = self._claim_line.channel
        if channel is None or not self._hearing.is_waiting:
            return
        if not channel.is_busy or channel.is_overdue(SILENT_CLAIM_SECONDS):
            self._drop(self._claim_line, "No notification arrives; opening another connection.")

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
                self._ready(types)
            case AppFailed(message):
                self._app_failed(message)
            case TemplateDied(text):
                log.warn("The template process died; starting another.", how=text)
                self._restart_at = monotonic() + RESTART_PAUSE
            case Warned(message):
                log.warn(message)

    def _ready(self, types: Sequence[dict[str, Any]]) -> None:
        known = {policy["name"] for policy in types}
        wanted = known if self._wanted_types is None else self._wanted_types
        if unknown := sorted(wanted - known):
            log.warn(f"No handler is registered for {', '.join(unknown)}; known: {', '.join(sorted(known))}.")
            self._exit_code = USE_ERROR
            return
        chosen = [policy for policy in types if policy["name"] in wanted]
        self._claims.learn(chosen)
        self._background.publish(chosen)

    def _app_failed(self, message: str) -> None:
        """A module that cannot be imported at the first start is wrong use; later, a deploy gone wrong."""
        print(message, file=sys.stderr)  # noqa: T201
        if self._claims.types:
            self._restart_at = monotonic() + BROKEN_APP_PAUSE
            self._claimer.hindered(message)
        else:
            self._exit_code = USE_ERROR

    def _wrote(self, written: Sequence[Held]) -> None:
        limited = self._claims.limited
        makes_room = bool(limited) and any(held.assignment.job_type in limited for held in written)
        self._claimer.look_again(now=self._until_drained or makes_room)

    def _committed(self, held: Held, seconds: float) -> None:
        log_end(held, "succeed", self.worker_id, seconds)
        self._wrote([held])

    # ---- watching -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look at what time brings: lost connections, limits of runs, restarts, the shutdown deadline."""
        now = self._watched_at = monotonic()
        for line in (self._claim_line, self._finish_line):
            if line.channel is not None and (line.channel.is_lost or line.channel.is_overdue()):
                self._drop(line, "The database does not answer; opening another connection.")
            line.ensure()
        for watchdog in (self._lease.watchdog, self._background.watchdog):
            if watchdog.check():
                log.warn("The database has not answered a thread for too long; its connection was shut.")
        self._limits.step()
        if self._restart_at is not None and now >= self._restart_at and not self._is_stopping:
            self._restart_at = None
            self._children.start()
        if self._stop_at is not None:
            self._hurry_up(now - self._stop_at)

    def _hurry_up(self, seconds: float) -> None:
        """Interrupt, then kill what still runs as the shutdown deadline comes near."""
        last_moment = max(0.0, self._settings.shutdown_seconds - LAST_WRITES_SECONDS)
        if seconds >= min(self._grace_seconds + self._settings.kill_seconds, last_moment):
            self._limits.stop_all(kill=True)
        elif seconds >= self._grace_seconds:
            self._limits.stop_all(kill=False)


def run(
    settings: Settings,
    *,
    url: str,
    types: Sequence[str] | None = None,
    name: str | None = None,
    until_drained: bool = False,
    claim_seconds: float | None = None,
    firstborn: Firstborn | None = None,
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
