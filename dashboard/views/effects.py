"""Views of effects: what was begun once and never confirmed, so that only a person can say what happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Blueprint

from dashboard import params
from dashboard.connection import reading
from dashboard.live import add_page
from dashboard.queries import effects

blueprint = Blueprint("effects", __name__)

PATH = "/effects"
FIELDS = {"key": params.TEXT, "type": params.TEXT, "run": params.ID}
COLUMNS = [
    "id", "key", "scope", "run_id", "attempt", "lease_epoch", "status", "job_type", "run_status",
    "created_at",
]  # fmt: skip


def find() -> dict[str, Any]:
    """Return the unconfirmed effects of the page."""
    filters = params.from_request(FIELDS)
    return {"filters": filters, "rows": effects.page(reading(), filters)}


def twin(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the list's JSON body."""
    body: dict[str, Any] = context["rows"].twin(lambda row: {name: row[name] for name in COLUMNS})
    return body


add_page(
    blueprint,
    PATH,
    "effects/page.html",
    find,
    twin=twin,
    columns=COLUMNS,
    fragments={"list": "effects/_list.html"},
)
