"""How a browser shows every page: cookies of its own, read with each request; wrong ones count as none."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from flask import g, request

YEAR_SECONDS = 31_536_000
# The zone of the page that is being made, as ``g.zone``: for each moment of a page, to look into ``g`` takes
# longer than to show it.
HERE: ContextVar[tzinfo] = ContextVar("HERE", default=UTC)
# What may be chosen besides the usual, which is the empty text.
CHOICES: dict[str, dict[str, str]] = {
    "theme": {"": "As the system", "light": "Light", "dark": "Dark"},
    "density": {"": "Compact", "comfortable": "Comfortable"},
    "times": {"": "Ago and in (2 min ago)", "absolute": "Dates (2026-11-20 22:44:10)"},
}


@lru_cache(maxsize=1)
def zones() -> tuple[str, ...]:
    """Return the names of all time zones, in the order of the alphabet; those of cities and UTC."""
    named = (name for name in sorted(available_timezones()) if "/" in name and not name.startswith("Etc/"))
    return (*named, "UTC")


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    return frozenset(available_timezones())


def is_zone(name: str) -> bool:
    """Return whether times can be read in the zone ``name``, listed or not."""
    return name in _known()


def zone() -> ZoneInfo | None:
    """Return the zone this browser reads times in, None when it chose none."""
    chosen = request.cookies.get("wakeboard_zone", "")
    return ZoneInfo(chosen) if is_zone(chosen) else None


def set_zone(usual: ZoneInfo) -> None:
    """Let the request show times in the zone that its browser chose, or in the ``usual`` one."""
    g.zone = zone() or usual
    HERE.set(g.zone)


def choice(name: str) -> str:
    """Return what this browser chose of ``CHOICES[name]``."""
    chosen = request.cookies.get(f"wakeboard_{name}", "")
    return chosen if chosen in CHOICES[name] else ""
