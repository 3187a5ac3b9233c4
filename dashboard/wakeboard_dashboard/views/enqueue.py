"""View of a new run that a person enqueues."""

from __future__ import annotations

from datetime import datetime

import psycopg
from flask import Blueprint, abort, g, request

from wakeboard.database.audit import Actor
from wakeboard.queue import Answer, EnqueueError, NewRun, manual_enqueue
from wakeboard_dashboard.pages.live import Context
from wakeboard_dashboard.pages.verbs import add_verb, read_body
from wakeboard_dashboard.queries import runs
from wakeboard_dashboard.text import ends
from wakeboard_dashboard.views.run_verbs import read_payload
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of, reading
from wakeboard_dashboard.web.scopes import Scope

blueprint = Blueprint("enqueue", __name__)

# As long as a type's name and a key may be.
LONGEST = 200
FIELDS = ("type", "payload", "in", "at", "key", "priority", "max_attempts")
PRIORITIES = (("0", "0 (first)"), ("1", "1"), ("2", "2 (usual)"), ("3", "3"), ("4", "4 (last)"))


def _enqueue(connection: psycopg.Connection, actor: Actor, reason: str | None) -> Answer:
    """Enqueue the run that the request describes."""
    fields = {name: text.strip() for name, text in read_body().items()}
    if request.is_json and "type" not in fields:
        abort(400, 'Say which type: {"type": "mail", "payload": {"to": 812}}. Nothing was enqueued.')
    try:
        new = NewRun(
            _type(read_body().get("type", "")),
            read_payload(),
            run_at=_due(fields.get("at", "") or fields.get("in", "")),
            key=fields.get("key") or None,
            priority=_whole("priority", fields.get("priority") or "2", 0, 4) or 0,
            max_attempts=_whole("max_attempts", fields.get("max_attempts", ""), 1, 2**31 - 1),
        )
        return manual_enqueue.enqueue_by_hand(connection, new, actor, reason)
    except EnqueueError as error:
        abort(400, f"{error} Nothing was enqueued.")


def _type(text: str) -> str:
    """Return the type that a request names: exactly as its token has it, else without spaces around it."""
    return text if text in (g.actor.job_types or ()) else text.strip()


def _due(text: str) -> datetime | None:
    """Return when the run is due, None for now. Answers 400 for what is neither a duration nor a time."""
    try:
        if text.lower() in ends.NEVER[1:]:
            raise ValueError(text)
        return ends.parse_end(text, as_of(), g.zone)
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


def _form_context() -> Context:
    return {
        "types": runs.list_type_names(reading()) if g.actor.job_types is None else g.actor.job_types,
        "chosen": request.args.get("type", "")[:LONGEST],
        "ends": ends.ENDS,
        "priorities": PRIORITIES,
        "longest": LONGEST,
    }


add_verb(
    blueprint,
    "/runs/enqueue",
    "run.enqueue",
    _enqueue,
    question=lambda: "Enqueue a new run? It is due at once, or when you say.",
    back=lambda: "/runs",
    template="runs/_enqueue.html",
    context=_form_context,
    next_path=lambda answer: f"/runs/{answer.id}",
    keeps_form=True,
    fields=FIELDS,
    scope=Scope.OWN,
)
