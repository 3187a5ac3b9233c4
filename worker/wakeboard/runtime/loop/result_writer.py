"""The recording side of the loop: sends what ended, a batch at a time; logs each move as it is written."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from wakeboard.config import log
from wakeboard.database.outage_log import RepeatedWarnings
from wakeboard.database.poison_rows import is_refusal, reason
from wakeboard.reporting.heartbeats import Beat
from wakeboard.runtime.loop.channel import StatementFailed
from wakeboard.runtime.loop.claim_state import ClaimState
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.loop.connections import LoopConnection
from wakeboard.runtime.loop.ended_attempt import EndedAttempt
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.runtime.loop.in_flight import RunInFlight, RunsInFlight
from wakeboard.runtime.loop.result_queue import ResultQueue, WrittenAttempt

# While so many are still held, a statement waits until so many have ended, but no longer than this.
STILL_HELD = 300
ENOUGH_ENDED = 750
GATHER_SECONDS = 0.015
# An answer is written within milliseconds; one that waits for three times this and five seconds more is late.
WRITE_SECONDS = 5.0
# Between two looks at how long the oldest answer has waited.
LOOK_SECONDS = 0.5

_EVENTS = {"dead": "dead", "cancelled": "cancelled", "queued": "release", "succeeded": "succeed"}


class ResultWriter:
    """Writes ended attempts on one connection."""

    def __init__(
        self,
        connection: LoopConnection,
        in_flight: RunsInFlight,
        claims: ClaimPlanner,
        claim_state: ClaimState,
        worker_id: str,
        *,
        gather_seconds: float = GATHER_SECONDS,
    ) -> None:
        """``gather_seconds``: how long after a statement fewer than ENOUGH_ENDED wait for the next one."""
        self._connection = connection
        self._claims, self._claim_state = claims, claim_state
        self._in_flight = in_flight
        self._worker_id = worker_id
        self.queue = ResultQueue(worker_id, self._written, self._refused, self._gave_up)
        self._warnings = RepeatedWarnings()
        self._gather_seconds = gather_seconds
        self._sent_at = -gather_seconds
        # Whether a statement is under way, and one that was before something was forgotten.
        self._is_writing = self.may_write_forgotten = False
        self._sending: Sequence[EndedAttempt] = ()
        # Which moves the database refuses whatever they write, and why it did last.
        self._refused_moves: dict[str, str] = {}
        self._looked_at = 0.0
        self._waiting_since: float | None = None

    def beat(self) -> Beat:
        """Return how the writing stands: it last succeeded when the oldest answer that waits was given."""
        since = self._waiting_since
        ago = 0.0 if since is None else monotonic() - since
        return Beat("write", WRITE_SECONDS, ago, next(iter(self._refused_moves.copy().values()), None))

    @property
    def is_refused(self) -> bool:
        """Whether answers wait that the database does not take at all."""
        return bool(self._refused_moves) and not self.is_clear

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits to be written and nothing is being written."""
        return not len(self.queue) and self._connection.is_quiet

    def add(self, ended: EndedAttempt) -> None:
        """Queue an attempt to be written."""
        self.queue.add(ended)

    def add_succeeded(self, ended: Sequence[EndedAttempt]) -> None:
        """Queue attempts that succeeded to be written."""
        self.queue.add_succeeded(ended)

    def forget(self) -> None:
        """Write nothing of attempts that are forgotten."""
        self.queue.forget()
        self.may_write_forgotten = self._is_writing

    def step(self) -> None:
        """Send what arrived while the last batch was being committed, when it is worth a statement."""
        self._look()
        if not len(self.queue) or not self._connection.is_free or self.seconds_to_send > 0:
            return
        batch = self.queue.next_batch()
        if not batch:
            return
        self._sent_at = monotonic()
        assert self._connection.channel is not None

        def ended() -> None:
            self._is_writing = self.may_write_forgotten = False
            self._sending = ()

        def failed(failure: Exception) -> None:
            ended()
            if isinstance(failure, StatementFailed):
                self._tell(batch, failure)
                self.queue.refuse(batch, failure)
            else:
                self.queue.give_back(batch)

        def done(written: Sequence[WrittenAttempt]) -> None:
            ended()
            if self._refused_moves:
                self._is_taken(batch[0].move)
            # The next batch first: to log and to forget hundreds of runs takes as long as a statement.
            self.step()
            self.queue.tell(written)

        self._is_writing = True
        self._sending = batch
        self._connection.channel.run(self.queue.script(batch), done, failed)

    @property
    def seconds_to_send(self) -> float:
        """Seconds to wait for what else ends, 0 when what is there is to be sent.

        Only while STILL_HELD others are held: a statement costs as much as writing thirty rows. What ends by
        itself is sent at once.
        """
        ended = len(self.queue)
        if ended >= ENOUGH_ENDED or len(self._in_flight) - ended < STILL_HELD:
            return 0.0
        return max(0.0, self._sent_at + self._gather_seconds - monotonic())

    def _written(self, written: Sequence[WrittenAttempt]) -> None:
        self.written(written)
        self._wrote([ended.run for ended, _ in written])

    def written(self, written: Sequence[WrittenAttempt]) -> None:
        """Take note of what is written: hold it no more, and log it."""
        runs = [ended.run for ended, _ in written]
        self._in_flight.remove(runs)
        succeeded: list[log.Moved] = []
        came_back = False
        for ended, status in written:
            run, answer = ended.run, ended.answer
            if status == "succeeded" and answer.error_code is None and answer.message is None:
                assignment = run.assignment
                succeeded.append((assignment[0], assignment[3], assignment[2], ended.took_seconds))
                continue
            delay = ended.delay_seconds if status == "failed" else None
            code, why = answer.error_code, answer.message
            if ended.move == "release" and status == "queued":
                came_back = came_back or not ended.started
                code, why = None, _why(ended)
            log_end(run, _EVENTS.get(status, "fail"), self._worker_id, ended.took_seconds, code, why, delay)
        log.run_moves("succeed", self._worker_id, succeeded)
        if came_back:
            # They are due again.
            self._claim_state.wake()

    def committed(self, run: RunInFlight, seconds: float) -> None:
        """Take note of a run whose ``transaction()`` has written its end."""
        log_end(run, "succeed", self._worker_id, seconds)
        self._wrote([run])

    def _wrote(self, written: Sequence[RunInFlight]) -> None:
        """Tell those who plan claims of runs whose rows need us no more."""
        self._claims.wrote(len(written))
        limited = self._claims.limited
        makes_room = bool(limited) and any(run.assignment.job_type in limited for run in written)
        self._claim_state.run_ended(makes_room=makes_room)

    def _look(self) -> None:
        """See, now and then, since when the oldest answer has waited."""
        now = monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        waiting = [*self.queue.waiting(), *self._sending]
        oldest = min((ended.ended_ns for ended in waiting), default=None)
        self._waiting_since = None if oldest is None else now - max(0, boottime_ns() - oldest) / 1e9
        if self._refused_moves:
            # What was refused may have been forgotten since.
            moves = {ended.move for ended in waiting}
            self._refused_moves = {move: why for move, why in self._refused_moves.items() if move in moves}

    def _is_taken(self, move: str) -> None:
        """A batch of ``move`` is written, after others were refused."""
        if self._refused_moves.pop(move, None) is not None and not self._refused_moves:
            log.note("The database takes the answers again.", waiting=len(self.queue) or None)

    def _tell(self, batch: Sequence[EndedAttempt], failure: StatementFailed) -> None:
        """Log that a batch was refused; of what is refused for one of its rows, who that is."""
        why, run = reason(failure), batch[0].run
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

    def _gave_up(self, ended: EndedAttempt) -> None:
        """Hold a run no more whose end may not be written: its lease ends by itself."""
        run = ended.run
        self._in_flight.abandon([run.assignment[:2]])
        log.warn(
            "A run's end cannot be written; it is left to whoever takes back ended leases.",
            run_id=run.run_id, job_type=run.assignment.job_type, attempt=run.assignment.attempt,
        )  # fmt: skip
        self._wrote([run])

    def _refused(self, ended: EndedAttempt) -> None:
        run = ended.run
        self._in_flight.remove([run])
        log.warn(
            "A late answer was refused: the lease was lost.", run_id=run.run_id,
            attempt=run.assignment.attempt, outcome=ended.outcome,
        )  # fmt: skip
        self._wrote([run])


def _why(ended: EndedAttempt) -> str:
    """Return why a run is given back: that it was cut short for it is no error of its own."""
    if not ended.started:
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
    """Log the end of an attempt: how long it took, the error and when it is tried again."""
    run_id, _, attempt, job_type, *_ = run.assignment
    log.move(
        event, run_id=run_id, job_type=job_type, attempt=attempt,
        worker_id=worker_id, duration_seconds=seconds, error_code=code,
        reason=message and message[:200], next_delay_seconds=delay_seconds,
    )  # fmt: skip
