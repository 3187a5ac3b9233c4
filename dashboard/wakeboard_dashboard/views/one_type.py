"""Views of one job type: how it stands, how its last day went, who runs it, what makes it, who changed it."""

from __future__ import annotations

import shlex
from dataclasses import replace

from flask import Blueprint, abort, g
from sqlalchemy import RowMapping

from wakeboard.core.builtin_payloads import command_user, no_worker_for
from wakeboard.core.text.redaction import redact
from wakeboard_dashboard.charts.spreads import spread
from wakeboard_dashboard.pages.live import Context, Json, add_page
from wakeboard_dashboard.queries import audit
from wakeboard_dashboard.queries import types as query
from wakeboard_dashboard.queries.throughput import DAY, WindowBar, read_last_day
from wakeboard_dashboard.text import schedule
from wakeboard_dashboard.text.changes import describe_changes, redact_row
from wakeboard_dashboard.text.policy import patience_seconds, retries
from wakeboard_dashboard.views.types import ONE, capped, path_of
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.not_found import missing
from wakeboard_dashboard.web.scopes import Scope

blueprint = Blueprint("one_type", __name__)


def _require_type(name: str) -> RowMapping:
    """Return the row of the request's type, asked for once by all regions of its page; 404 without one."""
    if "type_row" not in g:
        g.type_row = query.find_type(reading(), name)
    row: RowMapping | None = g.type_row
    if row is None:
        abort(404, missing("type", name))
    return row


def _day(name: str) -> list[WindowBar]:
    """Return the last day of the request's type by the hour, asked for once by all regions of its page."""
    if "day" not in g:
        g.day = read_last_day(reading(), as_of(), name)
    day: list[WindowBar] = g.day
    return day


def find_type(name: str) -> Context:
    """Return how a type stands: its row, what is counted, its policy in words."""
    row = _require_type(name)
    numbers = query.read_numbers(reading(), {name: query.make_pace(_day(name))})
    return {
        "type": row,
        "load": numbers.loads[name],
        "oldest": numbers.oldest.get(name),
        "pace": numbers.paces[name],
        "failure": numbers.failures.get(name),
        "capped": capped,
        "path": path_of(name),
        "command": f"wakeboard runs --type {shlex.quote(name)}",
        "retries": retries(row["max_attempts"], row["backoff"]),
        "patience": patience_seconds(row["max_attempts"], row["backoff"]),
    }


def find_day(name: str) -> Context:
    """Return the last day of a type, hour by hour: how many attempts, how long they ran and waited."""
    _require_type(name)
    bars = [replace(bar, label=bar.start_at.astimezone(g.zone).strftime("%a %H:%M")) for bar in _day(name)]
    return {
        "window": DAY,
        "bars": bars,
        "good": sum(bar.good for bar in bars),
        "bad": sum(bar.bad for bar in bars),
        "spreads": {
            "run": spread(bars, [bar.run_times for bar in bars]),
            "wait": spread(bars, [bar.waits for bar in bars]),
        },
    }


def find_around(name: str) -> Context:
    """Return who runs a type and what makes its runs."""
    _require_type(name)
    user = command_user(name)
    return {
        "name": name,
        "nobody": "No live worker runs this type." if user is None else no_worker_for(user),
        "workers": query.list_workers(reading(), name),
        "schedules": query.list_schedules(reading(), name),
        "words": schedule,
    }


def find_latest(name: str) -> Context:
    """Return the latest runs of a type and its latest failures by code."""
    _require_type(name)
    return {
        "name": name,
        "runs": query.list_latest_runs(reading(), name),
        "failures": query.list_failures(reading(), name),
        "newest": query.NEWEST,
    }


def find_audit(name: str) -> Context:
    """Return what people did to a type."""
    _require_type(name)
    return {
        "target": f"type:{name}",
        "noun": "type",
        "rows": audit.list_entries_of(reading(), "type", name),
        "describe_changes": describe_changes,
    }


def type_twin(context: Context) -> Json:
    """Return ``/types/<name>.json``: every number of the page."""
    row, load, pace = context["type"], context["load"], context["pace"]
    name = row["name"]
    around, latest = find_around(name), find_latest(name)
    return {
        **dict(row),
        "paused_reason": redact(row["paused_reason"]),
        "state": "active" if row["paused_at"] is None else "paused",
        "retries": context["retries"],
        "patience_seconds": context["patience"],
        "queued": load.queued,
        "failed": load.failed,
        "running": load.running,
        "dead": load.dead,
        "oldest_due_at": context["oldest"],
        "median_seconds": pace.median,
        "p95_seconds": pace.p95,
        "succeeded_24h": pace.runs,
        "hours": [
            {"start_at": hour.start_at, "succeeded": hour.good, "failed": hour.bad} for hour in pace.hours
        ],
        "workers": [dict(each) for each in around["workers"]],
        "schedules": [dict(each) | {"error": redact(each["error"])} for each in around["schedules"]],
        "runs": [dict(each) | {"last_error": redact(each["last_error"])} for each in latest["runs"]],
        "failures": [dict(each) for each in latest["failures"]],
        "audit": [redact_row(each) for each in find_audit(name)["rows"]],
    }


add_page(
    blueprint,
    ONE,
    "type/page.html",
    find_type,
    twin=type_twin,
    fragments={
        "state": "type/_state.html",
        "facts": "type/_facts.html",
        "day": ("type/_day.html", find_day),
        "latest": ("type/_latest.html", find_latest),
        "around": ("type/_around.html", find_around),
        "audit": ("type/_audit.html", find_audit),
    },
    scope=Scope.TYPE,
)
