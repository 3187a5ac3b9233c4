"""The writer of results: sends ended attempts in batches, and logs each as it is written."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from wakeboard.config import log
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.database.outage_log import WarningThrottle
from wakeboard.database.poison_rows import is_refusal, refusal_reason
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.loop.channel import StatementFailed
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.loop.connections import LoopConnection
from wakeboard.runtime.loop.deferred_results import DeferredResults
from wakeboard.runtime.loop.ended_attempt import EndedAttempt
from wakeboard.runtime.loop.in_flight import RunInFlight, RunsInFlight
from wakeboard.runtime.loop.result_queue import ResultQueue, WrittenAttempt

# While so many runs are in flight, a statement waits until so many have ended, at most GATHER_SECONDS.
ENOUGH_IN_FLIGHT = 300
ENOUGH_ENDED = 750
GATHER_SECONDS = 0.015
# A result is written within milliseconds; one that waits for three times this and five seconds more is late.
WRITE_SECONDS = 5.0
# How often the age of the oldest result is measured.
AGE_SECONDS = 0.5

_EVENTS = {"dead": "dead", "cancelled": "cancelled", "queued": "release", "succeeded": "succeed"}


class ResultWriter:
    """Writes ended attempts on one connection.

    ``deferred`` is where ended attempts are added. ``may_write_forgotten``: whether a statement is under way
    that was sent before an attempt was forgotten.
    """

    def __init__(
        self,
        connection: LoopConnection,
        in_flight: RunsInFlight,
        planner: ClaimPlanner,
        worker_id: str,
        *,
        gather_seconds: float = GATHER_SECONDS,
    ) -> None:
        """``gather_seconds``: how long after a statement fewer than ENOUGH_ENDED wait for the next one."""
        self._connection = connection
        self._in_flight = in_flight
        self._planner = planner
        self._worker_id = worker_id
        self.queue = ResultQueue(worker_id, self._handle_written, self._handle_late, self._handle_abandoned)
        self.deferred = DeferredResults(self.queue, planner)
        self._warnings = WarningThrottle()
        self._gather_seconds = gather_seconds
        self._sent_at = -gather_seconds
        self._is_writing = self.may_write_forgotten = False
        self._batch: Sequence[EndedAttempt] = ()
        # Which moves the database refuses whatever their values, and why it did last.
        self._refused_moves: dict[str, str] = {}
        self._measured_at = 0.0
        self._waiting_since: float | None = None

    def beat(self) -> Beat:
        """Return the writer's state: it last succeeded when the oldest waiting attempt ended."""
        since = self._waiting_since
        ago = 0.0 if since is None else monotonic() - since
        return Beat("write", WRITE_SECONDS, ago, next(iter(self._refused_moves.copy().values()), None))

    @property
    def is_refused(self) -> bool:
        """Whether results wait that the database refuses whatever they are."""
        return bool(self._refused_moves) and not self.is_clear

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits or is being written."""
        return not len(self.queue) and self._connection.is_quiet

    def forget(self) -> None:
        """Drop forgotten attempts."""
        self.queue.forget()
        self.may_write_forgotten = self._is_writing

    def step(self) -> None:
        """Send the next batch, when it is worth a statement."""
        self._measure_age()
        if not len(self.queue) or not self._connection.is_free or self.seconds_to_send > 0:
            return
        batch = self.queue.next_batch()
        if not batch:
            return
        self._sent_at = monotonic()
        assert self._connection.channel is not None

        def ended() -> None:
            self._is_writing = self.may_write_forgotten = False
            self._batch = ()

        def failed(failure: Exception) -> None:
            ended()
            if isinstance(failure, StatementFailed):
                self._log_refusal(batch, failure)
                self.queue.refuse(batch, failure)
            else:
                self.queue.give_back(batch)

        def done(written: Sequence[WrittenAttempt]) -> None:
            ended()
            if self._refused_moves:
                self._note_accepted(batch[0].move)
            # The next batch first: logging hundreds of runs takes as long as a statement.
            self.step()
            self.queue.report(written)

        self._is_writing = True
        self._batch = batch
        self._connection.channel.run(self.queue.script(batch), done, failed)

    @property
    def seconds_to_send(self) -> float:
        """Seconds to wait for further results, 0.0 when the next batch is to be sent now.

        A statement costs as much as writing thirty rows, so it waits while ENOUGH_IN_FLIGHT other runs are in
        flight. A single result is sent at once.
        """
        ended = len(self.queue)
        if ended >= ENOUGH_ENDED or len(self._in_flight) - ended < ENOUGH_IN_FLIGHT:
            return 0.0
        return max(0.0, self._sent_at + self._gather_seconds - monotonic())

    def _handle_written(self, written: Sequence[WrittenAttempt]) -> None:
        self.log_written(written)
        self._count_written([ended.run for ended, _ in written])

    def log_written(self, written: Sequence[WrittenAttempt]) -> None:
        """Log written attempts, which are no longer in flight."""
        self._in_flight.remove([ended.run for ended, _ in written])
        succeeded: list[log.RunMove] = []
        is_due_again = False
        for ended, status in written:
            run, answer = ended.run, ended.answer
            if status == "succeeded" and answer.error_code is None and answer.message is None:
                assignment = run.assignment
                succeeded.append((assignment[0], assignment[3], assignment[2], ended.took_seconds))
                continue
            delay = ended.delay_seconds if status == "failed" else None
            code, message = answer.error_code, answer.message
            if ended.move == "release" and status == "queued":
                is_due_again = is_due_again or not ended.has_started
                code, message = None, _release_reason(ended)
            log_end(
                run, _EVENTS.get(status, "fail"), self._worker_id, ended.took_seconds, code, message, delay
            )
        log.run_moves("succeed", self._worker_id, succeeded)
        if is_due_again:
            self._planner.demand.wake()

    def handle_committed(self, run: RunInFlight, seconds: float) -> None:
        """Log a run whose ``transaction()`` has written its end, after ``seconds``."""
        self._in_flight.remove([run])
        self.deferred.note_committed(run)
        log_end(run, "succeed", self._worker_id, seconds)
        self._count_written([run])

    def _count_written(self, written: Sequence[RunInFlight]) -> None:
        """Tell the planner of runs that no longer belong to this worker."""
        self._planner.count_written(len(written))
        limited = self._planner.limited_types
        makes_room = bool(limited) and any(run.assignment.job_type in limited for run in written)
        self._planner.demand.note_end(makes_room=makes_room)

    def _measure_age(self) -> None:
        """Measure, now and then, since when the oldest result has waited."""
        now = monotonic()
        if now - self._measured_at < AGE_SECONDS:
            return
        self._measured_at = now
        waiting = [*self.queue.waiting(), *self._batch]
        oldest = min((ended.ended_ns for ended in waiting), default=None)
        self._waiting_since = None if oldest is None else now - max(0, boottime_ns() - oldest) / 1e9
        if self._refused_moves:
            # Refused attempts may have been forgotten since.
            moves = {ended.move for ended in waiting}
            self._refused_moves = {move: why for move, why in self._refused_moves.items() if move in moves}

    def _note_accepted(self, move: str) -> None:
        """Note that a batch of ``move`` is written after others were refused."""
        if self._refused_moves.pop(move, None) is not None and not self._refused_moves:
            log.note("The database takes the answers again.", waiting=len(self.queue) or None)

    def _log_refusal(self, batch: Sequence[EndedAttempt], failure: StatementFailed) -> None:
        """Log that a batch, or a single row, was refused."""
        why, run = refusal_reason(failure), batch[0].run
        if not is_refusal(failure):
            self._refused_moves[batch[0].move] = f"Answers cannot be written: {why}"
            self._warnings.warn(
                (batch[0].move, why),
                "The database refused a batch of answers; trying it again. Nothing is lost meanwhile.",
                answers=batch[0].move, waiting=len(self.queue) + len(batch), error=why,
            )  # fmt: skip
        elif len(batch) == 1:
            self._warnings.warn(
                run.run_id, "The database refuses how a run ended; the others are written.",
                run_id=run.run_id, job_type=run.assignment.job_type, attempt=run.assignment.attempt,
                outcome=batch[0].outcome, error=why,
            )  # fmt: skip

    def _handle_abandoned(self, ended: EndedAttempt) -> None:
        """Abandon a run whose end the database refuses in every form: its lease expires."""
        run = ended.run
        self._in_flight.abandon([run.assignment[:2]])
        log.warn(
            "A run's end cannot be written; it is left to whoever takes back ended leases.",
            run_id=run.run_id, job_type=run.assignment.job_type, attempt=run.assignment.attempt,
        )  # fmt: skip
        self._count_written([run])

    def _handle_late(self, ended: EndedAttempt) -> None:
        run = ended.run
        self._in_flight.remove([run])
        log.warn(
            "A late answer was refused: the lease was lost.", run_id=run.run_id,
            attempt=run.assignment.attempt, outcome=ended.outcome,
        )  # fmt: skip
        self._count_written([run])


def _release_reason(ended: EndedAttempt) -> str:
    """Return why a run is given back; the error of an attempt that was cut short is no reason."""
    if not ended.has_started:
        return "it had not begun"
    return ended.answer.note or "its worker stops"


def log_end(
    run: RunInFlight,
    event: str,
    worker_id: str,
    seconds: float,
    code: str | None = None,
    message: str | None = None,
    delay_seconds: float | None = None,
) -> None:
    """Log the end of an attempt: its duration, its error and when it is tried again."""
    run_id, _, attempt, job_type, *_ = run.assignment
    log.move(
        event, run_id=run_id, job_type=job_type, attempt=attempt,
        worker_id=worker_id, duration_seconds=seconds, error_code=code,
        reason=message and message[:200], next_delay_seconds=delay_seconds,
    )  # fmt: skip
