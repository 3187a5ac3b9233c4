"""View of /display: how a browser shows every page. Its choices are cookies, not rows."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from flask import Blueprint, Response, abort, g, render_template, request

from wakeboard_dashboard.text.formats import local
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of
from wakeboard_dashboard.web.preferences import CHOICES, YEAR_SECONDS, is_zone, zones
from wakeboard_dashboard.web.responses import local_path, referring_path, see_other

blueprint = Blueprint("display", __name__)


@blueprint.get("/display")
def show_choices() -> str:
    """Show the form: theme, rows, times and their zone."""
    params.refuse_unknown({"next": params.TEXT})
    back = local_path(request.args.get("next")) or referring_path() or "/"
    names = dict.fromkeys((*zones(), str(g.zone)))
    return render_template(
        "display.html",
        back=back,
        clocks=_clocks(tuple(names), as_of().replace(second=0, microsecond=0)),
        choices=CHOICES,
    )


@lru_cache(maxsize=8)
def _clocks(names: tuple[str, ...], now: datetime) -> list[tuple[str, str]]:
    """Return (zone, what its clocks show at ``now``) of every zone: six hundred, so once for each minute."""
    return [(name, local(now, ZoneInfo(name))[11:16]) for name in names]


@blueprint.post("/display")
def save_choices() -> Response:
    """Keep the choices of the form in this browser and go back to the page it came from."""
    back = local_path(request.form.get("next")) or "/display"
    response = see_other(back, "This browser shows pages as you chose.")
    for name in (*CHOICES, "zone"):
        chosen = request.form.get(name, "")
        if chosen and not (is_zone(chosen) if name == "zone" else chosen in CHOICES[name]):
            abort(400, f"There is no {name} “{chosen[:50]}”. Choose one of the list.")
        response.set_cookie(
            f"wakeboard_{name}", chosen, max_age=YEAR_SECONDS, samesite="Lax", secure=request.is_secure
        )
    return response
