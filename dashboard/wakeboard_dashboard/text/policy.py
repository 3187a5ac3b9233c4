"""The policy of a job type in words: how often it is tried, and how long it waits in between. Pure."""

from __future__ import annotations

from functools import lru_cache

from wakeboard.core.retry import Backoff

# The delays of further attempts are equal: they are multiplied.
MOST_SUMMED = 1000


@lru_cache(maxsize=512)
def retries(max_attempts: int, backoff: str) -> str:
    """Return ``waits 10 s, 20 s, 40 s and so on, doubling, at most 30 m (±20 %)``."""
    return "no retry" if max_attempts <= 1 else f"waits {Backoff.parse_or_default(backoff).describe()}"


def patience_seconds(max_attempts: int, backoff: str) -> float | None:
    """Return how long a run waits in all before it gives up, on the average; None without a retry."""
    if max_attempts <= 1:
        return None
    rule, waits = Backoff.parse_or_default(backoff), max_attempts - 1
    summed = sum(rule.delay_seconds(failures, 0.5) for failures in range(1, min(waits, MOST_SUMMED) + 1))
    return summed + max(0, waits - MOST_SUMMED) * rule.delay_seconds(MOST_SUMMED, 0.5)
