"""Backoff: whether and when a failed attempt is tried again, in the pool and in the worker. Pure.

A backoff rule is one line of text that says how long a failed run waits.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self, cast

from wakeboard.core.outcome import AttemptResult
from wakeboard.core.time.durations import format_duration, parse_duration

DEFAULT_BACKOFF = "exponential 10s cap 30m"

# A retry without a pause hammers whatever has just failed; a pause of months is a schedule, not a retry.
SHORTEST_SECONDS = 0.01
LONGEST_SECONDS = 30 * 86_400.0
JITTER = 0.2
# The most by which runs are spread that all come back after the same long delay.
LONGEST_SPREAD_SECONDS = 300.0
LONGEST_TEXT = 200
# 0.01 s doubled this often is past LONGEST_SECONDS, so larger exponents change nothing and never overflow.
LARGEST_EXPONENT = 40

Kind = Literal["fixed", "exponential", "quadratic", "list"]
_RULE = re.compile(r"(fixed|exponential|quadratic) ([^ ]+)(?: cap ([^ ]+))?")


@dataclass(frozen=True, slots=True)
class Backoff:
    """A backoff rule, parsed and checked.

    kind: which formula.
    steps: seconds; the one base of a formula, or the list's delays in order.
    cap_seconds: no delay is longer, jitter included.
    text: the rule as an operator reads it, normalised; `Backoff.parse(rule.text) == rule`.
    """

    kind: Kind
    steps: tuple[float, ...]
    cap_seconds: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a rule: `fixed 30s`, `exponential 10s cap 30m`, `quadratic 10s`, or a list `1m,5m,30m,2h`.

        Raises ValueError with a sentence; every delay must be 0.01 s to 30 d.
        """
        if len(text) > LONGEST_TEXT:
            raise ValueError(f"A backoff of {len(text)} characters is too long: {LONGEST_TEXT} are allowed.")
        cleaned = " ".join(text.lower().split())
        rule = _RULE.fullmatch(cleaned)
        if rule is None:
            return cls._parse_list(cleaned, text)
        kind, base, cap = cast(Kind, rule[1]), rule[2], rule[3]
        if cap is not None and kind != "exponential":
            raise ValueError(f"{text!r} cannot have a cap: only exponential can, as in {DEFAULT_BACKOFF!r}.")
        base_seconds, cap_seconds = _delay(base, text), LONGEST_SECONDS if cap is None else _delay(cap, text)
        if cap_seconds < base_seconds:
            raise ValueError(f"{text!r} has a cap below its first delay: raise {cap} or lower {base}.")
        return cls(kind=kind, steps=(base_seconds,), cap_seconds=cap_seconds, text=cleaned)

    @classmethod
    def _parse_list(cls, cleaned: str, text: str) -> Self:
        delays = [delay.strip() for delay in cleaned.split(",")]
        if not delays[0][:1].isdigit():
            raise ValueError(
                f"{text!r} is not a backoff: write 'fixed 30s', 'exponential 10s cap 30m', 'quadratic 10s', "
                "or a list of delays like '1m,5m,30m,2h'."
            )
        steps = tuple(_delay(delay, text) for delay in delays)
        return cls(kind="list", steps=steps, cap_seconds=LONGEST_SECONDS, text=",".join(delays))

    def delay_seconds(self, failures: int, jitter: float | None = None) -> float:
        """Return how long to wait before the next attempt.

        failures: the run's failures, 1 or more, the one just recorded included.
        jitter: 0 (20 % sooner) to 1 (20 % later); None draws one; `fixed` ignores it.
        Returns seconds, 0.008 to the cap (30 d without one). Where 20 % later would pass the cap, the jitter
        spreads between 20 % sooner and the cap instead: the cap is a promise, and runs that failed together
        still do not return together.
        Raises ValueError for failures below 1 and a jitter outside 0 to 1.
        """
        if failures < 1:
            raise ValueError(f"failures is {failures}: it counts the one just recorded, so it is 1 or more.")
        nominal = self._nominal(failures)
        if self.kind == "fixed":
            return nominal
        fraction = random.random() if jitter is None else jitter
        if not 0 <= fraction <= 1:
            raise ValueError(f"jitter is {fraction}: it has to be from 0 to 1.")
        soonest, latest = nominal * (1 - JITTER), min(nominal * (1 + JITTER), self.cap_seconds)
        return soonest + (latest - soonest) * fraction

    def not_before_seconds(self, after: float, jitter: float | None = None) -> float:
        """Return how long a run waits that must not come back before `after` seconds.

        after: seconds, 0 or more. jitter: 0 (exactly then) to 1 (20 % later, at most 5 minutes); None draws
        one; `fixed` ignores it. Never sooner than `after`, and runs with the same `after` come back apart.
        """
        if self.kind == "fixed":
            return after
        fraction = random.random() if jitter is None else jitter
        return after + min(after * JITTER, LONGEST_SPREAD_SECONDS) * fraction

    def _nominal(self, failures: int) -> float:
        if self.kind == "list":
            return self.steps[min(failures, len(self.steps)) - 1]
        base = self.steps[0]
        if self.kind == "fixed":
            return base
        growth = (
            min(failures, 2**31) ** 2
            if self.kind == "quadratic"
            else 2 ** min(failures - 1, LARGEST_EXPONENT)
        )
        return min(base * growth, self.cap_seconds)

    @classmethod
    def parse_or_default(cls, text: str) -> Self:
        """Return the rule of ``text``, or the default when it cannot be read: a newer worker published it."""
        try:
            return cls.parse(text)
        except ValueError:
            return cls.parse(DEFAULT_BACKOFF)

    def describe(self) -> str:
        """Return the rule in one line for people, as pages print it."""
        first = format_duration(self.steps[0])
        if self.kind == "fixed":
            return f"{first} each time"
        if self.kind == "list":
            steps = ", ".join(format_duration(step) for step in self.steps)
            rest = " each time" if len(self.steps) == 1 else ", then always the last"
            return f"{steps}{rest} (±20 %)"
        delays = ", ".join(format_duration(self._nominal(failures)) for failures in (1, 2, 3))
        grows = "doubling" if self.kind == "exponential" else f"failures² × {first}"
        return f"{delays} and so on, {grows}, at most {format_duration(self.cap_seconds)} (±20 %)"


def _delay(duration: str, rule: str) -> float:
    try:
        seconds = parse_duration(duration)
    except ValueError as wrong:
        raise ValueError(f"The backoff {rule!r} has a delay that cannot be read. {wrong}") from None
    if seconds < SHORTEST_SECONDS:
        raise ValueError(f"The backoff {rule!r} would retry at once: wait at least {SHORTEST_SECONDS}s.")
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"The backoff {rule!r} waits longer than 30d: shorten {duration!r}.")
    return seconds


# Runs that fail by the thousand have the same few rules.
_parse_cached = lru_cache(maxsize=256)(Backoff.parse)


def delay_seconds(answer: AttemptResult, backoff: str, failures: int) -> float:
    """Return how long to wait, in seconds: by the rule `backoff`, and not before what the handler asked for
    (`Retryable(after=…)`) has passed. The later of the two holds.

    `failures` counts the one just made, so it is 1 or more.
    """
    rule = _parse_cached(backoff)
    delay = rule.delay_seconds(failures)
    if answer.retry_after_seconds is None:
        return delay
    return max(delay, rule.not_before_seconds(answer.retry_after_seconds))


def is_final(answer: AttemptResult, failures: int, max_attempts: int) -> bool:
    """Return whether the failure is the run's last; the guard of the SQL move `fail` agrees."""
    return answer.permanent or failures >= max_attempts
