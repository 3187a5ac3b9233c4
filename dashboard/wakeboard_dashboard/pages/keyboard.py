"""The keys of the pages, in one place: the help dialog lists them, links carry those that lead somewhere.

The script acts on a row by what its buttons carry (``data-key``), or says that none of them does that, and
goes where a link says (``data-go``).
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
