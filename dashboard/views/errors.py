"""Errors: what fails, grouped by code and type, over a window of time; and one code with a sample trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2s
from typing import Any
from urllib.parse import quote, urlencode

from flask import Blueprint, g

from dashboard import params
from dashboard.connection import as_of, reading
from dashboard.formats import redact
from dashboard.live import add_page
from dashboard.queries import errors, runs
from dashboard.queries.errors import Group, Window

blueprint = Blueprint("errors", __name__)

DEFAULT_WINDOW = timedelta(hours=24)
LONGEST_WINDOW = timedelta(days=92)
# Values as the canonical query string writes them.
AGES = (("1h", "1 hour"), ("1d", "24 hours"), ("7d", "7 days"), ("30d", "30 days"))
COLUMNS = ["error_code", "job_type", "count", "failed", "dead", "first_seen_at", "last_seen_at", "message"]
WINDOW_FIELDS = {"type": params.TEXT, "since": params.MOMENT, "until": params.MOMENT}
FIELDS = {"error": params.TEXT, **WINDOW_FIELDS}


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart of failures."""

    label: str
    total: int

    @property
    def bad(self) -> int:
        """All of them are failures."""
        return self.total


def window(filters: params.Filters, code: str | None = None) -> Window:
    """Return the window that ``filters`` ask for: the last 24 hours unless they say otherwise.

    Raises WrongFilter when it is empty or too long to count.
    """
    now = as_of()
    # Attempts that end within this very microsecond belong to the page too.
    until = filters.get("until").at(now) if filters.get("until") else now + timedelta(seconds=1)
    since = filters.get("since").at(now) if filters.get("since") else until - DEFAULT_WINDOW
    if not since < until:
        raise params.WrongFilter("“since” is not before “until”: nothing can have failed in between.")
    if until - since > LONGEST_WINDOW:
        raise params.WrongFilter(
            f"The window is longer than {LONGEST_WINDOW.days} days; give a later “since”."
        )
    return Window(since, until, code or filters.get("error"), filters.get("type"))


def find() -> dict[str, Any]:
    """Return the groups of the window that the address asks for."""
    filters = params.from_request(FIELDS)
    asked = window(filters)
    found, capped = errors.groups(reading(), asked)
    return {
        "filters": filters,
        "groups": found,
        "capped": capped,
        "cap": errors.CAP,
        "bars": lambda group: bars(asked, group.buckets),
        "key": key,
        "runs_link": runs_link,
        "types": runs.type_names(reading()),
        "ages": AGES,
        "path": "/errors",
    }


def find_code(code: str) -> dict[str, Any]:
    """Return one code: its groups by type, its newest failures, one with its trace."""
    filters = params.from_request(WINDOW_FIELDS)
    asked = window(filters, code)
    found, capped = errors.groups(reading(), asked)
    newest = errors.newest(reading(), asked)
    total = [sum(counts) for counts in zip(*(group.buckets for group in found), strict=True)]
    return {
        "code": code,
        "filters": filters,
        "groups": found,
        "capped": capped,
        "cap": errors.CAP,
        "chart": bars(asked, total),
        "bars": lambda group: bars(asked, group.buckets),
        "newest": newest,
        "sample": next((row for row in newest if row["traceback"]), newest[0] if newest else None),
        "key": key,
        "runs_link": runs_link,
        "types": runs.type_names(reading()),
        "ages": AGES,
        "path": f"/errors/{quote(code)}",
    }


def bars(asked: Window, counts: Sequence[int]) -> list[Bar]:
    """Return the bars of a chart over the window; labels are in the operator's zone."""
    form = "%a %H:%M" if asked.bucket < timedelta(days=1) else "%Y-%m-%d"
    starts = [asked.since + step * asked.bucket for step in range(len(counts))]
    return [
        Bar(start.astimezone(g.zone).strftime(form), count)
        for start, count in zip(starts, counts, strict=True)
    ]


def key(group: Group) -> str:
    """Return what names the group's row in the page, whatever characters code and type have."""
    return blake2s(f"{group.code}\n{group.job_type}".encode(), digest_size=6).hexdigest()


def runs_link(group: Group, status: str = "failed,dead") -> str:
    """Return the list of the runs of ``group`` that are in ``status`` now."""
    query = {"status": status, "type": group.job_type, "error": group.code}
    return f"/runs?{urlencode(query, safe=',')}"


def item(group: Group) -> dict[str, Any]:
    """Return a group as the twin gives it."""
    return {
        "error_code": group.code,
        "job_type": group.job_type,
        "count": group.count,
        "failed": group.failed,
        "dead": group.dead,
        "first_seen_at": group.first_at,
        "last_seen_at": group.last_at,
        "message": redact(group.message),
        "buckets": group.buckets,
    }


def twin(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``/errors.json``."""
    return {"items": [item(group) for group in context["groups"]], "next": None, "capped": context["capped"]}


def twin_of_code(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``/errors/<code>.json``: its groups and its newest failures."""
    names = ("run_id", "attempt", "job_type", "worker_id", "started_at", "finished_at", "outcome")
    newest = [
        {name: row[name] for name in names} | {name: redact(row[name]) for name in ("error", "traceback")}
        for row in context["newest"]
    ]
    return {"error_code": context["code"], **twin(context), "newest": newest}


add_page(
    blueprint,
    "/errors",
    "errors/page.html",
    find,
    twin=twin,
    columns=COLUMNS,
    fragments={"groups": "errors/_groups.html"},
)
add_page(
    blueprint,
    "/errors/<path:code>",
    "errors/code.html",
    find_code,
    twin=twin_of_code,
    fragments={"groups": "errors/_groups.html", "newest": "errors/_newest.html"},
)
