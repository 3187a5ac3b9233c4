"""The navigation: every page with an address of its own, in one table, and the keys of the keyboard.

A page that is not in ``PAGES`` is in no menu and has no key. The script acts on a row by the keys that its
buttons carry (``data-key``), and goes where a link says (``data-go``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# (keys, what they do) as the help dialog lists them.
KEYS = (
    ("j k", "next, previous row"),
    ("o", "open the row"),
    ("x", "check the row"),
    ("r", "retry or run the row, or what is checked; many: asks first"),
    ("c", "cancel the row, or what is checked"),
    ("h l", "newer, older page of the list"),
    ("/", "filter"),
    ("p", "pause or resume live updates"),
    ("?", "this list"),
)


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """One page of the navigation.

    ``key`` opens it after ``g``. ``subtitle`` stands beside its heading and in its description. ``place`` is
    where its link is: in the bar, in the bar of wide windows and else in the menu More, or in that menu.
    """

    path: str
    label: str
    key: str
    subtitle: str
    place: Literal["bar", "wide", "menu"] = "bar"

    @property
    def is_in_menu(self) -> bool:
        """Whether the menu More has it, in narrow windows at least."""
        return self.place != "bar"


PAGES = (
    NavigationEntry("/", "Overview", "o", "how things are, what needs a person, what comes next"),
    NavigationEntry("/runs", "Runs", "r", "which failed, which run, which wait, and why"),
    NavigationEntry("/errors", "Errors", "e", "what fails, by type, code, message and place"),
    NavigationEntry("/leases", "Leases", "l", "what runs now, who holds it, until when"),
    NavigationEntry("/schedules", "Schedules", "s", "what fires when, and what came of it"),
    NavigationEntry("/types", "Types", "t", "what may run, and how many at once"),
    NavigationEntry("/workers", "Workers", "w", "who runs it, and how busy they are"),
    NavigationEntry("/audit", "Audit", "a", "who did what, and why; rows are never changed"),
    NavigationEntry("/night", "Last night", "n", "what happened while no one was looking", "wide"),
    NavigationEntry("/operations", "Operations", "b", "one verb on many runs, and how far it is", "wide"),
    NavigationEntry("/effects", "Effects", "f", "what was begun and never confirmed", "wide"),
    NavigationEntry("/alerts", "Alerts", "m", "what is watched, who is notified, what fires now", "wide"),
    NavigationEntry("/system", "System", "y", "every loop of every process, and the database", "wide"),
    NavigationEntry("/demo", "Demo shop", "d", "a shop whose mails and charges are runs", "menu"),
    NavigationEntry("/display", "Display", "z", "how this browser shows every page", "menu"),
)


def subtitle(path: str) -> str:
    """Return the subtitle of the page at ``path``; empty for a page that is not in the navigation."""
    return next((entry.subtitle for entry in PAGES if entry.path == path), "")


def section(path: str) -> str:
    """Return the path of the entry that the page at ``path`` belongs to, empty for none."""
    first = "/" + path.strip("/").split("/")[0]
    return first if any(entry.path == first for entry in PAGES) else ""
