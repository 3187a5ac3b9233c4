"""Views of the list of runs: filters in the address, rows that stay in place, a pill for what is new."""

from __future__ import annotations

import re
from collections.abc import Set
from functools import cache
from pathlib import PurePosixPath

from flask import Blueprint, Response, abort, g, redirect, request
from sqlalchemy import RowMapping
from werkzeug.datastructures import MultiDict

from wakeboard.bulk import rules
from wakeboard.core.states import CLAIMABLE, VERBS, Role, Status, Verb, is_allowed
from wakeboard.core.text.redaction import redact
from wakeboard.database.tables import job_runs
from wakeboard.reporting.filters import search
from wakeboard.reporting.filters.line import read_line
from wakeboard.reporting.filters.runs import FAILURE_TIMES, FIELDS, states_of
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.pages.live import FRAGMENTS, Context, Json, add_page, rows_twin
from wakeboard_dashboard.queries import runs
from wakeboard_dashboard.queries.keyset import Rows
from wakeboard_dashboard.queries.runs import Payloads
from wakeboard_dashboard.text.formats import clip, number
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.scopes import Scope

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
# The filters that have a control of their own beside the box.
CONTROLS = (
    "status", "type", "schedule", "since", "error", "group", "worker", "key", "attempts", "until",
    *FAILURE_TIMES,
)  # fmt: skip
TIMES = {"since", "until", *FAILURE_TIMES}
# What one row offers: the first of these that its state allows and that helps there.
ROW_VERBS = (
    ("run.retry", (Status.FAILED, Status.DEAD, Status.CANCELLED)),
    ("run.cancel", (Status.QUEUED, Status.RUNNING)),
    ("run.again", (Status.SUCCEEDED,)),
)
COLUMNS = [
    "id", "status", "job_type", "definition", "attempts", "failures", "max_attempts", "error_code",
    "last_error", "run_at", "started_at", "finished_at", "failed_at", "locked_by", "idempotency_key",
    "enqueued_by", "priority", "scheduled_for", "created_at", "payload",
]  # fmt: skip
# A CSV can have ten thousand rows, the twin two hundred.
PAYLOADS = {".csv": Payloads.SHORT, ".json": Payloads.WHOLE}
_NAMES = [column.name for column in job_runs.c]


def find_runs() -> Context:
    """Return the page that the address asks for and everything around it; for a live list, its own rows."""
    if request.path.startswith(FRAGMENTS) and (ids := _read_ids(request.args.getlist("shown"))) is not None:
        return _still_shown(ids)
    filters = params.from_request(FIELDS)
    found = _search(filters)
    rows = runs.list_runs(
        reading(), found, filters, payloads=PAYLOADS.get(PurePosixPath(request.path).suffix, Payloads.NONE)
    )
    return {
        "filters": filters,
        "rows": rows,
        "new": 0,
        "row_verb": row_verb,
        "key_verb": key_verb,
        "is_due": is_due,
        "address": _address(filters, rows),
        "line": filters.line,
        "count": _counted(found, rows, filters) if request.path == PATH else "",
        "goes_on": found.end is not None and rows.older is not None and len(rows.items) < filters.limit,
        "window": search.WINDOW,
        "types": runs.list_type_names(reading()),
        "ages": AGES,
        "states": STATES,
        "controls": CONTROLS,
        "views": runs.list_saved_views(reading(), "runs") if request.path == PATH else [],
        "for_all": _for_all(filters, rows) if request.path == PATH else [],
    }


def _for_all(filters: params.Filters, rows: Rows) -> list[tuple[Verb, str]]:
    """Return the verbs for all that match, and where each says what it would do; none without a filter."""
    if not filters:
        return []
    states = {Status(state) for state in states_of(filters) or Status}
    offered = [VERBS[f"run.{name}"] for name in rules.VERB_MOVES]
    if _are_due(states, rows):
        offered.remove(VERBS["run.retry"])
    return [
        (verb, filters.link(f"{PATH}/bulk/{verb.name}"))
        for verb in offered
        if any(is_allowed(verb, state) for state in states)
    ]


def _are_due(states: Set[Status], rows: Rows) -> bool:
    """Whether no queued run that matches waits for later, so that no retry would move one. It is known where
    the page has all that match; where it has not, the preview tells.

    Only of a filter that asks for queued runs alone: one that also finds others may soon find one to retry.
    """
    return states == {Status.QUEUED} and not (rows.older or rows.newer) and all(map(is_due, rows.items))


def _still_shown(ids: list[int]) -> Context:
    """Return the rows that a page already shows, as they stand now, and how many it does not show yet."""
    arguments = request.args.copy()
    arguments.poplist("shown")
    filters = params.read_here(arguments, FIELDS)
    rows = Rows(runs.read_runs(reading(), ids))
    is_first = filters.cursor_text is None
    full = len(ids) >= filters.limit
    new = runs.count_newer(reading(), _search(filters), ids, full=full) if is_first else 0
    return {
        "filters": filters,
        "rows": rows,
        "new": new,
        "row_verb": row_verb,
        "key_verb": key_verb,
        "is_due": is_due,
    }


