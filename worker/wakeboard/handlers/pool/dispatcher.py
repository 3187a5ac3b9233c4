"""What follows from the end of an attempt: log it, try again, hand the job off, drop it, give a handler up.

The board says what is so, the clerk does what it means; it waits for nobody and holds no lock while it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wakeboard.config import log
from wakeboard.core.outcome import Answer
from wakeboard.core.process.shared_slot import boottime_ns
from wakeboard.handlers.pool.future import State, Ticket
from wakeboard.handlers.pool.handling import Attempt
from wakeboard.handlers.pool.state import Board

Handoff = Callable[..., int]


class Clerk:
    """The hands of one pool."""

    def __init__(
        self,
        board: Board,
        name: str,
        handoff: Handoff | None,
        longest_delay_seconds: float,
        *,
        log_every_move: bool,
    ) -> None:
        """`handoff` takes what is to wait longer than `longest_delay_seconds`, and what would be dropped."""
        self._board, self._name, self._log_every_move = board, name, log_every_move
        self._handoff, self._longest_delay_seconds = handoff, longest_delay_seconds

    def hands_off(self, delay_seconds: float) -> bool:
        """Whether a job that is to wait so long does not wait here."""
        return self._handoff is not None and delay_seconds > self._longest_delay_seconds

    def started(self, attempt: Attempt) -> None:
        """A thread begins an attempt."""
        self.log("claim", attempt.ticket)

    def finished(self, attempt: Attempt, answer: Answer) -> None:
        """A thread has an answer: write it down, and go on with a job that is not at its end."""
        ticket = attempt.ticket
        ending = self._board.settle(attempt, answer)
        if ending is None:
            self._warn("A late answer was refused: the job had been given up.", attempt, outcome=answer.kind)
        elif ending.state == "dropped":
            self.put_back(ticket)
        elif ending.delay_seconds is None:
            event = "succeed" if ending.state == "succeeded" else ending.state
            self.log(event, ticket, attempt.seconds)
        else:
            self.log("fail", ticket, attempt.seconds, ending.delay_seconds)
            self._try_again(ticket, ending.delay_seconds)

    def _try_again(self, ticket: Ticket, delay_seconds: float) -> None:
        if self.hands_off(delay_seconds):
            self.hand_off(ticket, delay_seconds, self._board.end)
        elif not self._board.retry(ticket, delay_seconds):
            self.put_back(ticket, delay_seconds)

    def give_up(self) -> None:
        """End the jobs of handlers that heeded neither their deadline nor a cancel."""
        for attempt in self._board.give_up():
            if attempt.is_leaving:
                self.leave_behind(attempt)
            elif attempt.cancel_asked:
                self._end_without(attempt, "cancelled", "cancelled", "was asked to stop and still runs")
            else:
                limit = (
                    f"ran longer than its timeout of {attempt.ticket.type.timeout_seconds:g} s and still runs"
                )
                attempt.ticket.failures += 1
                self._end_without(attempt, "dead", "timed_out", limit)

    def leave_behind(self, attempt: Attempt) -> None:
        """End the job of a handler that still runs when the pool leaves."""
        self._end_without(attempt, "dropped", "still_running", "still ran when the pool stopped")

    def _end_without(self, attempt: Attempt, state: State, code: str, message: str) -> None:
        attempt.ticket.error_code, attempt.ticket.last_error = code, message
        self._board.end(attempt.ticket, state)
        self._warn(f"A handler was given up: it {message}.", attempt)

    def put_back(self, ticket: Ticket, delay_seconds: float | None = None) -> None:
        """A job in hand that this pool will not run: hand it off, or drop it."""
        if self._handoff is not None:
            if delay_seconds is None:
                delay_seconds = max(0.0, (ticket.due_ns - boottime_ns()) / 1e9)
            self.hand_off(ticket, delay_seconds, self._board.end)
            return
        if ticket.error_code is None:
            ticket.error_code, ticket.last_error = "pool_stopped", "the pool stopped before it ran"
        self._board.end(ticket, "dropped")
        self.log("drop", ticket)

    def turn_away(self, ticket: Ticket) -> None:
        """A job for which a full pool has no room: hand it off, or drop it."""
        if self._handoff is not None:
            self.hand_off(ticket, 0.0, self._board.turn_away)
            return
        ticket.error_code, ticket.last_error = "pool_full", "the pool was full"
        self._board.turn_away(ticket, "dropped")
        self.log("drop", ticket)

    def hand_off(self, ticket: Ticket, delay: float, end: Callable[[Ticket, State], None]) -> None:
        """Give the job to the table, due in `delay` seconds, and end it here by `end`. A hand-off that fails
        is a final failure."""
        assert self._handoff is not None
        left = max(1, ticket.type.max_attempts - ticket.failures) if ticket.failures else None
        try:
            ticket.handed_to = self._handoff(
                ticket.job_type, ticket.payload, key=ticket.key, delay=delay, max_attempts=left
            )
        except Exception as error:
            ticket.error_code = "handoff_failed"
            ticket.last_error = f"It could not be handed off: {type(error).__name__}: {error}"
            end(ticket, "dead")
            self.log("dead", ticket)
        else:
            end(ticket, "handed_off")
            self.log("hand_off", ticket, next_delay=delay)

    def log(
        self, event: str, ticket: Ticket, took: float | None = None, next_delay: float | None = None
    ) -> None:
        """Log one move of a job; `took` and `next_delay` in seconds."""
        is_well = event in ("claim", "succeed")
        if is_well and not self._log_every_move:
            return
        log.move(
            event, run_id=ticket.id, job_type=ticket.job_type, attempt=ticket.attempts, worker_id=self._name,
            duration_seconds=took, error_code=None if is_well else ticket.error_code,
            reason=None if is_well else ticket.last_error and ticket.last_error[:200],
            next_delay_seconds=next_delay,
        )  # fmt: skip

    def _warn(self, sentence: str, attempt: Attempt, **fields: Any) -> None:
        log.warn(
            sentence, run_id=attempt.ticket.id, job_type=attempt.ticket.job_type, attempt=attempt.number,
            worker_id=self._name, duration_seconds=attempt.seconds, **fields,
        )  # fmt: skip
