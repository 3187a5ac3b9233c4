"""Views of the audit log: who did what, why, and what came of it. Rows never change: only news are live."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from flask import Blueprint, request
from sqlalchemy import RowMapping

from dashboard import params
from dashboard.changes import changes
from dashboard.connection import as_of, reading
from dashboard.formats import anchor, redact
from dashboard.live import FRAGMENTS, add_page, rows_twin
from dashboard.queries import audit
from worker.states import VERBS
from worker.tables import audit_log
from worker.transitions.answer import HTTP

blueprint = Blueprint("audit", __name__)

PATH = "/audit"
RESULTS = (*HTTP, "refused")
AGES = (("1h", "the last hour"), ("24h", "the last 24 hours"), ("7d", "the last 7 days"))
# What people do that is no verb of a page.
WORDS = {
    "login": "Sign in",
    "login.password": "Sign in by password",
    "login.link": "Login link",
    "logout": "Sign out",
}
COLUMNS = [column.name for column in audit_log.c]


def _target(value: str) -> tuple[str, str | None]:
    """Read ``run:48210``, ``run 48210`` or a kind alone, such as ``schedule``."""
    found = re.fullmatch(r"([a-z_]{1,30})(?:[: ](.{1,400}))?", value, re.DOTALL)
    if not found:
        raise ValueError
    return found[1], found[2]


FIELDS = {
    "who": params.TEXT,
    "what": params.TEXT,
    "target": params.Field(_target, "a kind such as schedule, or one thing such as run:48210"),
    "result": params.one_of(RESULTS),
    "since": params.MOMENT,
    "until": params.MOMENT,
}


def find() -> dict[str, Any]:
    """Return the rows of the page and the address that says what came after them."""
    filters = params.from_request(FIELDS)
    query = filters.query
    return {
        "filters": filters,
        "rows": audit.page(reading(), filters, as_of()),
        "address": f"{FRAGMENTS}{PATH}/news?{query}{'&' if query else ''}after={audit.newest(reading())}",
        "actions": audit.actions(reading()),
        "results": RESULTS,
        "ages": AGES,
        "changes": changes,
        "link_of": link_of,
        "word_of": word_of,
    }


def find_news() -> dict[str, Any]:
    """Return how many rows came after the newest that the page knew of."""
    arguments = request.args.copy()
    arguments.poplist("cursor")
    after = arguments.poplist("after")
    filters = params.read_filters(arguments, FIELDS)
    if not after:
        return {"filters": filters, "new": 0}
    try:
        known = 0 if after[0] == "0" else params.identifier(after[0])
    except ValueError as wrong:
        raise params.WrongFilter("“after” must be the id of an audit row.") from wrong
    return {"filters": filters, "new": audit.newcomers(reading(), filters, as_of(), known)}


def word_of(row: Mapping[Any, Any]) -> str:
    """Return what was done, in a word or two."""
    action = str(row["action"])
    if action == "schedule.edit" and row["before"] is None and row["after"] and row["result"] == "done":
        return "Add"
    return VERBS[action].label if action in VERBS else WORDS.get(action, action)


def link_of(row: Mapping[Any, Any]) -> str | None:
    """Return the page of the thing that an audit row is about, None when it has none."""
    kind, name = row["target_type"], row["target_id"]
    if not name:
        return None
    if kind == "run":
        return f"/runs/{name}" if re.fullmatch(r"[0-9]{1,19}", name) else None
    if kind == "schedule":
        return f"/schedules/{quote(name, safe='')}"
    if kind == "type":
        return f"/types#type-{anchor(name)}"
    if kind == "alert":
        return f"/alerts#rule-{name}" if re.fullmatch(r"[0-9]{1,19}", name) else None
    return f"/workers#worker-{quote(name, safe='')}" if kind == "worker" else None


def item(row: RowMapping) -> dict[str, Any]:
    """Return an audit row as the twin gives it, secrets hidden."""
    return dict(row) | {"before": redact(row["before"]), "after": redact(row["after"])}


add_page(
    blueprint,
    PATH,
    "audit/page.html",
    find,
    twin=rows_twin(item),
    columns=COLUMNS,
    fragments={"news": ("audit/_news.html", find_news)},
)
