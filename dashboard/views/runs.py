"""Views of the list of runs: filters in the address, rows that stay in place, a pill for what is new."""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, Response, abort, g, redirect, request
from sqlalchemy import RowMapping

from dashboard import params
from dashboard.connection import as_of, reading
from dashboard.filtertext import read_line, write_line
from dashboard.formats import clip, number, redact
from dashboard.live import FRAGMENTS, add_page, rows_twin
from dashboard.queries import runs
from dashboard.queries.keyset import Rows
from worker.states import VERBS, Role, Status, Verb, allowed
from worker.tables import job_runs

blueprint = Blueprint("runs", __name__)

PATH = "/runs"
# Values as the canonical query string writes them.
AGES = (
    ("1h", "the last hour"),
    ("1d", "the last 24 hours"),
    ("7d", "the last 7 days"),
    ("30d", "the last 30 days"),
)
STATES = (("failed,dead", "failed or dead"), *((status.value, status.value) for status in Status))
# What one row offers: the first of these that its state allows and that helps there.
ROW_VERBS = (
    ("run.retry", (Status.FAILED, Status.DEAD, Status.CANCELLED)),
    ("run.cancel", (Status.QUEUED, Status.RUNNING)),
    ("run.again", (Status.SUCCEEDED,)),
)
COLUMNS = [
    "id", "status", "job_type", "definition", "attempts", "failures", "max_attempts", "error_code",
    "last_error", "run_at", "started_at", "finished_at", "failed_at", "locked_by", "idempotency_key",
    "enqueued_by", "priority", "scheduled_for", "created_at",
]  # fmt: skip


def _attempts(value: str) -> tuple[int, int | None]:
    """Read ``3``, ``3+`` (at least) or ``2-5``."""
    found = re.fullmatch(r"([0-9]{1,9})(?:(\+)|-([0-9]{1,9}))?", value)
    if not found:
        raise ValueError
    low = int(found[1])
    return low, None if found[2] else int(found[3] or low)


FIELDS = {
    "status": params.STATUS,
    "type": params.TEXT,
    "error": params.TEXT,
    "worker": params.TEXT,
    "key": params.TEXT,
    "attempts": params.Field(_attempts, "a number such as 3, or 3+ for at least, or 2-5"),
    "since": params.MOMENT,
    "until": params.MOMENT,
    "payload.": params.TEXT,
    "q": params.TEXT,
}


def find() -> dict[str, Any]:
    """Return the page that the address asks for and everything around it; for a live list, its own rows."""
    if request.path.startswith(FRAGMENTS) and (ids := _read_ids(request.args.getlist("shown"))) is not None:
        return _still_shown(ids)
    filters = params.from_request(FIELDS)
    found = _search(filters)
    rows = runs.page(reading(), found, filters, payloads=request.path.endswith(".json"))
    return {
        "filters": filters,
        "rows": rows,
        "new": 0,
        "row_verb": row_verb,
        "address": _address(filters, rows),
        "line": write_line(filters),
        "count": _counted(found, rows) if request.path == PATH else "",
        "goes_on": found.window is not None and rows.older is not None and len(rows.items) < filters.limit,
        "window": runs.WINDOW,
        "types": runs.type_names(reading()),
        "ages": AGES,
        "states": STATES,
    }


def _still_shown(ids: list[int]) -> dict[str, Any]:
    """Return the rows that a page already shows, as they stand now, and how many it does not show yet."""
    arguments = request.args.copy()
    arguments.poplist("shown")
    filters = params.read_filters(arguments, FIELDS)
    rows = Rows(runs.shown(reading(), ids))
    is_first = filters.cursor_text is None
    full = len(ids) >= filters.limit
    new = runs.newcomers(reading(), _search(filters), ids, full=full) if is_first else 0
    return {"filters": filters, "rows": rows, "new": new, "row_verb": row_verb}


def _search(filters: params.Filters) -> runs.Search:
    return runs.search(reading(), filters, as_of(), sees_payloads=g.actor.role.covers(Role.OPERATOR))


def _address(filters: params.Filters, rows: Rows) -> str:
    """Return the address of the live list: this page's filters and exactly the rows it shows."""
    shown = "-".join(str(row["id"]) for row in rows.items) or "none"
    query = filters.full_query
    return f"{FRAGMENTS}{PATH}/list?{query}{'&' if query else ''}shown={shown}"


def _read_ids(given: list[str]) -> list[int] | None:
    """Return the ids in ``shown=48210-48209``; None when it is not given. Raises WrongFilter."""
    if not given:
        return None
    parts = [] if given == ["none"] else given[0].split("-")
    try:
        if len(given) > 1 or len(parts) > params.LARGEST_PAGE:
            raise ValueError
        return [params.identifier(part) for part in parts]
    except ValueError as wrong:
        raise params.WrongFilter(
            f"“shown” is “{clip(given[0], 100)}”; it must be run ids joined by -."
        ) from wrong


def _counted(found: runs.Search, rows: Rows) -> str:
    """Return ``1 214 match`` or ``10 000+ match``; nothing where counting would cost too much."""
    if rows.older is None and rows.newer is None:
        return ""
    matching = runs.count(reading(), found)
    if matching is None:
        return ""
    return f"{number(min(matching, runs.CAP))}{'+' if matching > runs.CAP else ''} match"


def row_verb(status: str) -> Verb:
    """Return the verb that a row in ``status`` offers."""
    now = Status(status)
    return next(VERBS[action] for action, helps in ROW_VERBS if now in helps and allowed(VERBS[action], now))


def item(row: RowMapping) -> dict[str, Any]:
    """Return a run as the twin gives it: the columns of job_runs, secrets hidden, and what is derived."""
    found: dict[str, Any] = {column.name: row[column.name] for column in job_runs.c if column.name in row}
    found["last_error"] = redact(row["last_error"])
    if "payload" in row:
        found["payload"] = redact(row["payload"])
    return found | {"definition": row["definition"], "stuck": row["is_lease_ended"] or row["is_silent"]}


@blueprint.get("/runs/find")
def from_line() -> Response:
    """Send the operator from a typed line to the address that means it; ``#48210`` goes to that run."""
    line = request.args.get("text", "")[:2000]
    if number_typed := re.fullmatch(r"\s*#([0-9]{1,19})\s*", line):
        abort(redirect(f"{PATH}/{number_typed[1]}", 303))
    filters = params.read_filters(read_line(line), FIELDS)
    abort(redirect(filters.link(PATH), 303))


add_page(
    blueprint,
    PATH,
    "runs/page.html",
    find,
    twin=rows_twin(item),
    columns=COLUMNS,
    fragments={"list": "runs/_list.html"},
)
