"""Views of what a person asks for from nothing: a new run, and all types paused or resumed at once."""

from __future__ import annotations

from datetime import datetime

import psycopg
from flask import Blueprint, abort, g, request

from wakeboard.database.audit import Actor
from wakeboard.queue import Answer, EnqueueError, NewRun, manual_enqueue, pause_all
from wakeboard_dashboard.pages.live import Context
from wakeboard_dashboard.pages.verbs import add_verb, body
from wakeboard_dashboard.queries import runs
from wakeboard_dashboard.queries import types as query
from wakeboard_dashboard.text import ends
from wakeboard_dashboard.views.run_verbs import payload_given
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.scopes import Scope

blueprint = Blueprint("by_hand", __name__)

# As long as a type's name and a key may be.
LONGEST = 200
FIELDS = ("type", "payload", "in", "at", "key", "priority", "max_attempts")
PRIORITIES = (("0", "0 (first)"), ("1", "1"), ("2", "2 (usual)"), ("3", "3"), ("4", "4 (last)"))


def _enqueue(connection: psycopg.Connection, actor: Actor, reason: str | None) -> Answer:
    """Enqueue the run that the request describes."""
    given = {name: text.strip() for name, text in body().items()}
    if request.is_json and "type" not in given:
        abort(400, 'Say which type: {"type": "mail", "payload": {"to": 812}}. Nothing was enqueued.')
    try:
        new = NewRun(
            _type(body().get("type", "")),
            payload_given(),
            run_at=_due(given.get("at", "") or given.get("in", "")),
            key=given.get("key") or None,
            priority=_whole("priority", given.get("priority") or "2", 0, 4) or 0,
            max_attempts=_whole("max_attempts", given.get("max_attempts", ""), 1, 2**31 - 1),
        )
        return manual_enqueue.enqueue_by_hand(connection, new, actor, reason)
    except EnqueueError as wrong:
        abort(400, f"{wrong} Nothing was enqueued.")


def _type(text: str) -> str:
    """Return the type that a request names: exactly as its token has it, else without spaces around it."""
    return text if text in (g.actor.job_types or ()) else text.strip()


def _due(text: str) -> datetime | None:
    """Return when the run is due, None for now. Answers 400 for what is neither a duration nor a time."""
    try:
        if text.lower() in ends.NEVER[1:]:
            raise ValueError(text)
        return ends.end_of(text, as_of(), g.zone)
    except ValueError:
        abort(
            400,
            f"The time is “{text[:60]}”; allowed: a duration such as 5m or 2h, a time such as "
            "2026-11-22T06:00, or nothing for now. Nothing was enqueued.",
        )


def _whole(name: str, text: str, low: int, high: int) -> int | None:
    if not text:
        return None
    try:
        return int(params.whole(low, high).read(text))
    except ValueError:
        abort(400, f"{name} is “{text[:60]}”; allowed: {low} to {high}. Nothing was enqueued.")


def _ask_enqueue() -> Context:
    return {
        "types": runs.list_type_names(reading()) if g.actor.job_types is None else g.actor.job_types,
        "chosen": request.args.get("type", "")[:LONGEST],
        "ends": ends.ENDS,
        "priorities": PRIORITIES,
        "longest": LONGEST,
    }


def _made(answer: Answer) -> str:
    return f"/runs/{answer.id}"


def _hold(connection: psycopg.Connection, actor: Actor, reason: str | None) -> Answer:
    given = body()
    try:
        end = ends.end_of(given.get("until_at", "") or given.get("until", ""), as_of(), g.zone)
    except ValueError as wrong:
        abort(400, str(wrong))
    return pause_all.hold(connection, actor, reason, until=end)


def _ask_hold() -> Context:
    return {"standing": query.read_pauses(reading()), "ends": ends.ENDS, "is_hold": True}


add_verb(
    blueprint,
    "/runs/enqueue",
    "run.enqueue",
    _enqueue,
    says=lambda: "Enqueue a new run? It is due at once, or when you say.",
    back=lambda: "/runs",
    fields="runs/_enqueue.html",
    ask=_ask_enqueue,
    then=_made,
    keeps=True,
    takes=FIELDS,
    scope=Scope.OWN,
)
add_verb(
    blueprint,
    "/everything/hold",
    "type.hold",
    _hold,
    says=lambda: "Pause all types? No worker starts a run until they are resumed; what runs goes on.",
    back=lambda: "/types",
    fields="types/_hold.html",
    ask=_ask_hold,
    keeps=True,
    takes=ends.FIELDS,
)
add_verb(
    blueprint,
    "/everything/let-go",
    "type.let_go",
    lambda connection, actor, reason: pause_all.let_go(connection, actor, reason),
    says=lambda: "Resume all types that were paused together? Workers start their runs again.",
    back=lambda: "/types",
    fields="types/_hold.html",
    ask=lambda: {**_ask_hold(), "is_hold": False},
)
