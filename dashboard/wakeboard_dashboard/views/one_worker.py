"""Views of one worker: how it stands, what it runs, how its last attempts ended, who asked what of it."""

from __future__ import annotations

from flask import Blueprint, abort
from sqlalchemy import RowMapping

from wakeboard.core.text.redaction import redact
from wakeboard_dashboard.pages.live import Context, Json, add_page
from wakeboard_dashboard.queries import audit, workers
from wakeboard_dashboard.text.changes import describe_changes, redact_row
from wakeboard_dashboard.views.system import loop_error
from wakeboard_dashboard.views.workers import ASKED, COLOURS, PATH, path_of, why_not
from wakeboard_dashboard.web.connection import reading
from wakeboard_dashboard.web.not_found import missing

blueprint = Blueprint("one_worker", __name__)


def _require_worker(name: str) -> RowMapping:
    row = workers.find_worker(reading(), name)
    if row is None:
        abort(404, missing("worker", name))
    return row


def find_worker(name: str) -> Context:
    """Return how a worker stands and what it runs."""
    row = _require_worker(name)
    state = workers.STATES[row["rank"]]
    return {
        "worker": row,
        "state": state,
        "colour": COLOURS[state],
        "running": workers.list_runs(reading(), name),
        "asked": audit.find_last_actions(reading(), "worker", [name], ASKED),
        "why_not": why_not(row),
        "path": path_of(name),
    }


def find_ends(name: str) -> Context:
    """Return how the last attempts of a worker ended."""
    _require_worker(name)
    return {"ends": workers.list_attempts(reading(), name), "newest": workers.NEWEST}


def find_loops(name: str) -> Context:
    """Return the background duties of a worker."""
    _require_worker(name)
    loops = [dict(loop) for loop in workers.list_loops(reading(), name)]
    return {"loops": [loop | {"last_error": loop_error(loop["last_error"])} for loop in loops]}


def find_audit(name: str) -> Context:
    """Return what people asked of a worker."""
    _require_worker(name)
    return {
        "target": f"worker:{name}",
        "noun": "worker",
        "rows": audit.list_entries_of(reading(), "worker", name),
        "describe_changes": describe_changes,
    }


def worker_twin(context: Context) -> Json:
    """Return ``/workers/<id>.json``."""
    row = context["worker"]
    name = row["id"]
    return {
        **{column.name: row[column.name] for column in workers.columns},
        "state": context["state"],
        "runs": [dict(run) for run in context["running"]],
        "ends": [dict(end) | {"error": redact(end["error"])} for end in find_ends(name)["ends"]],
        "loops": find_loops(name)["loops"],
        "audit": [redact_row(each) for each in find_audit(name)["rows"]],
    }


add_page(
    blueprint,
    f"{PATH}/<path:name>",
    "worker/page.html",
    find_worker,
    twin=worker_twin,
    fragments={
        "state": "worker/_state.html",
        "runs": "worker/_runs.html",
        "ends": ("worker/_ends.html", find_ends),
        "loops": ("worker/_loops.html", find_loops),
        "audit": ("type/_audit.html", find_audit),
    },
)
