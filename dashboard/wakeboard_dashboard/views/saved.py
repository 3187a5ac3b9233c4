"""Saved views of the list of runs: a filter under a name, for everybody; saved and removed with a reason."""

from __future__ import annotations

import psycopg
from flask import Blueprint, abort, request
from sqlalchemy import RowMapping

from wakeboard.database.audit import Actor
from wakeboard.queue import Answer, saved_views
from wakeboard.reporting.filters.runs import FIELDS
from wakeboard_dashboard.pages.bulk_confirmation import YES
from wakeboard_dashboard.pages.live import Context
from wakeboard_dashboard.pages.verbs import add_verb, read_body
from wakeboard_dashboard.queries import runs
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import reading

blueprint = Blueprint("saved", __name__)

PAGE = "runs"
BACK = "/runs"
PATH = f"{BACK}/views"


def read(text: str) -> params.Filters:
    """Return the filters of a query string such as ``status=dead``. Raises FilterError.

    Everybody sees a view: what is hidden from viewers cannot be one.
    """
    filters = params.read_text(text, FIELDS)
    runs.refuse_hidden(filters)
    return filters


def _save(connection: psycopg.Connection, actor: Actor, reason: str | None) -> Answer:
    body = read_body()
    filters, replace = read(body.get("query", "")), body.get("replace", "").lower() in YES
    return saved_views.save(
        connection, PAGE, body.get("name", ""), filters.query, actor, reason, replace=replace
    )


def _ask() -> Context:
    filters = read(request.values.get("query", ""))
    if not filters:
        abort(400, "A view is a filter under a name: filter the list of runs first.")
    return {"query": filters.query, "line": filters.line, "longest": saved_views.LONGEST_NAME}


def _view(view_id: int) -> RowMapping:
    view = runs.find_saved_view(reading(), view_id)
    if view is None:
        abort(404, "There is no such view; it may have been removed.")
    return view


add_verb(
    blueprint,
    f"{PATH}/save",
    "view.save",
    _save,
    question=lambda: "Save this filter under a name that everybody finds on the page of runs?",
    back=lambda: BACK,
    template="runs/_save_view.html",
    context=_ask,
    keeps_form=True,
    fields=("query", "name", "replace"),
)
add_verb(
    blueprint,
    f"{PATH}/<id:view_id>/remove",
    "view.remove",
    lambda connection, actor, reason, view_id: saved_views.remove(connection, view_id, actor, reason),
    question=lambda view_id: (
        f"Remove the view “{_view(view_id)['name']}” for everybody? The runs in it stay."
    ),
    back=lambda view_id: BACK,
)
