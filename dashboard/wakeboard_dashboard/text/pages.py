"""Which question each page answers, in the words beside its heading. Pure."""

from __future__ import annotations

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
