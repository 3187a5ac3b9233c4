"""Views of workers: who is there, how busy, how well; asking one to drain or to stop, or to claim again."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from flask import Blueprint
from sqlalchemy import RowMapping

from wakeboard.queue import workers as moves
from wakeboard_dashboard.pages.live import Context, Json, add_page
from wakeboard_dashboard.pages.verbs import add_verb
from wakeboard_dashboard.queries import audit, workers
from wakeboard_dashboard.queries.keyset import Rows
from wakeboard_dashboard.text.questions import format_question
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import reading

blueprint = Blueprint("workers", __name__)

PATH = "/workers"
FIELDS = {"state": params.one_of(workers.STATES, many=True), "type": params.TEXT, "q": params.TEXT}
COLUMNS = [
    "id", "state", "name", "hostname", "pid", "version", "concurrency", "running", "memory_bytes",
    "run_ids", "job_types", "is_tick", "heartbeat_seconds", "started_at", "seen_at", "idle_since",
    "drain_requested_at", "stop_requested_at", "stopping_at", "stopped_at",
]  # fmt: skip
# By state: the colour of the badge; its word is the state's own.
COLOURS = {
    "silent": "stuck",
    "stopping": "cancelled",
    "draining": "cancelled",
    "busy": "running",
    "idle": "succeeded",
    "stopped": "queued",
    "gone": "queued",
}
SILENT = (
    "Two heartbeats were missed: the process died, hangs, or cannot reach the database. "
    "Its runs are taken over when their leases end."
)
# How the list is parted: a heading and what it means, and the states that stand under it.
PARTS = (
    ("Silent", SILENT, ("silent",)),
    ("Here", "", ("stopping", "draining", "busy", "idle")),
    ("Stopped", "They ended in good order.", ("stopped",)),
    ("Gone", "Silent for over a day: they ended without a word. Forgotten after a week.", ("gone",)),
)  # fmt: skip
ASKED = ("worker.drain", "worker.stop")


def find_workers() -> Context:
    """Return the workers of the page."""
    filters = params.from_request(FIELDS)
    rows = workers.list_workers(reading(), filters)
    ids = [row["id"] for row in rows.items]
    return {
        "filters": filters,
        "rows": rows,
        "running": workers.read_running(reading(), ids),
        "asked": audit.find_last_actions(reading(), "worker", ids, ASKED),
        "parts": parts(rows.items),
        "versions": workers.list_versions(reading()),
        "states": workers.STATES,
        "colours": COLOURS,
        "why_not": why_not,
        "path_of": path_of,
        "types": {row["id"]: tuple(row["job_types"]) for row in rows.items},
    }


def parts(rows: Sequence[RowMapping]) -> list[tuple[str, str, list[RowMapping]]]:
    """Return (heading, meaning, workers) of each part of the list that has any."""
    ranks = {title: {workers.STATES.index(state) for state in states} for title, _, states in PARTS}
    sections = [
        (title, meaning, [row for row in rows if row["rank"] in ranks[title]]) for title, meaning, _ in PARTS
    ]
    return [part for part in sections if part[2]]


def path_of(worker_id: str) -> str:
    """Return the path of a worker, whatever characters are in its id."""
    return f"{PATH}/{quote(worker_id, safe='')}"


def why_not(row: RowMapping) -> dict[str, str]:
    """Return, by verb, why it would change nothing for this worker."""
    state = workers.STATES[row["rank"]]
    if state == "stopped":
        return dict.fromkeys(("drain", "stop"), "It has stopped")
    if state == "gone":
        return dict.fromkeys(("drain", "stop"), "It is gone: nothing was heard of it for over a day")
    if state == "silent":
        hint = f"It hears nothing: look at process {row['pid']} on {row['hostname']}"
        return dict.fromkeys(("drain", "stop"), hint)
    if state == "stopping":
        return {"drain": "It claims nothing new already", "stop": "It is stopping already"}
    return {}


def workers_twin(context: Context) -> Json:
    """Return the list's JSON body."""

    def item(row: RowMapping) -> Json:
        more = {
            "state": workers.STATES[row["rank"]],
            "run_ids": context["running"][row["id"]].ids,
        }
        return {name: more[name] if name in more else row[name] for name in COLUMNS}

    rows: Rows = context["rows"]
    return rows.twin(item)


add_page(
    blueprint,
    PATH,
    "workers/page.html",
    find_workers,
    twin=workers_twin,
    columns=COLUMNS,
    fragments={"list": "workers/_list.html"},
    fields=FIELDS,
)

add_verb(
    blueprint,
    f"{PATH}/<path:name>/drain",
    "worker.drain",
    lambda connection, actor, reason, name: moves.drain(connection, name, actor, reason),
    question=lambda name: format_question("worker.drain", name),
    back=lambda name: PATH,
)
add_verb(
    blueprint,
    f"{PATH}/<path:name>/undrain",
    "worker.undrain",
    lambda connection, actor, reason, name: moves.undrain(connection, name, actor, reason),
    question=lambda name: f"Let worker {name} claim again?",
    back=lambda name: PATH,
)
add_verb(
    blueprint,
    f"{PATH}/<path:name>/stop",
    "worker.stop",
    lambda connection, actor, reason, name: moves.stop(connection, name, actor, reason),
    question=lambda name: format_question("worker.stop", name),
    back=lambda name: PATH,
)
