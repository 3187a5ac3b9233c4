"""The Jinja environment: filters, functions, the context of the layout, the cache of compiled templates."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path
from zoneinfo import ZoneInfo

from flask import Flask, Response, g, request
from jinja2 import BytecodeCache, Environment, FileSystemBytecodeCache, StrictUndefined
from jinja2.bccache import Bucket

from wakeboard import __version__
from wakeboard.config.settings import Settings
from wakeboard.core.states import VERBS
from wakeboard.core.text.redaction import redact
from wakeboard_dashboard.charts.charts import bar_chart, spread_chart
from wakeboard_dashboard.charts.sparks import sparkline
from wakeboard_dashboard.pages import attention, fragments, live, navigation
from wakeboard_dashboard.text import formats
from wakeboard_dashboard.text.questions import format_question
from wakeboard_dashboard.web import files, preferences, responses, security

log = logging.getLogger("wakeboard.web")


def install(app: Flask, settings: Settings) -> None:
    """Set Jinja up: strict, escaping everything, with our filters and what the layout shows."""
    app.jinja_options = {
        "undefined": StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "bytecode_cache": cache(),
    }
    environment = app.jinja_env
    environment.autoescape = True
    environment.filters.update(formats.FILTERS | {"redact": redact})
    here = preferences.HERE.get
    environment.filters["local"] = lambda value: formats.local(value, here())
    environment.filters["brief"] = lambda value: formats.brief(value, here())
    environment.filters["clock"] = lambda value: formats.clock(value, here())
    environment.globals.update(
        live=live.live,
        can=lambda action: security.can(VERBS[action]),
        verbs=VERBS,
        needs_attention=attention.count_for_frame,
        fragment_tag=fragments.fragment_tag,
        keys=navigation.KEYS,
        question=format_question,
    )
    environment.globals["show_when"] = lambda value, *how, **named: formats.when(value, here(), *how, **named)
    environment.globals.update(
        bar_chart=bar_chart,
        spread_chart=spread_chart,
        sparkline=sparkline,
    )
    folder = str(app.static_folder)
    environment.globals["static"] = lambda name: f"{files.STATIC}{name}?v={files.fingerprint(folder, name)}"
    server_zone = ZoneInfo(settings.timezone)
    ribbon = _ribbon(settings.environment)
    app.before_request(lambda: preferences.set_zone(server_zone))
    app.after_request(_forget_toast)

    def of_request() -> dict[str, object]:
        """Return the context that all templates of a request share."""
        return {
            "zone": g.get("zone", server_zone),
            "server_zone": settings.timezone,
            "ribbon": ribbon,
            "navigation": navigation.PAGES,
            **{name: preferences.choice(name) for name in preferences.CHOICES},
            "subtitle": navigation.subtitle(request.path),
            "pending_toast": responses.read_toast(),
            "section": navigation.section(request.path),
        }

    @app.context_processor
    def shell() -> dict[str, object]:
        if "shell" not in g:
            g.shell = of_request()
        same: dict[str, object] = g.shell
        return same | {"actor": g.get("actor"), "as_of": g.get("as_of")}


def _ribbon(environment: str | None) -> tuple[str, str] | None:
    """Return (name, colour) of ``production red``; the colour is a class of the stylesheet."""
    if not environment:
        return None
    name, _, colour = environment.rpartition(" ")
    known = ("red", "orange", "amber", "yellow", "green", "blue", "purple", "grey")
    return (name, colour) if name and colour in known else (environment, "grey")


def _forget_toast(response: Response) -> Response:
    """Delete the cookie of a toast once it was shown."""
    shown = response.mimetype == "text/html" and response.status_code != 303
    if shown and responses.TOAST_COOKIE in request.cookies and "HX-Request" not in request.headers:
        response.delete_cookie(responses.TOAST_COOKIE)
    return response


class _Cache(FileSystemBytecodeCache):
    """Jinja's cache; on a full disk or without its folder, templates are compiled each time."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the code of one template, if that is possible."""
        with suppress(OSError):
            super().dump_bytecode(bucket)


def cache() -> BytecodeCache | None:
    """Return a cache beside the compiled modules, or None where Python writes no bytecode.

    Filters of constants are computed when a template is compiled, so each version has files of its own.
    """
    if sys.dont_write_bytecode:
        return None
    folder = Path(__file__).parent / "__pycache__" / "templates"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        log.info("compiled templates are not kept: %s", refused)
        return None
    python = sys.implementation.cache_tag
    return _Cache(str(folder), f"wakeboard-{__version__}-{python}-%s.cache")


def load_all(environment: Environment) -> None:
    """Load every page template into memory. Raises TemplateSyntaxError for one that is broken."""
    for name in environment.list_templates(extensions=["html"]):
        environment.get_template(name)
