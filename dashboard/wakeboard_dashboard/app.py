"""The application factory: settings, engines, hooks, templates and blueprints become one Flask app."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flask import Flask
from flask.json.provider import DefaultJSONProvider
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.routing import BaseConverter, PathConverter, ValidationError

from wakeboard.config.settings import Settings
from wakeboard.core.errors.error_groups import DIGITS
from wakeboard_dashboard.pages import fragments, templates
from wakeboard_dashboard.text import formats
from wakeboard_dashboard.views import BLUEPRINTS
from wakeboard_dashboard.web import compression, connection, errors, request_metrics, security
from wakeboard_dashboard.web.params import LARGEST_ID

LARGEST_BODY = 1_000_000
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


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
    """A row id in a path. What a bigint cannot hold is a 404."""

    regex = "[0-9]{1,40}"
    part_isolating = True

    def to_python(self, value: str) -> int:
        """Return the id. Raises ValidationError, a 404, when it is out of range."""
        if not 0 < int(value) <= LARGEST_ID:
            raise ValidationError
        return int(value)


class GroupConverter(BaseConverter):
    """An error group in a path: thirteen hexadecimal digits, passed on as text."""

    regex = f"[0-9a-f]{{{DIGITS}}}"
    part_isolating = True


class NameConverter(PathConverter):
    """A name that users gave, in a path: any text, with slashes, also doubled, and line breaks."""

    regex = "(?s:.+?)"
    part_isolating = False


class TwinJSONProvider(DefaultJSONProvider):
    """JSON as twins give it: keys in our order, text as it is, times in ISO 8601."""

    sort_keys = False
    ensure_ascii = False
    default = staticmethod(formats.plain)

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        """Return the value of JSON ``s``. Raises ValueError, also for JSON nested too deep to read."""
        try:
            return super().loads(s, **kwargs)
        except RecursionError as error:
            raise ValueError("nested too deep") from error


def create_app(settings: Settings, *, database_url: str | None = None) -> Flask:
    """Return the WSGI app for ``settings``. It connects to nothing before the first request.

    ``database_url`` (libpq) replaces that of the settings: the address of an embedded server is not in them.
    Raises RuntimeError without any database URL.
    """
    url = database_url or settings.database_url
    if url is None:
        raise RuntimeError("The dashboard needs a database: set WAKEBOARD_DATABASE_URL or run wakeboard up.")
    root = ui_root()
    app = Flask("dashboard", template_folder=str(root / "templates"), static_folder=str(root / "static"))
    app.json = TwinJSONProvider(app)
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
    templates.install(app, settings)
    security.install(app)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    return app


def _hosts(settings: Settings) -> list[str]:
    """Return the Host names that the dashboard answers to."""
    host = settings.bind.rpartition(":")[0]
    bind_host = () if host in ("0.0.0.0", "[::]", "") else (host,)
    extra_hosts = settings.hosts.split(", ") if settings.hosts else ()
    return list(dict.fromkeys((*bind_host, *LOCAL_HOSTS, *extra_hosts)))
