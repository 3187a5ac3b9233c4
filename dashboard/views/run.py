"""One run: how it stands and why, what was tried, what people did to it, and the verbs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import psycopg
from flask import Blueprint, abort, g, request
from sqlalchemy import RowMapping

from dashboard import params
from dashboard.connection import as_of, reading
from dashboard.formats import pretty, redact
from dashboard.lanes import lanes
from dashboard.live import add_page
from dashboard.queries import leases
from dashboard.queries import run as query
from dashboard.queries.waiting import CAP, obstacles
from dashboard.verbs import add_verb, body
from worker import transitions
from worker.audit import Actor
from worker.backoff import Backoff
from worker.leases import NAMES, STATES, takeover
from worker.states import CLAIMABLE, ENDED, VERBS, Role, Status, allowed
from worker.tables import job_attempts, job_runs
from worker.transitions import Answer

blueprint = Blueprint("run", __name__)

PATH = "/runs/<id:run_id>"
# How much of the payload before is shown behind an empty field, in characters.
MOST_BEFORE = 4_000
VERB_NAMES = ("run.retry", "run.cancel", "run.again")


def _found(run_id: int) -> RowMapping:
    params.from_request()
    run = query.one(reading(), run_id)
    if run is None:
        abort(404, f"There is no run {run_id}: it never was, or retention has removed it.")
    return run


def find(run_id: int) -> dict[str, Any]:
    """Return the run, why it stands as it does, and what may be done with it."""
    run = _found(run_id)
    waits = Status(run["status"]) in CLAIMABLE
    lease = leases.standing(reading(), run_id) if run["status"] == Status.RUNNING else None
    return {
        "run": run,
        "is_due": run["run_at"] <= as_of(),
        "is_stuck": run["is_lease_ended"] or run["is_silent"],
        "lease": lease,
        "lease_state": None if lease is None else STATES[lease["rank"]],
        "takeover": None if lease is None else takeover(NAMES[lease["rank"]], lease["takers"]),
        "is_spent": run["failures"] >= run["most_attempts"],
        "obstacles": obstacles(reading(), run) if waits else None,
        "cap": CAP,
        "rule": describe(run["backoff"]),
        "verbs_here": [VERBS[name] for name in VERB_NAMES if allowed(VERBS[name], Status(run["status"]))],
        "why_not": why_not(run, as_of()),
        "waits": waits,
        "descendants": query.descendants(reading(), run_id) if Status(run["status"]) in ENDED else [],
        "effects": query.effects_of(reading(), run_id),
    }


def find_attempts(run_id: int) -> dict[str, Any]:
    """Return what was tried, newest first, and what the running attempt prints."""
    run = _found(run_id)
    ended = query.attempts(reading(), run_id)
    running = (run["attempts"], run["started_at"]) if run["status"] == Status.RUNNING else None
    return {
        "run": run,
        "ended": ended,
        "lanes": lanes(ended, running, as_of()),
        "output": query.output(reading(), run_id, run["lease_epoch"]) if running else None,
        "most": query.MOST_SHOWN,
    }


def find_audit(run_id: int) -> dict[str, Any]:
    """Return what people asked of this run."""
    _found(run_id)
    return {"rows": query.audit(reading(), run_id)}


def describe(backoff: str) -> str:
    """Return a retry rule in words; one that this version cannot read is shown as it is."""
    try:
        return Backoff.parse(backoff).describe()
    except ValueError:
        return backoff


def why_not(run: RowMapping, now: datetime) -> dict[str, str]:
    """Return, by verb, why a verb that the state allows would change nothing now."""
    found = {}
    if Status(run["status"]) in CLAIMABLE and run["run_at"] <= now:
        found["retry"] = "It is due already"
    if run["cancel_requested_at"] and run["status"] == Status.RUNNING:
        found["cancel"] = "It was already asked to stop"
    return found


def twin(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``/runs/<id>.json``: the run's columns, its attempts, its audit trail; secrets hidden."""
    run: RowMapping = context["run"]
    found = {column.name: run[column.name] for column in job_runs.c}
    history = [{c.name: row[c.name] for c in job_attempts.c} for row in query.attempts(reading(), run["id"])]
    hidden = ("error", "traceback", "output_tail", "result")
    return {
        **found,
        "payload": redact(run["payload"]),
        "last_error": redact(run["last_error"]),
        "definition": run["definition"],
        "stuck": context["is_stuck"],
        "lease": _lease(context),
        "waits_for": asdict(context["obstacles"]) if context["obstacles"] else None,
        "history": [row | {name: redact(row[name]) for name in hidden} for row in history],
        "descendants": [int(each) for each in context["descendants"]],
        "audit": [_hidden(row) for row in query.audit(reading(), run["id"])],
    }


def _lease(context: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the lease of a running run stands, None when it does not run."""
    if context["lease"] is None:
        return None
    names = ("worker_seen_at", "renewed_at", "locked_until", "lease_seconds", "takeover_at", "takers")
    found = {name: context["lease"][name] for name in names}
    return {"state": context["lease_state"].name, **found}


def _hidden(row: RowMapping) -> dict[str, Any]:
    return dict(row) | {"before": redact(row["before"]), "after": redact(row["after"])}


add_page(
    blueprint,
    PATH,
    "run/page.html",
    find,
    twin=twin,
    fragments={
        "state": "run/_state.html",
        "attempts": ("run/_attempts.html", find_attempts),
        "audit": ("run/_audit.html", find_audit),
    },
)


def _again(connection: psycopg.Connection[Any], actor: Actor, reason: str | None, run_id: int) -> Answer:
    """Run again, with the payload of the request if it brings one (admins)."""
    try:
        return transitions.run_again(connection, run_id, actor, reason, payload=_payload())
    except transitions.EnqueueError as wrong:
        abort(400, f"{wrong} Nothing was enqueued.")


def _payload() -> dict[str, Any] | None:
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


def _ask_again(run_id: int) -> dict[str, Any]:
    run = query.one(reading(), run_id)
    if run is None or not g.actor.role.covers(Role.ADMIN):
        return {"before": None, "has_secrets": False}
    shown = redact(run["payload"])
    before = pretty(shown)
    if len(before) > MOST_BEFORE:
        before = f"{before[:MOST_BEFORE]}…"
    return {"before": before, "has_secrets": shown != run["payload"]}


add_verb(
    blueprint,
    f"{PATH}/retry",
    "run.retry",
    lambda connection, actor, reason, run_id: transitions.retry_now(connection, run_id, actor, reason),
    says=lambda run_id: (
        f"Retry run {run_id} now? A dead or cancelled run starts with a fresh count of failures."
    ),
    back=lambda run_id: f"/runs/{run_id}",
)
add_verb(
    blueprint,
    f"{PATH}/cancel",
    "run.cancel",
    lambda connection, actor, reason, run_id: transitions.cancel(connection, run_id, actor, reason),
    says=lambda run_id: f"Cancel run {run_id}? If it waits it will not run; if it runs it is asked to stop.",
    back=lambda run_id: f"/runs/{run_id}",
)
add_verb(
    blueprint,
    f"{PATH}/again",
    "run.again",
    _again,
    says=lambda run_id: f"Run {run_id} again? A new run is enqueued; this one stays as it is.",
    back=lambda run_id: f"/runs/{run_id}",
    fields="run/_again.html",
    ask=_ask_again,
)
