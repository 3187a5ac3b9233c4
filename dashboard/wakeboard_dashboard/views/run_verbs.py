"""The verbs of one run: retry it now, cancel it, run it again."""

from __future__ import annotations

import json

import psycopg
from flask import Blueprint, abort, g, request

from wakeboard import queue as transitions
from wakeboard.core.states import Role
from wakeboard.core.text.redaction import redact
from wakeboard.database.audit import Actor
from wakeboard.queue import Answer
from wakeboard_dashboard.pages.live import Context, Json
from wakeboard_dashboard.pages.verbs import add_verb, body
from wakeboard_dashboard.queries import run as query
from wakeboard_dashboard.text.formats import pretty
from wakeboard_dashboard.views import run
from wakeboard_dashboard.web.connection import reading
from wakeboard_dashboard.web.scopes import Scope

blueprint = Blueprint("run_verbs", __name__)

# How much of the payload before is shown behind an empty field, in characters.
MOST_BEFORE = 4_000


def _again(connection: psycopg.Connection, actor: Actor, reason: str | None, run_id: int) -> Answer:
    """Run again, with the payload of the request if it brings one (admins)."""
    try:
        return transitions.run_again(connection, run_id, actor, reason, payload=payload_given())
    except transitions.EnqueueError as wrong:
        abort(400, f"{wrong} Nothing was enqueued.")


def payload_given() -> Json | None:
    """Return the payload that the request brings: an object in JSON, or JSON text in a form; None without."""
    given = (request.get_json(silent=True) or {}).get("payload") if request.is_json else body().get("payload")
    if given is None or (isinstance(given, str) and not given.strip()):
        return None
    try:
        payload = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError) as wrong:
        abort(400, f"The payload is not JSON ({wrong}). Nothing was enqueued.")
    if not isinstance(payload, dict):
        abort(400, 'The payload must be a JSON object such as {"invoice_id": 812}. Nothing was enqueued.')
    return payload


def _ask_again(run_id: int) -> Context:
    found = query.find_run(reading(), run_id)
    if found is None or not g.actor.role.covers(Role.ADMIN):
        return {"before": None, "has_secrets": False}
    shown = redact(found["payload"])
    before = pretty(shown)
    if len(before) > MOST_BEFORE:
        before = f"{before[:MOST_BEFORE]}…"
    return {"before": before, "has_secrets": shown != found["payload"]}


add_verb(
    blueprint,
    f"{run.PATH}/retry",
    "run.retry",
    lambda connection, actor, reason, run_id: transitions.retry_now(connection, run_id, actor, reason),
    says=lambda run_id: (
        f"Retry run {run_id} now? A dead or cancelled run starts with a fresh count of failures."
    ),
    back=lambda run_id: f"/runs/{run_id}",
    scope=Scope.RUN,
)
add_verb(
    blueprint,
    f"{run.PATH}/cancel",
    "run.cancel",
    lambda connection, actor, reason, run_id: transitions.cancel(connection, run_id, actor, reason),
    says=lambda run_id: (
        f"Cancel run {run_id}? If it waits it will not run; if it runs it is asked to stop; if it is dead it "
        "is dismissed, and its errors stay readable."
    ),
    back=lambda run_id: f"/runs/{run_id}",
    scope=Scope.RUN,
)
add_verb(
    blueprint,
    f"{run.PATH}/again",
    "run.again",
    _again,
    says=lambda run_id: f"Run {run_id} again? A new run is enqueued; this one stays as it is.",
    back=lambda run_id: f"/runs/{run_id}",
    fields="run/_again.html",
    ask=_ask_again,
    keeps=True,
    takes=("payload",),
    scope=Scope.RUN,
)
