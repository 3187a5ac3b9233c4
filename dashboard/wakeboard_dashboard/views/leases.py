"""Views of leases: what runs now, who holds it, until when, and taking it from a worker that is silent."""

from __future__ import annotations

from flask import Blueprint
from sqlalchemy import RowMapping

from wakeboard import queue
from wakeboard.core.leases import NAMES, STATES, takeover
from wakeboard_dashboard.pages.live import Context, Json, add_page
from wakeboard_dashboard.pages.verbs import add_verb
from wakeboard_dashboard.queries import leases
from wakeboard_dashboard.queries.keyset import Rows
from wakeboard_dashboard.queries.runs import list_type_names
from wakeboard_dashboard.queries.types import read_usual_paces
from wakeboard_dashboard.text.questions import format_question
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.scopes import Scope

blueprint = Blueprint("leases", __name__)

PATH = "/leases"
FIELDS = {
    "state": params.one_of(NAMES, many=True),
    "type": params.TEXT,
    "worker": params.TEXT,
}
COLUMNS = [
    "id", "state", "job_type", "attempts", "lease_epoch", "locked_by", "worker_name", "worker_hostname",
    "worker_pid", "worker_seen_at", "started_at", "renewed_at", "locked_until", "lease_seconds",
    "takeover_at", "takers", "cancel_requested_at", "median_seconds", "p95_seconds", "overlong",
]  # fmt: skip


def find_leases() -> Context:
    """Return what runs now, with the state of each lease in words."""
    filters = params.from_request(FIELDS)
    rows = leases.list_leases(reading(), filters)
    paces = read_usual_paces(reading(), as_of(), {row["job_type"] for row in rows.items})
    return {
        "filters": filters,
        "rows": rows,
        "usual": paces,
        "overlong": {
            row["id"]
            for row in rows.items
            if not STATES[row["rank"]].is_in_danger
            and (pace := paces.get(row["job_type"]))
            and pace.is_overlong(row["started_at"], as_of())
        },
        "states": STATES,
        "offered": [(state.name, state.title) for state in STATES],
        "takeover": takeover,
        "types": list_type_names(reading()),
    }


def find_refused() -> Context:
    """Return the late answers that were refused in 24 h."""
    return {
        "refused": leases.list_refused(reading()),
        "count": leases.count_refused(reading()),
        "most": leases.COUNTED_REFUSED,
    }


def _item(row: RowMapping, context: Context) -> Json:
    """Return a lease as the twin gives it, and how long runs of its type usually take."""
    pace = context["usual"].get(row["job_type"])
    derived = {
        "state": NAMES[row["rank"]],
        "median_seconds": pace.median if pace else None,
        "p95_seconds": pace.p95 if pace else None,
        "overlong": row["id"] in context["overlong"],
    }
    return {name: derived[name] if name in derived else row[name] for name in COLUMNS}


def leases_twin(context: Context) -> Json:
    """Return the twin: the leases of the page, and the late answers that were refused in 24 h."""
    rows: Rows = context["rows"]
    return {
        **rows.twin(lambda row: _item(row, context)),
        "refused_24h": leases.count_refused(reading()),
        "refused": [dict(row) for row in leases.list_refused(reading())],
    }


add_page(
    blueprint,
    PATH,
    "leases/page.html",
    find_leases,
    twin=leases_twin,
    columns=COLUMNS,
    fragments={"list": "leases/_list.html", "refused": ("leases/_refused.html", find_refused)},
    fields=FIELDS,
)

add_verb(
    blueprint,
    f"{PATH}/<id:run_id>/release",
    "lease.release",
    lambda connection, actor, reason, run_id: queue.release_lease(connection, run_id, actor, reason),
    question=lambda run_id: format_question("lease.release", run_id),
    back=lambda run_id: PATH,
    scope=Scope.RUN,
)
