"""The runs of an operation by what became of them, as shares of one bar. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from wakeboard.bulk.rules import OPEN
from wakeboard_dashboard.text.formats import Row

WIDTH = 1000
# Smaller shares are drawn so wide, so that they are seen.
NARROWEST = 4


@dataclass(frozen=True, slots=True)
class Share:
    """One part: its colour, what it is and how many; x and width in WIDTH-ths."""

    colour: str
    words: str
    runs: int
    x: float = 0
    width: float = 0


def shares(operation: Row) -> list[Share]:
    """Return the parts of the bar, in the order in which runs go through them; the rest waits."""
    ended = operation["succeeded"] + operation["failed"] + operation["dropped"]
    moved = operation["done"] - ended
    is_cancel = operation["verb"] == "cancel"
    rest = "still to be moved" if operation["status"] in OPEN else "not moved"
    parts = (
        ("succeeded", "succeeded", operation["succeeded"]),
        ("failed", "failed again", operation["failed"]),
        ("cancelled", "cancelled or removed before they ended", operation["dropped"]),
        ("cancelled", "cancelled", moved - operation["asked"] if is_cancel else 0),
        ("running", "asked to stop", operation["asked"] if is_cancel else 0),
        ("running", "moved, not through yet", 0 if is_cancel else moved),
        ("skipped", "left as they were", operation["skipped"]),
        ("waiting", rest, operation["total"] - operation["done"] - operation["skipped"]),
    )
    x, found = 0.0, []
    for colour, words, runs in parts:
        if runs <= 0:
            continue
        width = max(NARROWEST, runs / max(operation["total"], 1) * WIDTH)
        found.append(Share(colour, words, runs, round(x, 1), round(min(width, WIDTH - x), 1)))
        x = min(WIDTH, x + width)
    return found