def _search(filters: params.Filters) -> search.Search:
    sees_payloads = g.actor.role.covers(Role.OPERATOR)
    return runs.search(reading(), filters, as_of(), sees_payloads=sees_payloads, types=g.actor.job_types)


def _address(filters: params.Filters, rows: Rows) -> str:
    """Return the address of the live list: this page's filters and exactly the rows it shows."""
    shown = "-".join(str(row["id"]) for row in rows.items) or "none"
    query = filters.full_query
    return f"{FRAGMENTS}{PATH}/list?{query}{'&' if query else ''}shown={shown}"


def _read_ids(given: list[str]) -> list[int] | None:
    """Return the ids in ``shown=48210-48209``; None when it is not given. Raises FilterError."""
    if not given:
        return None
    parts = [] if given == ["none"] else given[0].split("-")
    try:
        if len(given) > 1 or len(parts) > params.LARGEST_PAGE:
            raise ValueError
        return [params.identifier(part) for part in parts]
    except ValueError as error:
        raise FilterError(f"“shown” is “{clip(given[0], 100)}”; it must be run ids joined by -.") from error


def _counted(found: search.Search, rows: Rows, filters: params.Filters) -> str:
    """Return ``1 214 match``, ``10 000+ match`` or ``37 match among the newest 20 000``; nothing where the
    page has all of them, and where counting would cost too much."""
    if rows.older is None and rows.newer is None:
        return ""
    counted = runs.count_matching(reading(), found, filters, rows)
    if counted is None:
        return ""
    matching, is_all = counted
    words = f"{number(min(matching, runs.CAP))}{'+' if matching > runs.CAP else ''} match"
    return words if is_all or matching > runs.CAP else f"{words} among the newest {number(search.WINDOW)}"


@cache
def row_verb(status: str) -> Verb:
    """Return the verb that a row in ``status`` offers."""
    now = Status(status)
    return next(
        VERBS[action] for action, helps in ROW_VERBS if now in helps and is_allowed(VERBS[action], now)
    )


def key_verb(status: str) -> Verb | None:
    """Return what ``c`` does to a row in ``status`` although its button is another's, None for nothing."""
    cancel = VERBS["run.cancel"]
    return cancel if is_allowed(cancel, Status(status)) and row_verb(status) != cancel else None


def is_due(run: RowMapping) -> bool:
    """Whether the time of a waiting run has come: it waits for a worker, not for a time."""
    return Status(run["status"]) in CLAIMABLE and bool(run["run_at"] <= as_of())


def item(row: RowMapping) -> Json:
    """Return a run as the twin gives it: the columns of job_runs, secrets hidden, and what is derived."""
    has_payload = "payload" in row
    body: Json = {name: row[name] for name in _NAMES if has_payload or name != "payload"}
    body["last_error"] = redact(row["last_error"])
    if has_payload:
        body["payload"] = _payload(row)
    return body | {"definition": row["definition"], "stuck": row["is_stuck"]}


def _payload(row: RowMapping) -> object:
    """Return the payload of a row, secrets hidden; of one that is too long for the list, where it stands."""
    if row["payload"] is None:
        return f"… over {number(runs.LONGEST_PAYLOAD)} characters: {PATH}/{row['id']}/payload.json"
    return redact(row["payload"])


@blueprint.get("/runs/find")
def redirect_from_line() -> Response:
    """Send the operator from a typed line and the controls beside it to the address that means them;
    ``#48210`` goes to that run.

    ``was.status`` is what the filter was before: a control that says otherwise was changed and wins over the
    line, which still says the old value or a new one.
    """
    line = request.args.get("text", "")[:2000]
    if number_typed := re.fullmatch(r"\s*#([0-9]{1,19})\s*", line):
        abort(redirect(f"{PATH}/{number_typed[1]}", 303))
    pairs: MultiDict[str, str] = MultiDict(read_line(line, FIELDS))
    for name in FIELDS:
        was = request.args.get(f"was.{name}", "")
        if name in CONTROLS and (said := request.args.get(name, was)) != was:
            pairs.poplist(name)
            if said:
                pairs[name] = said
        elif '"' in was and pairs.get(name) == was.replace('"', "'"):
            # The line cannot write a quote.
            pairs[name] = was
    filters = params.read_here(pairs, FIELDS)
    if TIMES.intersection(filters.values):
        search.refuse_impossible(filters, as_of())
    abort(redirect(filters.link(PATH), 303))


add_page(
    blueprint,
    PATH,
    "runs/page.html",
    find_runs,
    twin=rows_twin(item),
    columns=COLUMNS,
    fragments={"list": "runs/_list.html"},
    scope=Scope.OWN,
    fields=None,
)
