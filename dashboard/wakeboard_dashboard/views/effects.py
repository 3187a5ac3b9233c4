"""Views of effects: what was begun once and never confirmed, so that only a person can say what happened."""

from __future__ import annotations

import psycopg
from flask import Blueprint, abort

from wakeboard.database.audit import Actor
from wakeboard.queue import Answer
from wakeboard.queue.effects import settle
from wakeboard_dashboard.pages.live import Context, add_page, rows_twin
from wakeboard_dashboard.pages.verbs import add_verb, read_body
from wakeboard_dashboard.queries import effects
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import reading

blueprint = Blueprint("effects", __name__)

PATH = "/effects"
FIELDS = {"key": params.TEXT, "type": params.TEXT, "run": params.ID}
COLUMNS = [
    "id", "key", "scope", "run_id", "attempt", "lease_epoch", "status", "job_type", "run_status",
    "created_at",
]  # fmt: skip


def find_effects() -> Context:
    """Return the unconfirmed effects of the page."""
    filters = params.from_request(FIELDS)
    return {"filters": filters, "rows": effects.list_effects(reading(), filters)}


add_page(
    blueprint,
    PATH,
    "effects/page.html",
    find_effects,
    twin=rows_twin(lambda row: {name: row[name] for name in COLUMNS}),
    columns=COLUMNS,
    fragments={"list": "effects/_list.html"},
    fields=FIELDS,
)


def _settle(connection: psycopg.Connection, actor: Actor, reason: str | None, effect_id: int) -> Answer:
    """Settle an effect as the request says: ``happened`` is yes or no."""
    happened = read_body().get("happened", "").strip().lower()
    if happened not in ("yes", "no", "true", "false"):
        abort(400, "Say whether it happened: happened must be yes or no. Nothing was changed.")
    return settle(connection, effect_id, actor, happened=happened in ("yes", "true"), reason=reason)


add_verb(
    blueprint,
    f"{PATH}/<id:effect_id>/settle",
    "effect.settle",
    _settle,
    question=lambda effect_id: (
        "Did it happen? Look at the receiving side first: what you say here is believed."
    ),
    back=lambda effect_id: PATH,
    template="effects/_settle.html",
    context=lambda effect_id: {"effect": effects.find_effect(reading(), effect_id)},
    fields=("happened",),
)
