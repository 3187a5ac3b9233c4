"""The preferences of a browser: cookies, read with each request; an invalid one counts as none."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from flask import g, request

YEAR_SECONDS = 31_536_000
# The zone of the page that is being rendered, as ``g.zone``. To read ``g`` for each time on a page takes
# longer than to format it.
HERE: ContextVar[tzinfo] = ContextVar("HERE", default=UTC)
# The choices by cookie; the default is the empty text.
CHOICES: dict[str, dict[str, str]] = {
    "theme": {"": "As the system", "light": "Light", "dark": "Dark"},
    "density": {"": "Compact", "comfortable": "Comfortable"},
    "times": {"": "Ago and in (2 min ago)", "absolute": "Dates (2026-11-20 22:44:10)"},
}


@lru_cache(maxsize=1)
def zones() -> tuple[str, ...]:
    """Return the names of the zones of cities in alphabetical order, then UTC."""
    named = (name for name in sorted(available_timezones()) if "/" in name and not name.startswith("Etc/"))
    return (*named, "UTC")


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    return frozenset(available_timezones())


def is_zone(name: str) -> bool:
    """Return whether there is a time zone ``name``, listed by ``zones`` or not."""
    return name in _known()


def zone() -> ZoneInfo | None:
    """Return the zone this browser reads times in, None when it chose none."""
    chosen = request.cookies.get("wakeboard_zone", "")
    return ZoneInfo(chosen) if is_zone(chosen) else None


def set_zone(usual: ZoneInfo) -> None:
    """Set the zone in which this request shows times: the browser's choice, else ``usual``."""
    g.zone = zone() or usual
    HERE.set(g.zone)


def choice(name: str) -> str:
    """Return what this browser chose of ``CHOICES[name]``."""
    chosen = request.cookies.get(f"wakeboard_{name}", "")
    return chosen if chosen in CHOICES[name] else ""
