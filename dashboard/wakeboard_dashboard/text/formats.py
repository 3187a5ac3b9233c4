"""Pure functions that turn values into words: Jinja's filters, the CSV cells and the JSON values.

No request, no database, no clock of our own: relative times are the browser's work.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2s
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

# A row of a query, or a dictionary like one.
Row = Mapping[Any, Any]
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# A page has hundreds of moments, and polls show the same ones again.
MOMENTS = 4096
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_NO_MOMENT = Markup('<span class="muted">–</span>')


def iso(value: datetime) -> str:
    """Return ISO 8601 in UTC, to the microsecond, as twins give it."""
    return value.astimezone(UTC).isoformat()


def instant(value: datetime) -> str:
    """Return ISO 8601 in UTC, to the millisecond: the most that a ``datetime`` attribute may hold."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds" if value.microsecond else "seconds")


def utc(value: datetime) -> str:
    """Return ``2026-11-20 21:44:10 UTC``."""
    return f"{_seconds(value.astimezone(UTC))} UTC"


def local(value: datetime, zone: tzinfo = UTC) -> str:
    """Return ``2026-11-20 22:44:10 CET``: the time in ``zone``, which is always named."""
    return _local(value.astimezone(UTC), zone)


# Of UTC: in a zone with summer time two moments an hour apart may be equal, and the wrong one be remembered.
@lru_cache(MOMENTS)
def _local(value: datetime, zone: tzinfo) -> str:
    there = value.astimezone(zone)
    return f"{_seconds(there)} {there.tzname()}"


def _seconds(at: datetime) -> str:
    """Return ``2026-11-20 21:44:10``. A page has a thousand: from numbers it takes twice as long."""
    return at.isoformat(" ", "seconds")[:19].lstrip("0")


def here_and_both(value: datetime, zone: tzinfo = UTC) -> tuple[str, str]:
    """Return ``local``, and ``2026-11-20 22:44:10 CET = 2026-11-20 21:44:10 UTC``: once if they are equal."""
    here, there = local(value, zone), utc(value)
    return here, here if here == there else f"{here} = {there}"


def when(value: datetime | None, zone: tzinfo = UTC, mode: str = "relative", missing: str = "–") -> Markup:
    """Return a moment as HTML. The script makes it relative by ``mode``: relative, elapsed, absolute (not).

    A table has hundreds of them, and a macro takes longer.
    """
    if value is None:
        return Markup(f'<span class="muted">{escape(missing)}</span>')
    return _when(value.astimezone(UTC), zone, mode)


@lru_cache(MOMENTS)
def _when(value: datetime, zone: tzinfo, mode: str) -> Markup:
    here, both = here_and_both(value, zone)
    script = "" if mode == "absolute" else f' data-relative="{escape(mode)}" hx-morph-skip-children'
    return Markup(f'<time datetime="{instant(value)}" title="{escape(both)}"{script}>{escape(here)}</time>')


def brief(value: datetime | None, zone: tzinfo = UTC) -> Markup:
    """Return ``Sat 22:44`` as HTML, the whole moment in its tooltip: for narrow columns and for paper."""
    return _NO_MOMENT if value is None else _brief(value.astimezone(UTC), zone)


@lru_cache(MOMENTS)
def _brief(value: datetime, zone: tzinfo) -> Markup:
    here, whole = value.astimezone(zone), escape(here_and_both(value, zone)[1])
    short = f"{_DAYS[here.weekday()]} {here.hour:02}:{here.minute:02}"
    return Markup(f'<time datetime="{instant(value)}" title="{whole}">{short}</time>')


def clock(value: datetime, zone: tzinfo = UTC) -> str:
    """Return ``22:44:10 CET``."""
    return value.astimezone(zone).strftime("%H:%M:%S %Z")


def number(value: int | float | Decimal) -> str:
    """Return a count with narrow spaces between thousands: ``18 402``."""
    return f"{value:,.0f}".replace(",", "\u202f")


def percent(part: float, whole: float) -> str:
    """Return ``99.6 %``; a whole of 0 is ``–``. Never rounds up to 100 nor down to 0."""
    if not whole:
        return "–"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "< 0.1\u202f%"
    if 99.9 < share < 100:
        return "> 99.9\u202f%"
    return f"{share:.1f}".removesuffix(".0") + "\u202f%"


def duration(seconds: float | None) -> str:
    """Return a length of time as people say it: ``12 ms``, ``3.4 s``, ``4 min 2 s``, ``3 h 12 min``.

    Whole seconds, as people set them, have no decimal: ``30 s``.
    """
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.0f} s" if seconds == int(seconds) else f"{seconds:.1f} s"
    return _long(round(seconds))


def _long(seconds: int) -> str:
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    for (name, size), (next_name, next_size) in pairwise(units):
        if seconds >= size:
            rest = seconds % size // next_size
            return f"{seconds // size} {name} {rest} {next_name}" if rest else f"{seconds // size} {name}"
    return f"{seconds} s"


def moment(value: object) -> datetime | None:
    """Return the time that an ISO text of JSON names, None when it is none or knows no zone."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


def between(start: datetime | None, end: datetime | None) -> str:
    """Return the duration from ``start`` to ``end``; ``–`` when either is missing."""
    return "–" if start is None or end is None else duration((end - start).total_seconds())


def stopped_at(run: Row) -> datetime | None:
    """Return when the latest start of ``run``, a row of job_runs that is not running, came to its end.

    Of a failed one that was cancelled afterwards ``finished_at`` is the cancel.
    """
    started_at, failed_at = run["started_at"], run["failed_at"]
    failed_last = started_at is not None and failed_at is not None and failed_at >= started_at
    found: datetime | None = failed_at if failed_last else run["finished_at"]
    return found


def took(run: Row) -> str:
    """Return how long the latest start of ``run`` took; ``–`` when it has not ended or never began."""
    return between(run["started_at"], stopped_at(run))


def size(value: float | None) -> str:
    """Return bytes as ``212 MB`` (powers of 1000)."""
    if value is None:
        return "–"
    for name, unit in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} B"


def clip(value: str | None, length: int = 200) -> str:
    """Return the first line of ``value``, at most ``length`` characters, with … when something is missing."""
    if not value:
        return ""
    line = value.strip().split("\n", 1)[0]
    return line if line == value and len(line) <= length else f"{line[: length - 1]}…"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return ``1 run`` or ``29 runs``."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def visible(value: str | None) -> str:
    """Return ``value`` with control and bidirectional characters made visible, line breaks and tabs kept."""
    if not value:
        return ""
    # What Unicode calls printable holds none of them, and is told faster than a pattern can.
    if value.isprintable():
        return value
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", value.replace("\r\n", "\n"))


def anchor(value: str) -> str:
    """Return an element id part for foreign text: stable, and safe whatever the text contains."""
    return blake2s(value.encode("utf-8", "replace"), digest_size=6).hexdigest()


def pretty(value: object) -> str:
    """Return JSON indented for reading."""
    return visible(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def plain(value: object) -> object:
    """Return ``value`` as JSON can carry it: datetimes as ISO text in UTC, decimals as numbers."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def cell(value: object) -> str:
    """Return a CSV cell; text that a spreadsheet would run as a formula is led by an apostrophe."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, datetime):
        return iso(value)
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else shown


FILTERS = {
    "instant": instant,
    "iso": iso,
    "utc": utc,
    "number": number,
    "percent": percent,
    "duration": duration,
    "moment": moment,
    "between": between,
    "took": took,
    "size": size,
    "clip": clip,
    "plural": plural,
    "visible": visible,
    "anchor": anchor,
    "pretty": pretty,
}
