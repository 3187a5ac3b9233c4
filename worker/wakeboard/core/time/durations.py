"""Durations as people write them ("1h30m") and as pages show them ("1 h 30 m"). Pure: reads no clock."""

import math
import re

UNIT_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
LONGEST_SECONDS = 3_650 * UNIT_SECONDS["d"]
# No meaningful duration needs more characters; it also bounds the argument of float().
LONGEST_TEXT = 40

_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_PARTS = re.compile(
    r"(?:(?P<d>[0-9]+(?:\.[0-9]+)?)d)?\s*(?:(?P<h>[0-9]+(?:\.[0-9]+)?)h)?\s*"
    r"(?:(?P<m>[0-9]+(?:\.[0-9]+)?)m)?\s*(?:(?P<s>[0-9]+(?:\.[0-9]+)?)s)?",
    re.ASCII,
)


def parse_duration(text: str) -> float:
    """Read a duration.

    text: parts of a number and a unit (s, m, h, d), largest unit first ("45s", "1h30m", "2d"), or a plain
        number of seconds. Decimals are allowed, signs are not.
    Returns seconds, 0 to ten years (3650 days).
    Raises ValueError with a sentence that names the text and what is allowed.
    """
    cleaned = text.strip().lower()
    if len(cleaned) > LONGEST_TEXT:
        raise ValueError(
            f"A duration of {len(cleaned)} characters is too long: write it like 30s, 5m, 1h30m or 2d."
        )
    seconds = _parse_seconds(cleaned)
    if seconds is None:
        raise ValueError(
            f"{text!r} is not a duration: write numbers with the units d, h, m, s, largest first "
            "(30s, 5m, 1h30m, 2d), or a plain number of seconds."
        )
    if not seconds <= LONGEST_SECONDS:
        raise ValueError(
            f"{text!r} is longer than ten years: the longest duration is {LONGEST_SECONDS // 86_400}d."
        )
    return seconds


def _parse_seconds(cleaned: str) -> float | None:
    if _PLAIN.fullmatch(cleaned):
        return float(cleaned)
    parts = _PARTS.fullmatch(cleaned)
    if not cleaned or parts is None:
        return None
    return math.fsum(
        float(amount) * UNIT_SECONDS[unit] for unit, amount in parts.groupdict().items() if amount
    )


def format_duration(seconds: float) -> str:
    """Show a duration in its one or two largest units: "0.25 s", "45 s", "4 m 2 s", "2 h", "3 d 4 h".

    seconds: finite, may be negative (a clock that runs ahead); under ten seconds two digits are kept.
    Raises ValueError for infinity and NaN.
    """
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} cannot be shown as a duration: it has to be a finite number of seconds.")
    sign = "-" if seconds < 0 else ""
    magnitude = _magnitude(abs(seconds))
    return magnitude if magnitude == "0 s" else sign + magnitude


def _magnitude(seconds: float) -> str:
    if seconds < 9.95:
        return f"{float(f'{seconds:.2g}' if seconds >= 0.01 else f'{seconds:.3f}'):g} s"
    # Rounded to the smaller unit first, so that 59.7 s reads "1 m" and never "60 s".
    for larger, smaller, next_larger in (("m", "s", "h"), ("h", "m", "d")):
        rounded = round(seconds / UNIT_SECONDS[smaller]) * UNIT_SECONDS[smaller]
        if rounded < UNIT_SECONDS[next_larger]:
            return _in_two_units(rounded, larger, smaller)
    return _in_two_units(round(seconds / UNIT_SECONDS["h"]) * UNIT_SECONDS["h"], "d", "h")


def _in_two_units(seconds: int, larger: str, smaller: str) -> str:
    whole, rest = divmod(seconds, UNIT_SECONDS[larger])
    amounts = ((whole, larger), (rest // UNIT_SECONDS[smaller], smaller))
    return " ".join(f"{amount} {unit}" for amount, unit in amounts if amount)
