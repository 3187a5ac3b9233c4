"""The verbs of one run: retry it now, cancel it, run it again."""

from __future__ import annotations

import json

import psycopg
from flask import Blueprint, abort, g, request

from wakeboard import queue
from wakeboard.core.states import Role
from wakeboard.core.text.redaction import redact
from wakeboard.database.audit import Actor
from wakeboard.queue import Answer
from wakeboard_dashboard.pages.live import Context, Json
from wakeboard_dashboard.pages.verbs import add_verb, read_body
from wakeboard_dashboard.queries import run as query
from wakeboard_dashboard.text.formats import pretty
from wakeboard_dashboard.text.questions import format_question
from wakeboard_dashboard.views import run
from wakeboard_dashboard.web.connection import reading
from wakeboard_dashboard.web.scopes import Scope

blueprint = Blueprint("run_verbs", __name__)

# How much of the payload before is shown behind an empty field, in characters.
MOST_BEFORE = 4_000


def _again(connection: psycopg.Connection, actor: Actor, reason: str | None, run_id: int) -> Answer:
    """Run again, with the payload of the request if it brings one (admins)."""
    try:
        return queue.run_again(connection, run_id, actor, reason, payload=read_payload())
    except queue.EnqueueError as error:
        abort(400, f"{error} Nothing was enqueued.")


def read_payload() -> Json | None:
    """Return the payload that the request brings: an object in JSON, or JSON text in a form; None without."""
    value = (
        (request.get_json(silent=True) or {}).get("payload")
        if request.is_json
        else read_body().get("payload")
    )
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        payload = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        abort(400, f"The payload is not JSON ({error}). Nothing was enqueued.")
    if not isinstance(payload, dict):
        abort(400, 'The payload must be a JSON object such as {"invoice_id": 812}. Nothing was enqueued.')
    return payload


def _again_context(run_id: int) -> Context:
    run_row = query.find_run(reading(), run_id)
    if run_row is None or not g.actor.role.covers(Role.ADMIN):
        return {"before": None, "has_secrets": False}
    shown = redact(run_row["payload"])
    before = pretty(shown)
    if len(before) > MOST_BEFORE:
        before = f"{before[:MOST_BEFORE]}…"
    return {"before": before, "has_secrets": shown != run_row["payload"]}


add_verb(
    blueprint,
    f"{run.PATH}/retry",
    "run.retry",
    lambda connection, actor, reason, run_id: queue.retry_now(connection, run_id, actor, reason),
    question=lambda run_id: (
        f"Retry run {run_id} now? A dead or cancelled run starts with a fresh count of failures."
    ),
    back=lambda run_id: f"/runs/{run_id}",
    scope=Scope.RUN,
)
add_verb(
    blueprint,
    f"{run.PATH}/cancel",
    "run.cancel",
    lambda connection, actor, reason, run_id: queue.cancel(connection, run_id, actor, reason),
    question=lambda run_id: format_question("run.cancel", run_id),
    back=lambda run_id: f"/runs/{run_id}",
    scope=Scope.RUN,
)
add_verb(
    blueprint,
    f"{run.PATH}/again",
    "run.again",
    _again,
    question=lambda run_id: format_question("run.again", run_id),
    back=lambda run_id: f"/runs/{run_id}",
    template="run/_again.html",
    context=_again_context,
    keeps_form=True,
    fields=("payload",),
    scope=Scope.RUN,
)
