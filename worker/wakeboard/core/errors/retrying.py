"""When a failed attempt is tried again: the same answer for the pool and for the worker. Pure."""

from __future__ import annotations

from functools import lru_cache

from wakeboard.core.errors.backoff import Backoff
from wakeboard.core.outcome import Answer

# Whatever fails by the thousand has the same few rules.
_rule = lru_cache(maxsize=256)(Backoff.parse)


def delay_seconds(answer: Answer, backoff: str, failures: int) -> float:
    """Return how long to wait, in seconds: by the rule `backoff`, and not before what the handler asked for
    (`Retryable(after=…)`) has passed. The later of the two holds.

    `failures` counts the one just made, so it is 1 or more.
    """
    rule = _rule(backoff)
    own = rule.delay_seconds(failures)
    if answer.retry_after_seconds is None:
        return own
    return max(own, rule.not_before_seconds(answer.retry_after_seconds))


def gives_up(answer: Answer, failures: int, max_attempts: int) -> bool:
    """Return whether the failure is final; the guard of the SQL move `fail` says the same of a row."""
    return answer.permanent or failures >= max_attempts
