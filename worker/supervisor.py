"""The worker: a dumb loop around the moves. Hear → watch → record → claim; reaping and firing go on beside.

One thread drives two libpq connections and the children's sockets without blocking. Leases are renewed by
``lease``, background duties run in ``duties``, each with a thread and a connection of its own; both speak
to the loop through its inbox. Handlers never run in this process.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

from worker import log, schedule, statistics
from worker.channel import ChannelLost, StatementFailed
from worker.children import AppFailed, Children, Died, Event, Finished, Ready, TemplateDied, Warned
from worker.claims import Claims, Load, Plan, busy_script, claim_script, recovery_script
from worker.duties import Connection, Duties, Duty
from worker.held import Held, Holdings, boottime_ns, held_from_row
from worker.lease import CancelAsked, LeaseKeeper, LeaseLost
from worker.limits import Limits
from worker.line import Connected, Line, NotConnected
from worker.live_output import LiveOutput
from worker.presence import Beat, Presence, new_worker_id
from worker.reaper import Reaper
from worker.record import Ended, Recorder, decide, never_started
from worker.settings import Settings
from worker.transitions.operator import CANCEL_CHANNEL, WAKE_CHANNEL

WATCH_SECONDS = 0.05
SCHEDULE_SECONDS = 1.0
REAP_SECONDS = 5.0
MERGE_SECONDS = 60.0
FORGET_SECONDS = 3600.0
RESTART_PAUSE = 1.0
# What the last writes and the end of the process take off the shutdown time.
LAST_WRITES_SECONDS = 1.0
EXIT_SECONDS = 0.4
USE_ERROR = 2


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
    ) -> None:
        """``types``: claim these only; ``until_drained``: return when nothing is due; ``claim_seconds``: stop
        claiming after so long (what runs is waited for)."""
        self._settings = settings
        self._wanted_types = None if types is None else set(types)
        self._until_drained = until_drained
        self._claims_end = None if claim_seconds is None else monotonic() + claim_seconds
        self.worker_id = new_worker_id(name)
        self._slots = settings.concurrency
        self._inbox: deque[Any] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._holdings = Holdings()
        environment = settings.environment_variables() | {"WAKEBOARD_DATABASE_URL": url}
        self._children = Children(self._slots, app=settings.app, environment=environment)
        self._limits = Limits(self._children, self._holdings, self._slots, kill_seconds=settings.kill_seconds)
        self._claims = Claims(self._slots)
        self._recorder = Recorder(self.worker_id, self._was_written, self._was_refused)
        self._claim_line = Line(url, "claim", self._tell, listens=(WAKE_CHANNEL, CANCEL_CHANNEL))
        self._finish_line = Line(url, "finish", self._tell)
        self._lease = LeaseKeeper(
            url, self.worker_id, self._holdings, heartbeat_seconds=settings.heartbeat_seconds,
            poll_seconds=settings.poll_seconds, progress=self._progress, tell=self._tell,
        )  # fmt: skip
        self._presence = Presence(
            self.worker_id, name=name, concurrency=self._slots,
            heartbeat_seconds=settings.heartbeat_seconds, is_tick=until_drained,
        )  # fmt: skip
        self._reaper = Reaper(
            lease_seconds=settings.lease_seconds, heartbeat_seconds=settings.heartbeat_seconds,
            waits_first=not until_drained,
        )  # fmt: skip
        self._live_output = LiveOutput(self._children.output_tail)
        self._duties = Duties(url, self._duty_list(), reconnected=self._reaper.reconnected)
        self._policies: list[dict[str, Any]] = []
        self._selector = selectors.DefaultSelector()
        self._loads = [Load() for _ in range(self._slots)]
        self._is_ready = False
        self._is_registered = False
        self._is_idle = False
        self._announcement: bool | None = None
        self._is_hungry = True
        self._drained_round = -1
        self._is_draining = False
        self._stop_at: float | None = None
        self._claim_sent_ns = 0
        self._next_poll = 0.0
        self._claimed_at = monotonic()
        self._watched_at = 0.0
        self._restart_at: float | None = None
        self._exit_code: int | None = None

    # ---- the loop -----------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop (or drained); return the exit code."""
        self._start()
        try:
            while self._exit_code is None:
                self.step(WATCH_SECONDS)
            return self._exit_code
        finally:
            self._end()

    def step(self, timeout_seconds: float) -> None:
        """Wait for something to happen, at most ``timeout_seconds``, then hear, watch, record and claim."""
        for key, _ in self._selector.select(timeout_seconds):
            key.data()
        for event in self._children.collect():
            self._hear(event)
        self._read_inbox()
        self._watch()
        self._record()
        self._claim()
        self._decide_end()
        log.flush()

    def stop(self, why: str = "asked") -> None:
        """Stop claiming; let what runs end until the deadline. A second call hurries."""
        if self._stop_at is None:
            self._stop_at = monotonic()
            log.note("Stopping: no more claims.", why=why, running=len(self._holdings))
        else:
            self._stop_at = min(self._stop_at, monotonic() - self._grace_seconds)

    @property
    def _grace_seconds(self) -> float:
        """Seconds from the stop to the TERM for what still runs."""
        return max(0.0, self._settings.shutdown_seconds - self._settings.kill_seconds - LAST_WRITES_SECONDS)

    @property
    def _is_stopping(self) -> bool:
        return self._stop_at is not None

    def _start(self) -> None:
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._drain_wake)
        self._children.register(self._selector, lambda: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda signum, _: self.stop(signal.Signals(signum).name))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._children.start()
        self._lease.start()
        self._duties.start()
        log.note("Worker started.", worker_id=self.worker_id, slots=self._slots, app=self._settings.app)

    def _end(self) -> None:
        """Leave nothing behind: children first, then threads and connections."""
        self._children.stop()
        self._lease.stop()
        self._duties.stop()
        self._say_goodbye()
        self._claim_line.drop()
        self._finish_line.drop()
        signal.set_wakeup_fd(-1)
        log.note("Worker stopped.", worker_id=self.worker_id, left_running=len(self._holdings) or None)

    def _say_goodbye(self) -> None:
        from worker.db import DatabaseError, connect

        if not self._is_registered:
            return
        try:
            with connect(self._url, name="wakeboard goodbye", statement_timeout_seconds=2) as connection:
                self._presence.stopped(connection)
        except (DatabaseError, OSError) as failure:
            log.warn("The worker's end could not be noted.", error=str(failure)[:200])

    @property
    def _url(self) -> str:
        return self._claim_line.url

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

    def _read_inbox(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
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

    def _connected(self, line: Line, channel: Any) -> None:
        line.adopt(channel)
        self._selector.register(channel.fileno(), selectors.EVENT_READ, lambda: self._pump(line))
        if line is self._claim_line:
            self._is_hungry, self._is_idle = True, False
            channel.run(
                recovery_script(self.worker_id, self._unknown),
                self._gave_back,
                lambda failure: log.warn("Could not look for lost claims.", error=str(failure)),
            )

    def _gave_back(self, count: int) -> None:
        if count:
            log.note("Gave back claims whose answer was lost.", count=count)

    def _unknown(self, rows: Any) -> list[tuple[int, int]]:
        return self._holdings.unknown(rows)

    def _pump(self, line: Line) -> None:
        """Let a connection go on; losing it is a sentence in the log and a new one soon."""
        channel = line.channel
        if channel is None:
            return
        descriptor = channel.fileno()
        try:
            for name, payload in channel.pump():
                self._notified(name, payload)
        except ChannelLost as lost:
            self._selector.unregister(descriptor)
            line.drop()
            log.warn(
                "A database connection was lost; opening another.", connection=line.name, error=str(lost)
            )

    def _notified(self, name: str, payload: str) -> None:
        if name == WAKE_CHANNEL:
            self._is_hungry = True
        elif name == CANCEL_CHANNEL and payload.isdigit():
            self._limits.cancel(int(payload), None)

    def _hear(self, event: Event) -> None:
        """Take in what the children say."""
        match event:
            case Finished():
                self._finished(event)
            case Died():
                self._died(event)
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
        unknown = sorted((self._wanted_types or set()) - known)
        if unknown:
            log.warn(f"No handler is registered for {', '.join(unknown)}; known: {', '.join(sorted(known))}.")
            self._exit_code = USE_ERROR
            return
        chosen = [p for p in types if self._wanted_types is None or p["name"] in self._wanted_types]
        self._policies = chosen
        self._claims.learn(chosen)
        self._is_ready = True
        self._duties.hurry("presence")

    def _app_failed(self, message: str) -> None:
        """A module that cannot be imported at the first start is wrong use; later, a deploy gone wrong."""
        print(message, file=sys.stderr)  # noqa: T201
        if self._is_ready:
            self._restart_at = monotonic() + 30 * RESTART_PAUSE
        else:
            self._exit_code = USE_ERROR

    def _finished(self, event: Finished) -> None:
        held = self._take_from_slot(event.slot, event.assignment.run_id, event.assignment.lease_epoch)
        if held is None:
            return
        seconds = max(0.0, (event.finished_ns - event.started_ns) / 1e9)
        self._claims.observe(held, seconds)
        ended = decide(
            held,
            event.answer,
            took_seconds=seconds,
            ended_ns=event.finished_ns,
            is_stopping=self._is_stopping,
        )
        if ended is None:
            self._log_end(held, "succeed", seconds, None, None, None)
            self._holdings.drop(held.run_id, held.lease_epoch)
        else:
            self._recorder.add(ended)

    def _died(self, event: Died) -> None:
        now = boottime_ns()
        if event.running is not None:
            held = self._take_from_slot(event.slot, event.running.run_id, event.running.lease_epoch)
            if held is not None:
                seconds = max(0.0, (now - event.started_ns) / 1e9) if event.started_ns else 0.0
                ended = decide(
                    held, event.answer, took_seconds=seconds, ended_ns=now, is_stopping=self._is_stopping
                )
                if ended is not None:
                    self._recorder.add(ended)
        for assignment in event.unstarted:
            held = self._take_from_slot(event.slot, assignment.run_id, assignment.lease_epoch)
            if held is not None:
                self._recorder.add(never_started(held))

    def _take_from_slot(self, slot: int, run_id: int, lease_epoch: int) -> Held | None:
        held = self._holdings.get(run_id, lease_epoch)
        if held is None or held.slot is None:
            return None
        load = self._loads[slot]
        load.outstanding -= 1
        load.slow -= held.is_slow
        held.slot = None
        return held

    # ---- watching -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        now = monotonic()
        if now - self._watched_at < WATCH_SECONDS:
            return
        self._watched_at = now
        for line in (self._claim_line, self._finish_line):
            if line.channel is not None and line.channel.is_overdue():
                self._selector.unregister(line.channel.fileno())
                line.drop()
                log.warn("The database has not answered for too long; opening another connection.")
            line.ensure()
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

    def _decide_end(self) -> None:
        """Set the exit code when there is nothing left to do, or no time left to do it."""
        if self._exit_code is not None:
            return
        is_clear = not len(self._holdings) and not len(self._recorder)
        if self._stop_at is not None:
            deadline = max(LAST_WRITES_SECONDS, self._settings.shutdown_seconds - EXIT_SECONDS)
            is_late = monotonic() - self._stop_at >= deadline
            if (is_clear and self._finish_line.is_quiet) or is_late:
                self._exit_code = 0
        elif self._until_drained and is_clear and not self._may_claim_more():
            self._exit_code = 0

    def _may_claim_more(self) -> bool:
        """Whether a tick still has to look: no claim came back empty after what was due had been fired."""
        if self._claims_end is not None and monotonic() >= self._claims_end:
            return not self._claim_line.is_quiet
        return self._drained_round < 1

    # ---- recording ----------------------------------------------------------------------------------

    def _record(self) -> None:
        if not len(self._recorder) or not self._finish_line.is_free:
            return
        batch = self._recorder.next_batch()
        if not batch:
            return
        assert self._finish_line.channel is not None

        def failed(failure: Exception) -> None:
            if isinstance(failure, StatementFailed):
                log.warn("A batch of answers was refused; trying one by one.", error=str(failure))
                self._recorder.refuse(batch, failure)
            else:
                self._recorder.give_back(batch)

        self._finish_line.channel.run(self._recorder.script(batch), lambda _: None, failed)

    def _was_written(self, ended: Ended, status: str, next_run_at: str | None) -> None:
        self._holdings.drop(ended.held.run_id, ended.held.lease_epoch)
        # Room under a type's limit, or a tick that must look once more before it calls the table drained.
        self._drained_round = -1
        if self._until_drained or ended.held.assignment.job_type in self._claims.limited:
            self._is_hungry = True
        move = {"succeed": "succeed", "fail": status if status in ("dead", "cancelled") else "fail"}
        answer = ended.answer
        self._log_end(
            ended.held, move.get(ended.move, "release"), ended.took_seconds, answer.error_code,
            answer.message, ended.delay_seconds if status == "failed" else None,
        )  # fmt: skip

    def _was_refused(self, ended: Ended) -> None:
        self._holdings.drop(ended.held.run_id, ended.held.lease_epoch)
        log.warn("A late answer was refused: the lease was lost.", run_id=ended.held.run_id,
                 attempt=ended.held.assignment.attempt, outcome=ended.outcome)  # fmt: skip

    def _log_end(
        self,
        held: Held,
        event: str,
        seconds: float,
        code: str | None,
        message: str | None,
        delay: float | None,
    ) -> None:
        log.move(
            event, run_id=held.run_id, job_type=held.assignment.job_type, attempt=held.assignment.attempt,
            worker_id=self.worker_id, duration_seconds=seconds, error_code=code,
            reason=message and message[:200], next_delay_seconds=delay,
        )  # fmt: skip

    # ---- claiming -----------------------------------------------------------------------------------

    def _may_claim(self) -> bool:
        return (
            self._is_registered and not self._is_stopping and not self._is_draining
            and self._restart_at is None and (self._claims_end is None or monotonic() < self._claims_end)
        )  # fmt: skip

    def _claim(self) -> None:
        """Send the next claim when somebody may be waiting and a slot is free."""
        if not self._claim_line.is_free or not self._may_claim():
            return
        if not self._is_hungry and monotonic() < self._next_poll:
            return
        plan = self._claims.plan(self._loads)
        if plan is None:
            self._take_back_idle()
            return
        self._send_claim(plan)

    def _send_claim(self, plan: Plan) -> None:
        channel = self._claim_line.channel
        assert channel is not None
        announce, self._announcement = self._announcement, None
        self._is_hungry = False
        self._next_poll = monotonic() + self._settings.poll_seconds
        self._claim_sent_ns = boottime_ns()
        rounds = self._duties.rounds
        script = claim_script(plan, self.worker_id, self._settings.lease_seconds, announce=announce)

        def done(answer: tuple[list[Any], bool]) -> None:
            rows, is_full = answer
            self._claimed_at = monotonic()
            self._take(rows)
            self._drained_round = -1 if rows else rounds
            # Published as idle first, then claimed once more: nothing that came in between can be missed.
            self._is_hungry = is_full or not self._is_idle
            if is_full == self._is_idle:
                self._is_idle = self._announcement = not is_full

        channel.run(script, done, self._claim_failed)

    def _take_back_idle(self) -> None:
        """Every slot is busy: producers need not notify this worker."""
        if self._announcement is False and self._claim_line.channel is not None:
            self._announcement = None
            script = busy_script(self.worker_id)
            self._claim_line.channel.run(script, lambda _: None, self._claim_failed)

    def _claim_failed(self, failure: Exception) -> None:
        if isinstance(failure, StatementFailed):
            log.warn("A claim was refused by the database.", error=str(failure), sqlstate=failure.sqlstate)
        self._is_idle, self._announcement = False, None

    def _take(self, rows: Sequence[tuple[bytes | None, ...]]) -> None:
        """Hold what was claimed and hand it to the slots."""
        chosen: dict[int, list[Held]] = {}
        claimed = []
        for row in rows:
            held = held_from_row(
                row, self._claims.policies, worker_id=self.worker_id,
                lease_seconds=self._settings.lease_seconds, leased_ns=self._claim_sent_ns,
            )  # fmt: skip
            held.is_slow = not self._claims.is_quick(held.assignment.job_type)
            held.slot = self._choose_slot(held)
            chosen.setdefault(held.slot, []).append(held)
            claimed.append(held)
            log.move("claim", run_id=held.run_id, job_type=held.assignment.job_type,
                     attempt=held.assignment.attempt, worker_id=self.worker_id)  # fmt: skip
        self._holdings.add(claimed)
        for slot, group in chosen.items():
            self._children.send(slot, [held.assignment for held in group])

    def _choose_slot(self, held: Held) -> int:
        """Return the slot with the least to do; one that has a slow run only when there is no other."""
        slot = min(range(self._slots), key=lambda n: (self._loads[n].slow, self._loads[n].outstanding))
        self._loads[slot].outstanding += 1
        self._loads[slot].slow += held.is_slow
        return slot

    # ---- duties: on their own thread ----------------------------------------------------------------

    def _duty_list(self) -> list[Duty]:
        heartbeat = self._settings.heartbeat_seconds
        return [
            Duty("presence", min(heartbeat, 2.0), self._be_present),
            Duty("schedule", SCHEDULE_SECONDS, schedule.step),
            Duty("reap", min(REAP_SECONDS, self._settings.lease_seconds / 2), self._reaper.step),
            Duty("statistics", MERGE_SECONDS, statistics.merge),
            Duty("live output", 2.0, lambda c: self._live_output.step(c, self._holdings.all())),
            Duty("forget", FORGET_SECONDS, self._presence.forget_old),
        ]

    def _be_present(self, connection: Connection) -> None:
        """Say that the process lives, and hear what people want of it."""
        if not self._is_ready:
            return
        if not self._is_registered:
            self._presence.register(connection, self._policies)
            schedule.sync_registered(connection, self._policies)
            self._claims.limited = self._presence.limited_types(connection)
            self._tell(self._registered)
            return
        wanted = self._presence.seen(connection, len(self._holdings), is_stopping=self._is_stopping)
        self._presence.publish(connection, self._policies)
        self._claims.limited = self._presence.limited_types(connection)
        self._presence.beat(connection, [*self._duties.beats(), *self._own_beats()])
        self._is_draining = wanted.drain
        if wanted.stop and not self._is_stopping:
            self._tell(lambda: self.stop("asked from the dashboard"))

    def _registered(self) -> None:
        self._is_registered = True

    def _own_beats(self) -> list[Beat]:
        now = monotonic()
        return [
            Beat("claim", self._settings.poll_seconds, now - self._claimed_at),
            Beat("renew", self._settings.poll_seconds, now - self._lease.last_success),
        ]

    def _progress(self, held: Held) -> tuple[int, int] | None:
        """Return how far a run has come, when it is the one its slot runs."""
        slot = held.slot
        started = None if slot is None else self._children.current(slot)
        if slot is None or started is None or started.run_id != held.run_id:
            return None
        return self._children.progress(slot)


def run(
    settings: Settings,
    *,
    url: str,
    types: Sequence[str] | None = None,
    name: str | None = None,
    until_drained: bool = False,
    claim_seconds: float | None = None,
) -> int:
    """Run a worker in this process until it is told to stop; return the exit code.

    ``url`` is the database's libpq URL. See ``Supervisor`` for the rest. Installs signal handlers.
    """
    supervisor = Supervisor(
        settings, url=url, types=types, name=name, until_drained=until_drained, claim_seconds=claim_seconds
    )
    return supervisor.run()


__all__ = ["Supervisor", "run"]
