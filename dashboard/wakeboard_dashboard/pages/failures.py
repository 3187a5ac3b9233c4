"""Failures as every page shows them: the state of a group in a word, where it leads, what twins say of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from hashlib import blake2s
from urllib.parse import quote, urlencode

from sqlalchemy import RowMapping

from wakeboard.core.errors.error_groups import TraceLine, format_fingerprint, trace_lines
from wakeboard.core.states import Status
from wakeboard.core.text.redaction import redact
from wakeboard_dashboard.pages.live import Json
from wakeboard_dashboard.queries import error_groups
from wakeboard_dashboard.queries.error_groups import ErrorGroupRow
from wakeboard_dashboard.queries.errors import FailureGroup
from wakeboard_dashboard.text.formats import Row, visible
from wakeboard_dashboard.web.connection import as_of

MOST_NAMED = 12
MOST_REMEMBERED = 1000
FAILING = f"{Status.DEAD.value},{Status.FAILED.value}"

# By state: the colour of its badge and its word.
BADGES = {
    "new": ("failed", "new"),
    "back": ("stuck", "back again"),
    "ongoing": ("queued", "ongoing"),
    "quiet": ("succeeded", "quiet"),
}
# What the page says its words mean, with the numbers that decide.
MEANINGS = (
    ("new", "seen for the first time in the last 24 hours."),
    (
        "back again",
        f"seen before, then not for {error_groups.QUIET.days} days, then again in the last 24 hours.",
    ),
    ("ongoing", f"seen in the last {error_groups.QUIET.days} days, and neither new nor back."),
    ("quiet", f"not seen for {error_groups.QUIET.days} days: its next failure brings it back."),
    (
        "muted",
        "somebody has left it out of the alerts of failures and dead runs until a moment; shown apart.",
    ),
)


def trace(sample: RowMapping | None) -> list[TraceLine]:
    """Return the lines of a failure's trace, secrets hidden, the author's own frames marked; none without."""
    text = redact(sample["traceback"]) if sample else None
    return list(trace_lines(text)) if text else []


def state(group: FailureGroup, now: datetime) -> str | None:
    """Return how the group stands (see MEANINGS) ``now``, None for failures without one."""
    return None if group.row is None else group.row.state(now)


def key(group: FailureGroup) -> str:
    """Return what names the group's row in the page, whatever characters code and type have."""
    return blake2s(f"{group.code}\n{group.job_type}\n{group.number}".encode(), digest_size=6).hexdigest()


def link(group: FailureGroup, query: str = "") -> str:
    """Return the address of the group's page, of its code's page where no group is kept."""
    path = f"/errors/{format_fingerprint(group.number) if group.number and group.row else quote(group.code)}"
    return f"{path}?{query}" if query else path


def runs_link(group: FailureGroup, status: str = "failed,dead") -> str:
    """Return the list of the runs of ``group`` that are in ``status`` now."""
    if group.number:
        return f"/runs?status={status}&group={format_fingerprint(group.number)}"
    query = {"status": status, "type": group.job_type, "error": group.code}
    return f"/runs?{urlencode(query, safe=',')}"


@lru_cache(MOST_REMEMBERED)
def met_in(types: tuple[str, ...]) -> str:
    """Return in which other types the same failure was met, in words."""
    named = ", ".join(visible(each) for each in types[:MOST_NAMED])
    more = len(types) - MOST_NAMED
    return f"The same failure was met in {named}" + (f" and {more} more" if more > 0 else "")


def retry_link(fingerprint: str) -> str:
    """Return the address that shows what a retry of the group's dead and failed runs would do."""
    return f"/runs/bulk/retry?{retry_query(fingerprint)}"


def retry_query(fingerprint: str) -> str:
    """Return the filter of the group's dead and failed runs."""
    return urlencode({"group": fingerprint, "status": FAILING}, safe=",")


def cancel_link(fingerprint: str) -> str:
    """Return the address that shows what putting the group's dead runs away would do."""
    return f"/runs/bulk/cancel?{urlencode({'group': fingerprint, 'status': Status.DEAD.value})}"


# What twins give of a group beside what they say of its failures.
_KEPT = [name for name in ErrorGroupRow.__dataclass_fields__ if name not in ("id", "error_code", "job_type")]


def kept_item(kept: ErrorGroupRow | None) -> Json:
    """Return what is kept of a group as twins give it; all None where nothing is."""
    found = {name: getattr(kept, name) if kept else None for name in _KEPT}
    now = as_of()
    return found | {
        "template": redact(found["template"]),
        "muted_reason": redact(found["muted_reason"]),
        "state": kept.state(now) if kept else None,
        "muted": kept.is_muted(now) if kept else False,
    }


def item(group: FailureGroup) -> Json:
    """Return a group as the twin gives it; ``first_seen_at`` is of the window where no group is kept."""
    of_window = {"first_seen_at": group.first_at, "last_seen_at": group.last_at} if not group.row else {}
    return {
        "error_code": group.code,
        "job_type": group.job_type,
        "error_group": group.number,
        **kept_item(group.row),
        **of_window,
        "count": group.count,
        "failed": group.failed,
        "dead": group.dead,
        "message": redact(group.message),
        "buckets": group.buckets,
    }


def newest_items(rows: Iterable[Row]) -> list[Json]:
    """Return failed attempts as twins give them, secrets hidden."""
    names = ("run_id", "attempt", "job_type", "worker_id", "started_at", "finished_at", "outcome")
    return [
        {name: row[name] for name in names} | {name: redact(row[name]) for name in ("error", "traceback")}
        for row in rows
    ]
