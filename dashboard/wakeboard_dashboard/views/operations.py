"""Views of operations: moves on many runs, how far they are, and the verbs that hold them up."""

from __future__ import annotations

from flask import Blueprint, abort, g
from sqlalchemy import RowMapping

from wakeboard.bulk import control, rules
from wakeboard.core.states import Role
from wakeboard.core.text.redaction import redact
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.charts.shares import WIDTH, shares
from wakeboard_dashboard.pages.bulk_confirmation import read_filters
from wakeboard_dashboard.pages.live import Context, Json, add_page, rows_twin
from wakeboard_dashboard.pages.verbs import add_verb
from wakeboard_dashboard.queries import operations, runs
from wakeboard_dashboard.text import operations as words
from wakeboard_dashboard.text.questions import format_question
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading

blueprint = Blueprint("operations", __name__)

PATH = "/operations"
FIELDS = {
    "status": params.one_of(rules.STATES),
    "verb": params.one_of(tuple(rules.VERB_MOVES)),
    "who": params.TEXT,
}
FIELDS_OF_ONE = {"result": params.one_of(tuple(operations.RESULTS))}
COLUMNS = [
    "id", "verb", "filter", "status", "total", "done", "asked", "skipped", "succeeded", "failed", "dropped",
    "per_minute", "stop_above_percent", "canary", "canary_run_id", "canary_outcome", "actor", "source",
    "reason", "note", "as_of", "created_at", "finished_at",
]  # fmt: skip
RUN_COLUMNS = ["run_id", "result", "why", "outcome", "watched_run_id", "handled_at", "status", "job_type"]
HIDDEN = "hidden from viewers"


def find_operations() -> Context:
    """Return the operations of the page."""
    filters = params.from_request(FIELDS)
    return {
        "filters": filters,
        "rows": operations.list_operations(reading(), filters),
        "words": words,
        "line_of": line_of,
        "states": rules.STATES,
    }


def _require_operation(operation_id: int) -> RowMapping:
    """Return the operation; the parts of its page share one look at it."""
    if "operation" not in g:
        g.operation = operations.find_operation(reading(), operation_id)
    operation: RowMapping | None = g.operation
    if operation is None:
        abort(404, control.missing(operation_id).message)
    return operation


def find_facts(operation_id: int) -> Context:
    """Return what was asked for, and how far that is known: its canary, its end."""
    operation = _require_operation(operation_id)
    return {"operation": operation, "line": line_of(operation), "query": query_of(operation), "words": words}


def find_operation(operation_id: int) -> Context:
    """Return an operation and the runs of it that the address asks for."""
    filters = params.from_request(FIELDS_OF_ONE)
    operation = _require_operation(operation_id)
    is_bad, sentence = words.sentence(
        dict(operation), as_of(), is_alive=operations.has_live_worker(reading())
    )
    return {
        "operation": operation,
        "filters": filters,
        "rows": operations.list_runs(reading(), operation_id, filters),
        "results": tuple(operations.RESULTS),
        "words": words,
        "is_bad": is_bad,
        "sentence": sentence,
        "shares": shares(dict(operation)),
        "width": WIDTH,
        "left": rules.describe_skips(operation["skips"]),
        "reasons": rules.SKIP_REASONS,
        "path": f"{PATH}/{operation_id}",
    }


def query_of(operation: RowMapping) -> str | None:
    """Return the query string of its filter where this reader may see it; None for chosen runs."""
    query = str(operation["filter"].get("query") or "")
    if not query:
        return None
    try:
        filters = read_filters(query)
        if not g.actor.role.covers(Role.OPERATOR):
            runs.refuse_hidden(filters)
    except FilterError:
        # Of an older version, or not for this reader.
        return None
    return filters.query


def line_of(operation: RowMapping) -> str:
    """Return its filter as people type it; "chosen runs" where they were chosen one by one."""
    if not operation["filter"].get("query"):
        return "chosen runs"
    query = query_of(operation)
    return HIDDEN if query is None else str(redact(read_filters(query).line))


def item(row: RowMapping) -> Json:
    """Return an operation as the twin gives it: its filter as the line that people type."""
    body = {name: row[name] for name in COLUMNS} | {"filter": line_of(row), "reason": redact(row["reason"])}
    return body | {"skips": row["skips"], "also": row["filter"].get("also", [])}


def operation_twin(context: Context) -> Json:
    """Return an operation and a page of its runs."""
    body = context["rows"].twin(lambda row: {name: row[name] for name in RUN_COLUMNS})
    details = item(context["operation"])
    # The answer has an ``as_of`` of its own.
    details["counted_at"] = details.pop("as_of")
    return {**details, "sentence": context["sentence"], **body}


add_page(
    blueprint,
    PATH,
    "operations/page.html",
    find_operations,
    twin=rows_twin(item),
    columns=COLUMNS,
    fragments={"list": "operations/_list.html"},
    fields=FIELDS,
)
add_page(
    blueprint,
    f"{PATH}/<id:operation_id>",
    "operations/one.html",
    find_operation,
    twin=operation_twin,
    columns=RUN_COLUMNS,
    fragments={
        "state": "operations/_state.html",
        "runs": "operations/_runs.html",
        "facts": ("operations/_facts.html", find_facts),
    },
    fields=FIELDS_OF_ONE,
)
add_verb(
    blueprint,
    f"{PATH}/<id:operation_id>/pause",
    "operation.pause",
    lambda connection, actor, reason, operation_id: control.pause(connection, operation_id, actor, reason),
    question=lambda operation_id: (
        f"Pause operation {operation_id}? No further run is moved until it is resumed."
    ),
    back=lambda operation_id: f"{PATH}/{operation_id}",
)
add_verb(
    blueprint,
    f"{PATH}/<id:operation_id>/resume",
    "operation.resume",
    lambda connection, actor, reason, operation_id: control.resume(connection, operation_id, actor, reason),
    question=lambda operation_id: f"Let operation {operation_id} go on, at its pace?",
    back=lambda operation_id: f"{PATH}/{operation_id}",
)
add_verb(
    blueprint,
    f"{PATH}/<id:operation_id>/abort",
    "operation.abort",
    lambda connection, actor, reason, operation_id: control.abort(connection, operation_id, actor, reason),
    question=lambda operation_id: format_question("operation.abort", operation_id),
    back=lambda operation_id: f"{PATH}/{operation_id}",
)
