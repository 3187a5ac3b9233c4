"""What every page has: the live count of what needs a person, and the page on which a browser is set up.

The settings of a browser are cookies of its own; nothing is written to the database.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from flask import Blueprint, Response, abort, g, render_template, request

from wakeboard_dashboard.pages import attention
from wakeboard_dashboard.pages.fragments import respond
from wakeboard_dashboard.pages.live import FRAGMENTS
from wakeboard_dashboard.text.formats import local
from wakeboard_dashboard.web import params
from wakeboard_dashboard.web.connection import as_of
from wakeboard_dashboard.web.preferences import CHOICES, YEAR_SECONDS, is_zone, zones
from wakeboard_dashboard.web.responses import came_from, local_path, see_other

blueprint = Blueprint("shell", __name__)


@blueprint.get(f"{FRAGMENTS}/shell/attention")
def count() -> Response:
    """Return the live region of the bar; every page asks for it, whatever else it shows."""
    params.from_request()
    return respond(_counted)


def _counted() -> str:
    return render_template("_attention.html", attention=attention.remember(attention.standing().needing))


@blueprint.get("/display")
def ask() -> str:
    """Show how this browser shows every page: theme, rows, times and their zone."""
    params.from_request({"next": params.TEXT})
    back = local_path(request.args.get("next")) or came_from() or "/"
    listed = dict.fromkeys((*zones(), str(g.zone)))
    return render_template(
        "display.html",
        back=back,
        clocks=_clocks(tuple(listed), as_of().replace(second=0, microsecond=0)),
        choices=CHOICES,
    )


@lru_cache(maxsize=8)
def _clocks(names: tuple[str, ...], now: datetime) -> list[tuple[str, str]]:
    """Return (zone, what its clocks show at ``now``) of every zone: six hundred, so once for each minute."""
    return [(name, local(now, ZoneInfo(name))[11:16]) for name in names]


@blueprint.post("/display")
def keep() -> Response:
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
