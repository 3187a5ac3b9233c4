"""Views of leases: what runs now, who holds it, until when, and taking it from a worker that is silent."""

from __future__ import annotations

from typing import Any

from flask import Blueprint
from sqlalchemy import RowMapping

from dashboard import params
from dashboard.connection import reading
from dashboard.live import add_page, rows_twin
from dashboard.queries import leases
from dashboard.queries.runs import type_names
from dashboard.verbs import add_verb
from worker import transitions

blueprint = Blueprint("leases", __name__)

PATH = "/leases"
FIELDS = {
    "state": params.one_of(leases.STATES, many=True),
    "type": params.TEXT,
    "worker": params.TEXT,
}
COLUMNS = [
    "id", "state", "job_type", "attempts", "lease_epoch", "locked_by", "worker_name", "worker_hostname",
    "worker_pid", "worker_seen_at", "started_at", "locked_until", "cancel_requested_at",
]  # fmt: skip
# By state: the badge's colour and word.
BADGES = {
    "ended": ("stuck", "lease ended"),
    "silent": ("stuck", "worker silent"),
    "stopping": ("running", "cancel asked"),
    "renewed": ("running", "renewed"),
}


def find() -> dict[str, Any]:
    """Return what runs now, with the state of each lease in words."""
    filters = params.from_request(FIELDS)
    return {
        "filters": filters,
        "rows": leases.page(reading(), filters),
        "states": leases.STATES,
        "badges": BADGES,
        "types": type_names(reading()),
    }


def item(row: RowMapping) -> dict[str, Any]:
    """Return a lease as the twin gives it."""
    return {name: row[name] if name in row else leases.STATES[row["rank"]] for name in COLUMNS}


add_page(
    blueprint,
    PATH,
    "leases/page.html",
    find,
    twin=rows_twin(item),
    columns=COLUMNS,
    fragments={"list": "leases/_list.html"},
)

add_verb(
    blueprint,
    f"{PATH}/<id:run_id>/release",
    "lease.release",
    lambda connection, actor, reason, run_id: transitions.release_lease(connection, run_id, actor, reason),
    says=lambda run_id: (
        f"Take run {run_id} from its worker? It counts as a lost attempt, and another worker may start it."
    ),
    back=lambda run_id: PATH,
)
