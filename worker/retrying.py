"""When a failed attempt is tried again: the same answer for the pool and for the worker. Pure."""

from __future__ import annotations

from worker.backoff import Backoff
from worker.outcome import Answer

# A handler that asks to be tried again at once would hammer what has just refused it.
SHORTEST_AFTER_SECONDS = 1.0


def delay_seconds(answer: Answer, backoff: str, failures: int) -> float:
    """Return how long to wait: what the handler asked for (`Retryable(after=…)`), else the rule `backoff`.

    `failures` counts the one just made, so it is 1 or more.
    """
    if answer.retry_after_seconds is not None:
        return max(SHORTEST_AFTER_SECONDS, answer.retry_after_seconds)
    return Backoff.parse(backoff).delay_seconds(failures)


def gives_up(answer: Answer, failures: int, max_attempts: int) -> bool:
    """Return whether the failure is final; the guard of the SQL move `fail` says the same of a row."""
    return answer.permanent or failures >= max_attempts
