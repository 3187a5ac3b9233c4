"""The sentence about a night, at the top of its page and of its report. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from wakeboard.core.time.durations import format_duration


def number(value: int) -> str:
    """Return a count with narrow spaces between thousands."""
    return f"{value:,}".replace(",", "\u202f")


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return ``1 run`` or ``29 runs``."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


@dataclass(frozen=True, slots=True)
class NightNumbers:
    """The counts of a night. ``attempts`` ended in the window, of so many job ``types``.

    ``new`` counts kinds of failure (code and type) never seen before, ``dead`` and ``waiting`` the runs that
    failed in the window and are in that state now, ``recovered`` those that succeeded in it after failures,
    ``late`` and ``overlapping`` fires, ``slow`` attempts, ``taken_over`` leases, ``stuck`` the runs that are
    stuck now. For ``unmanned_seconds`` no worker was there.
    """

    attempts: int = 0
    types: int = 0
    failed: int = 0
    new: int = 0
    recovered: int = 0
    waiting: int = 0
    dead: int = 0
    missed: int = 0
    missed_is_cut: bool = False
    late: int = 0
    overlapping: int = 0
    slow: int = 0
    taken_over: int = 0
    stuck: int = 0
    running: int = 0
    acts: int = 0
    unmanned_seconds: float = 0.0


def verdict(night: NightNumbers, *, is_over: bool) -> tuple[bool, str, str]:
    """Return (whether nothing needs a person, the bold words, the rest of the sentence)."""
    least = "at least " if night.missed_is_cut else ""
    troubles = [
        words
        for count, words in (
            (night.dead, f"{plural(night.dead, 'run')} gave up"),
            (night.stuck, f"{plural(night.stuck, 'run is', 'runs are')} stuck"),
            (night.missed, f"{least}{plural(night.missed, 'fire')} missed"),
            (night.new, plural(night.new, "new kind of failure", "new kinds of failure")),
        )
        if count
    ]
    if night.unmanned_seconds:
        troubles.append(f"{format_duration(night.unmanned_seconds)} without a worker")
    ran = f"{plural(night.attempts, 'attempt')} of {plural(night.types, 'type')}"
    if troubles:
        return False, ", ".join(troubles) + ".", f"{ran} ended, {number(night.failed)} of them failed."
    if not (night.attempts or night.running):
        return True, "Nothing ran.", "No attempt ended in this window." if is_over else "Not yet."
    if not night.failed:
        strong = "A quiet night." if is_over else "Quiet so far."
        return True, strong, f"{ran} ended, none of them failed.{_oddities(night)}"
    left = (
        f"{plural(night.waiting, 'run waits', 'runs wait')} to be tried again"
        if night.waiting
        else "nothing of it is left to do"
    )
    return (
        True,
        "Nothing needs you.",
        f"{ran} ended, {number(night.failed)} failed; {left}.{_oddities(night)}",
    )


def _oddities(night: NightNumbers) -> str:
    """Return a sentence on what is odd and needs nobody, with a space in front; or an empty text."""
    odd = [
        f"{number(count)} {word}"
        for count, word in (
            (night.late, "late"),
            (night.overlapping, "overlapping"),
            (night.slow, "slow"),
            (night.taken_over, "taken over"),
        )
        if count
    ]
    return f" Worth a look: {', '.join(odd)}." if odd else ""
