"""Reads when a pause ends or a run is due: a duration from now, a time, or never. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from wakeboard.core.time.durations import parse_duration

# Offered where a pause begins.
ENDS = (("15m", "15 minutes"), ("1h", "an hour"), ("4h", "four hours"), ("1d", "a day"))
NEVER = ("", "never", "none")
# The fields of a form or JSON: an end that is offered, and any other.
FIELDS = ("until", "until_at")


def parse_end(text: str, now: datetime, zone: tzinfo) -> datetime | None:
    """Return when ``text`` is, in UTC: ``2h`` from ``now``, or an ISO time, in ``zone`` without an offset.

    None for nothing and ``never``. Raises ValueError with a sentence.
    """
    given = text.strip()
    if given.lower() in NEVER:
        return None
    try:
        if len(given) > 8 and given[4:5] == "-":
            found = datetime.fromisoformat(given)
            return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
        return now + timedelta(seconds=parse_duration(given))
    except (ValueError, OverflowError):
        raise ValueError(
            f"The end is “{given[:60]}”; allowed: a duration such as 30m, 2h or 1d, "
            "a time such as 2026-11-22T06:00, or never."
        ) from None
