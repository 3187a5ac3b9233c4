"""The pages by their addresses: the keys that lead to them, and which question each answers.

The help dialog lists the keys, links carry those that lead somewhere. The script acts on a row by what its
buttons carry (``data-key``), or says that none of them does that, and goes where a link says (``data-go``).
"""

from __future__ import annotations

# (keys, what they do) as the help dialog says it.
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
# What follows g, by page.
GO = {
    "/": "o",
    "/runs": "r",
    "/errors": "e",
    "/leases": "l",
    "/schedules": "s",
    "/types": "t",
    "/workers": "w",
    "/audit": "a",
    "/night": "n",
    "/effects": "f",
    "/alerts": "m",
    "/system": "y",
    "/operations": "b",
    "/demo": "d",
    "/display": "z",
}
# In the words beside the heading of a page.
ANSWERS = {
    "/": "how things are, what needs a person, what comes next",
    "/runs": "which failed, which run, which wait, and why",
    "/errors": "what goes wrong, how often, since when",
    "/leases": "what runs now, who holds it, until when",
    "/schedules": "what fires when, and what came of it",
    "/types": "what may run, and how many at once",
    "/workers": "who runs it, and how busy they are",
    "/audit": "who did what, and why; rows are never changed",
    "/night": "what happened while no one was looking",
    "/effects": "what happened in the world only once, and what is in doubt",
    "/alerts": "what is watched, who is notified, what fires now",
    "/system": "the loops that keep the work going, and what they stand on",
    "/operations": "what is done to many runs at once, and how far it is",
    "/demo": "a shop whose mails and charges are runs",
    "/display": "how this browser shows every page",
}


def answers(path: str) -> str:
    """Return what the page at ``path`` answers; nothing for a page of one thing, whose heading says it."""
    return ANSWERS.get(path, "")
