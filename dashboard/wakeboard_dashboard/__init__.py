"""The dashboard: a server-rendered window onto the tables that ``wakeboard`` owns.

``create_app`` puts the rooms together. Reads only; every write is a function of ``wakeboard``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from flask import Flask, g, request
from flask.json.provider import DefaultJSONProvider
from jinja2 import StrictUndefined
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.routing import BaseConverter, PathConverter, ValidationError

from wakeboard.config.settings import Settings
from wakeboard.core.errors.error_groups import DIGITS
from wakeboard.core.states import VERBS
from wakeboard.core.text.redaction import redact
from wakeboard_dashboard.charts.charts import bar_chart, spread_chart
from wakeboard_dashboard.charts.sparks import sparkline
from wakeboard_dashboard.pages import attention, bytecode, fragments, live
from wakeboard_dashboard.pages.keyboard import GO, KEYS
from wakeboard_dashboard.text import formats
from wakeboard_dashboard.text.pages import answers as page_answers
from wakeboard_dashboard.views import BLUEPRINTS
from wakeboard_dashboard.web import (
    compression,
    connection,
    errors,
    files,
    preferences,
    request_metrics,
    responses,
    security,
)
from wakeboard_dashboard.web.params import LARGEST_ID

LARGEST_BODY = 1_000_000
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
NAVIGATION = (
    ("/", "Overview"),
    ("/runs", "Runs"),
    ("/errors", "Errors"),
    ("/leases", "Leases"),
    ("/schedules", "Schedules"),
    ("/types", "Types"),
    ("/workers", "Workers"),
    ("/audit", "Audit"),
)
# Pages of an entry under another path.
ELSEWHERE = {"/everything": "/types"}
# At the foot of every page; shown as far as this version has them.
MORE_PAGES = (
    ("/night", "Last night"),
    ("/operations", "Operations"),
    ("/effects", "Effects"),
    ("/alerts", "Alerts"),
    ("/system", "System"),
    ("/demo", "Demo shop"),
    ("/display", "Display"),
)


def ui_root() -> Path:
    """Return the folder with ``templates`` and ``static``: inside the wheel, or the checkout's root.

    Raises RuntimeError when neither is there.
    """
    here = Path(__file__).resolve().parent
    for root in (here / "_ui", here.parents[1]):
        if (root / "templates" / "layout.html").is_file() and (root / "static").is_dir():
            return root
    raise RuntimeError("templates/ and static/ are not next to the package: reinstall wakeboard.")


class IdConverter(BaseConverter):
    """A row id in a path; anything a bigint cannot hold is an address that does not exist."""

    regex = "[0-9]{1,40}"
    part_isolating = True

    def to_python(self, value: str) -> int:
        """Return the id. Raises ValidationError, a 404, when it is out of range."""
        if not 0 < int(value) <= LARGEST_ID:
            raise ValidationError
        return int(value)


class GroupConverter(BaseConverter):
    """An error group in a path, as thirteen hexadecimal digits; it goes on as that text."""

    regex = f"[0-9a-f]{{{DIGITS}}}"
    part_isolating = True


class NameConverter(PathConverter):
    """A name that users gave, in a path: any text, with slashes, also doubled, and line breaks."""

    regex = "(?s:.+?)"
    part_isolating = False


class JSON(DefaultJSONProvider):
    """JSON as twins give it: keys in our order, text as it is, times in ISO 8601."""

    sort_keys = False
    ensure_ascii = False
    default = staticmethod(formats.plain)

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        """Return the value of JSON ``s``. Raises ValueError, also for JSON nested too deep to read."""
        try:
            return super().loads(s, **kwargs)
        except RecursionError as deep:
            raise ValueError("nested too deep") from deep


def create_app(settings: Settings, *, database_url: str | None = None) -> Flask:
    """Return the WSGI app for ``settings``; nothing is connected before the first request.

    ``database_url`` (libpq) stands for an embedded server whose address is not in the settings. Raises
    RuntimeError without any database URL.
    """
    url = database_url or settings.database_url
    if url is None:
        raise RuntimeError("The dashboard needs a database: set WAKEBOARD_DATABASE_URL or run wakeboard up.")
    root = ui_root()
    app = Flask("dashboard", template_folder=str(root / "templates"), static_folder=str(root / "static"))
    app.json = JSON(app)
    app.url_map.converters.update(id=IdConverter, path=NameConverter, group=GroupConverter)
    # A type may be called "a//b"; merged, a verb on it would reach the type "a/b".
    app.url_map.merge_slashes = False
    app.config.update(
        MAX_CONTENT_LENGTH=LARGEST_BODY,
        MAX_FORM_MEMORY_SIZE=LARGEST_BODY,
        MAX_FORM_PARTS=2000,
        HOSTS=_hosts(settings),
        SETTINGS=settings,
    )
    if settings.behind_tls_proxy:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=1, x_proto=1, x_host=1)  # type: ignore[method-assign]
    fragments.install(app)
    compression.install(app)
    engines = connection.engines_of(app, url, settings.read_database_url, settings.web_threads)
    request_metrics.install(app, engines)
    connection.install(app, engines)
    errors.install(app)
    _templates(app, settings)
    security.install(app)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    served = {str(rule) for rule in app.url_map.iter_rules()}
    app.config["MORE_PAGES"] = [page for page in MORE_PAGES if page[0] in served]
    return app


def _hosts(settings: Settings) -> list[str]:
    """Return the names that the dashboard may be called by."""
    host = settings.bind.rpartition(":")[0]
    own = () if host in ("0.0.0.0", "[::]", "") else (host,)
    more = settings.hosts.split(", ") if settings.hosts else ()
    return list(dict.fromkeys((*own, *LOCAL_HOSTS, *more)))


def _templates(app: Flask, settings: Settings) -> None:
    """Set Jinja up: strict, escaping everything, with our filters and what the layout shows."""
    app.jinja_options = {
        "undefined": StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "bytecode_cache": bytecode.cache(),
    }
    environment = app.jinja_env
    environment.autoescape = True
    environment.filters.update(formats.FILTERS | {"redact": redact})
    here = preferences.HERE.get
    environment.filters["local"] = lambda value: formats.local(value, here())
    environment.filters["brief"] = lambda value: formats.brief(value, here())
    environment.filters["clock"] = lambda value: formats.clock(value, here())
    environment.globals.update(
        live=live.live, can=lambda action: security.can(VERBS[action]), verbs=VERBS, navigation=NAVIGATION
    )
    environment.globals.update(
        needs_attention=attention.in_passing, fragment_tag=fragments.fragment_tag, keys=KEYS, go=GO
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
    app.before_request(lambda: preferences.take_zone(server_zone))
    app.after_request(_forget_toast)

    def of_request() -> dict[str, Any]:
        """Return what all templates of a request are told alike."""
        return {
            "zone": g.get("zone", server_zone),
            "server_zone": settings.timezone,
            "ribbon": ribbon,
            "more_pages": app.config["MORE_PAGES"],
            **{name: preferences.choice(name) for name in preferences.CHOICES},
            "answers": page_answers(request.path),
            "waiting_toast": responses.waiting_toast(),
            "section": _section(),
        }

    @app.context_processor
    def shell() -> dict[str, Any]:
        if "shell" not in g:
            g.shell = of_request()
        same: dict[str, Any] = g.shell
        return same | {"actor": g.get("actor"), "as_of": g.get("as_of")}


def _ribbon(environment: str | None) -> tuple[str, str] | None:
    """Return (name, colour) of ``production red``; the colour is a class of the stylesheet."""
    if not environment:
        return None
    name, _, colour = environment.rpartition(" ")
    known = ("red", "orange", "amber", "yellow", "green", "blue", "purple", "grey")
    return (name, colour) if name and colour in known else (environment, "grey")


def _section() -> str:
    """Return the path of the navigation entry that the current page belongs to."""
    first = "/" + request.path.strip("/").split("/")[0]
    first = ELSEWHERE.get(first, first)
    return first if any(first == path for path, _ in NAVIGATION) else ""


def _forget_toast(response: Any) -> Any:
    """Show what a 303 left behind only once."""
    shown = response.mimetype == "text/html" and response.status_code != 303
    if shown and responses.TOAST_COOKIE in request.cookies and "HX-Request" not in request.headers:
        response.delete_cookie(responses.TOAST_COOKIE)
    return response
