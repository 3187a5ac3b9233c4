"""The recording side of the loop: sends what ended, a batch at a time; logs each move as it is written."""

from __future__ import annotations

from collections.abc import Callable

from worker import log
from worker.loop.channel import StatementFailed
from worker.loop.held import Held, Holdings
from worker.loop.line import Line
from worker.loop.record import Ended, Recorder

_EVENTS = {"dead": "dead", "cancelled": "cancelled", "queued": "release", "succeeded": "succeed"}


class Writer:
    """Writes ended attempts on one line. ``wrote`` hears of each run whose row needs us no more."""

    def __init__(
        self, line: Line, holdings: Holdings, worker_id: str, *, wrote: Callable[[Held], None]
    ) -> None:
        self._line = line
        self._holdings = holdings
        self._worker_id = worker_id
        self._wrote = wrote
        self._recorder = Recorder(worker_id, self._written, self._refused)

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits to be written and nothing is being written."""
        return not len(self._recorder) and self._line.is_quiet

    def add(self, ended: Ended) -> None:
        """Queue an attempt to be written."""
        self._recorder.add(ended)

    def step(self) -> None:
        """Send what arrived while the last batch was being committed."""
        if not len(self._recorder) or not self._line.is_free:
            return
        batch = self._recorder.next_batch()
        if not batch:
            return
        assert self._line.channel is not None

        def failed(failure: Exception) -> None:
            if isinstance(failure, StatementFailed):
                log.warn("The database refused a batch of answers; trying one by one.", error=str(failure))
                self._recorder.refuse(batch, failure)
            else:
                self._recorder.give_back(batch)

        self._line.channel.run(self._recorder.script(batch), lambda _: None, failed)

    def _written(self, ended: Ended, status: str) -> None:
        self._holdings.drop(*ended.held.assignment[:2])
        answer = ended.answer
        delay = ended.delay_seconds if status == "failed" else None
        log_end(
            ended.held, _EVENTS.get(status, "fail"), self._worker_id, ended.took_seconds,
            answer.error_code, answer.message, delay,
        )  # fmt: skip
        self._wrote(ended.held)

    def _refused(self, ended: Ended) -> None:
        held = ended.held
        self._holdings.drop(held.run_id, held.lease_epoch)
        log.warn(
            "A late answer was refused: the lease was lost.", run_id=held.run_id,
            attempt=held.assignment.attempt, outcome=ended.outcome,
        )  # fmt: skip
        self._wrote(held)


def log_end(
    held: Held,
    event: str,
    worker_id: str,
    seconds: float,
    code: str | None = None,
    message: str | None = None,
    delay_seconds: float | None = None,
) -> None:
    """Log the end of an attempt: how long it took, the error and when it is tried again."""
    run_id, _, attempt, job_type, *_ = held.assignment
    if code is None and message is None and delay_seconds is None:
        log.run_move(event, run_id, job_type, attempt, worker_id, seconds)
        return
    log.move(
        event, run_id=run_id, job_type=job_type, attempt=attempt,
        worker_id=worker_id, duration_seconds=seconds, error_code=code,
        reason=message and message[:200], next_delay_seconds=delay_seconds,
    )  # fmt: skip
