"""Views of workers: who is there, how busy, how well; asking one to drain or to stop."""

from __future__ import annotations

from typing import Any

from flask import Blueprint
from sqlalchemy import RowMapping

from dashboard import params
from dashboard.connection import reading
from dashboard.live import add_page, rows_twin
from dashboard.queries import workers
from dashboard.verbs import add_verb
from worker.transitions import types

blueprint = Blueprint("workers", __name__)

PATH = "/workers"
FIELDS = {"state": params.one_of(workers.STATES, many=True), "type": params.TEXT, "q": params.TEXT}
COLUMNS = [
    "id", "state", "name", "hostname", "pid", "version", "concurrency", "running", "memory_bytes",
    "job_types", "is_tick", "heartbeat_seconds", "started_at", "seen_at", "idle_since", "drain_requested_at",
    "stop_requested_at", "stopping_at", "stopped_at",
]  # fmt: skip
# By state: the colour of the badge; its word is the state's own.
COLOURS = {
    "silent": "stuck",
    "stopping": "cancelled",
    "draining": "cancelled",
    "busy": "running",
    "idle": "succeeded",
    "stopped": "queued",
}


def find() -> dict[str, Any]:
    """Return the workers of the page."""
    filters = params.from_request(FIELDS)
    return {
        "filters": filters,
        "rows": workers.page(reading(), filters),
        "versions": workers.versions(reading()),
        "states": workers.STATES,
        "colours": COLOURS,
        "why_not": why_not,
    }


def why_not(row: RowMapping) -> dict[str, str]:
    """Return, by verb, why it would change nothing for this worker."""
    state = workers.STATES[row["rank"]]
    if state == "stopped":
        return dict.fromkeys(("drain", "stop"), "It has stopped")
    if state == "silent":
        hint = f"It hears nothing: look at process {row['pid']} on {row['hostname']}"
        return dict.fromkeys(("drain", "stop"), hint)
    found = {}
    if row["drain_requested_at"] or row["stop_requested_at"] or row["stopping_at"]:
        found["drain"] = "It claims nothing new already"
    if row["stop_requested_at"] or row["stopping_at"]:
        found["stop"] = "It is stopping already"
    return found


def item(row: RowMapping) -> dict[str, Any]:
    """Return a worker as the twin gives it."""
    return {name: row[name] if name in row else workers.STATES[row["rank"]] for name in COLUMNS}


add_page(
    blueprint,
    PATH,
    "workers/page.html",
    find,
    twin=rows_twin(item),
    columns=COLUMNS,
    fragments={"list": "workers/_list.html"},
)

add_verb(
    blueprint,
    f"{PATH}/<path:name>/drain",
    "worker.drain",
    lambda connection, actor, reason, name: types.drain(connection, name, actor, reason),
    says=lambda name: f"Let worker {name} claim nothing new? What it runs goes on to its end.",
    back=lambda name: PATH,
)
add_verb(
    blueprint,
    f"{PATH}/<path:name>/stop",
    "worker.stop",
    lambda connection, actor, reason, name: types.stop(connection, name, actor, reason),
    says=lambda name: (
        f"Stop worker {name}? It claims nothing new, lets what it runs end if that is soon, and gives back "
        "the rest."
    ),
    back=lambda name: PATH,
)
