"""The target of an audit row: the page of the thing, and the log of that thing alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qsl, quote, urlencode

from wakeboard_dashboard.text.formats import Row

# {} is the id or name as part of a path.
PATHS = {
    "run": "/runs/{}",
    "schedule": "/schedules/{}",
    "operation": "/operations/{}",
    "error": "/errors/{}",
    "type": "/types/{}",
    "worker": "/workers/{}",
    "database": "/system",
    "types": "/types",
}
# Targets that are rows of a page; {} is part of the row's id.
ROWS = {
    "alert": "/alerts#rule-{}",
    "effect": "/effects#effect-{}",
}
NUMBERED = ("run", "operation", "alert", "effect")

# By result, but for "done".
RESULTS = {
    "asked": "asked; it is on its way",
    "already": "it was so already",
    "forbidden": "the state of the thing did not allow it",
    "locked": "another transaction held it",
    "denied": "their role does not allow it, or the sign-in was wrong",
    "refused": "the request came from another site’s page",
    "missing": "there was no such thing",
    "invalid": "what was asked for could not be done as it was said",
}


def page_of(row: Row, served: Callable[[str], bool]) -> str | None:
    """Return the page of the thing that an audit row is about, None when it has none.

    ``served(path)`` returns whether this dashboard has that address.
    """
    kind, name = row["target_type"], row["target_id"]
    if not name or (kind in NUMBERED and not re.fullmatch(r"[0-9]{1,18}", name)):
        return None
    quoted = quote(name, safe="")
    if kind in PATHS:
        path = PATHS[kind].format(quoted)
        return path if served(PATHS[kind].format(name)) else None
    if kind == "view":
        return _view_of(row)
    return ROWS[kind].format(quoted) if kind in ROWS else None


def log_of(kind: str, name: object) -> str:
    """Return the address of the audit log of one thing."""
    return "/audit?target=" + quote(f"{kind}:{name}", safe=":")


def _view_of(row: Row) -> str | None:
    """Return the address of the runs of a saved view: the audit row has its query."""
    kept = row["after"] or row["before"] or {}
    query = kept.get("query")
    if not isinstance(query, str):
        return None
    return "/runs?" + urlencode(parse_qsl(query), quote_via=quote, safe=":,")
