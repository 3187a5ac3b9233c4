"""What becomes of a pool's job after an attempt. Pure: the retry rule is the one of every engine."""

from __future__ import annotations

from dataclasses import dataclass

from wakeboard.core.errors.retrying import delay_seconds, gives_up
from wakeboard.core.outcome import Answer
from wakeboard.handlers.pool.future import State, Ticket


@dataclass(frozen=True, slots=True)
class Ending:
    """`state`: succeeded, dead, cancelled, failed (to be tried again after `delay_seconds`), or dropped: cut
    short because the pool leaves, which costs no failure."""

    state: State
    failures: int
    error_code: str | None = None
    message: str | None = None
    delay_seconds: float | None = None


def decide(ticket: Ticket, answer: Answer, *, cancel_asked: bool, is_leaving: bool) -> Ending:
    """Return what to do after `answer`; `cancel_asked` by a person, `is_leaving` by a pool that ends."""
    if answer.kind == "returned":
        return Ending("succeeded", ticket.failures)
    if cancel_asked:
        return Ending("cancelled", ticket.failures, "cancelled", "cancelled on request")
    if is_leaving and answer.kind in ("cancelled", "timed_out"):
        return Ending("dropped", ticket.failures, "cut_short", "was cut short because the pool stopped")
    failures = ticket.failures + 1
    if gives_up(answer, failures, ticket.type.max_attempts):
        return Ending("dead", failures, answer.error_code, answer.message)
    delay = delay_seconds(answer, ticket.type.backoff, failures)
    return Ending("failed", failures, answer.error_code, answer.message, delay)
