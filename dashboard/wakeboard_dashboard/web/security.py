"""Guards every request before any view runs: host, cross-site, session or token, scope. Closed by default.

Adds the security headers to every response. Knows no page.
"""

from __future__ import annotations

import logging
import re
import secrets
from dataclasses import replace
from ipaddress import ip_address
from urllib.parse import quote, urlencode

import psycopg
from flask import Flask, Response, abort, current_app, g, redirect, render_template, request
from werkzeug.exceptions import Forbidden, NotFound, Unauthorized

from wakeboard.accounts import sessions, tokens, users
from wakeboard.core.states import Role, Verb
from wakeboard.database import audit
from wakeboard.database.audit import NOBODY, Actor
from wakeboard.queue import token_scope
from wakeboard_dashboard.text.formats import visible
from wakeboard_dashboard.web import anonymous_throttle, form_return
from wakeboard_dashboard.web.connection import writing
from wakeboard_dashboard.web.files import STATIC, fingerprint
from wakeboard_dashboard.web.not_found import missing
from wakeboard_dashboard.web.poll_sessions import PollSessions
from wakeboard_dashboard.web.responses import PROBES, is_ours, parts_of, referring_path, wanted
from wakeboard_dashboard.web.scopes import Scope, declared

log = logging.getLogger("wakeboard.web")

OPEN_PATHS = ("/login",)
PREFERENCES = {f"wakeboard_{name}" for name in ("theme", "density", "times", "zone", "toast", "fresh")}
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
POLICY = (
    "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types htmx"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "X-Frame-Options": "DENY",
}
# Headers that mean nothing for a style, a script or a picture; on each they would be a twentieth of a load.
NO_FILE_HEADERS = (
    "Permissions-Policy",
    "X-Frame-Options",
    "Content-Disposition",
    "Last-Modified",
    "Date",  # gunicorn's own follows
)


def install(app: Flask) -> None:
    """Guard every request of ``app`` and mark every response."""
    idle_seconds = app.config["SETTINGS"].session_idle_seconds
    app.extensions["wakeboard_poll_sessions"] = PollSessions(idle_seconds)
    app.before_request(guard)
    app.after_request(add_headers)


def guard() -> Response | None:
    """Return None to let the request through, else the answer. Runs before routing has any effect."""
    g.request_id = secrets.token_hex(8)
    g.actor = None
    if "\0" in request.path or "%00" in request.query_string.decode("latin-1"):
        abort(400, "The address contains a NUL character.")
    _check_host()
    if request.method not in SAFE_METHODS:
        _check_site()
    if request.path.startswith(STATIC) and request.method in SAFE_METHODS:
        return None
    if request.path in PROBES and request.method in SAFE_METHODS and _is_loopback():
        return None
    if request.path in OPEN_PATHS:
        return None
    g.actor = identify()
    if g.actor is None:
        return _sign_in()
    if g.actor.job_types is not None:
        _check_scope(g.actor)
    # So far ``writing`` was used only to find the actor; see web.connection.writing.
    g.may_be_done = False
    return None


def _check_scope(actor: Actor) -> None:
    """Let a token for some job types reach what ``web.scopes`` declares for it, nothing else.

    Raises NotFound for a run of another type, as for one that is not there; Forbidden for everything else.
    An address that does not exist is left to say so.
    """
    if request.endpoint is None:
        return
    arguments = request.view_args or {}
    match declared(current_app.view_functions[request.endpoint]):
        case Scope.OWN | Scope.NO_TYPE:
            return
        case Scope.TYPE if arguments["name"] in (actor.job_types or ()):
            return
        case Scope.RUN:
            _check_run_scope(actor, arguments["run_id"])
        case _:
            _record_out_of_scope(actor, "page", request.path, "denied")
            raise Forbidden(visible(token_scope.describe(actor)))


def _check_run_scope(actor: Actor, run_id: int) -> None:
    with writing() as connection:
        job_type = token_scope.type_of(connection, run_id)
    if job_type not in (actor.job_types or ()):
        _record_out_of_scope(actor, "run", str(run_id), "missing" if job_type is None else "denied")
        raise NotFound(missing("run", run_id))


def _record_out_of_scope(actor: Actor, kind: str, name: str, result: str) -> None:
    """Audit a verb that a token for other types tried; a page that it tried is only refused."""
    if request.method not in SAFE_METHODS:
        record_refusal(
            actor, "out_of_scope", kind, name, reason=f"{request.method} {request.path}", result=result
        )


def _check_host() -> None:
    """Refuse a Host that is none of our names: a foreign name that resolves here is an attack or a mistake.

    Werkzeug's TRUSTED_HOSTS cannot name an IPv6 address, so the list is ours.
    """
    name = re.sub(r":[0-9]+$", "", request.host.lower())
    if name not in current_app.config["HOSTS"]:
        abort(
            400,
            f"The dashboard is not called “{name[:100]}”. To allow a name: WAKEBOARD_HOSTS, or --host NAME.",
        )


def _is_loopback() -> bool:
    try:
        return ip_address(request.remote_addr or "").is_loopback
    except ValueError:
        return False


def identify() -> Actor | None:
    """Return the actor of the Bearer token or the session cookie; None when neither is valid."""
    authorization = request.authorization
    if authorization is None and is_poll() and (actor := _find_polling_actor()) is not None:
        return _with_request(actor)
    with writing() as connection:
        if authorization is not None and authorization.type == "bearer":
            actor = tokens.authenticate_token(connection, authorization.token or "")
        else:
            actor = _find_by_cookie(connection, request.cookies.get(cookie_name(connection)))
    return _with_request(actor) if actor else None


def _find_polling_actor() -> Actor | None:
    """Return the actor of a poll where that is known without a statement of its own."""
    name = known_cookie_name()
    cookie = request.cookies.get(name) if name else None
    actor = _poll_sessions().find(cookie) if cookie else None
    if actor is not None:
        g.session_cookie = cookie
    return actor


def _poll_sessions() -> PollSessions:
    sessions = current_app.extensions["wakeboard_poll_sessions"]
    assert isinstance(sessions, PollSessions)
    return sessions


def _find_by_cookie(connection: psycopg.Connection, cookie: str | None) -> Actor | None:
    if not cookie:
        return None
    idle_seconds = current_app.config["SETTINGS"].session_idle_seconds
    actor = sessions.authenticate_session(connection, cookie, touch=not is_poll(), idle_seconds=idle_seconds)
    if actor is not None:
        g.session_cookie = cookie
        if is_poll():
            _poll_sessions().add(cookie, actor)
    return actor


def _with_request(actor: Actor) -> Actor:
    """Return ``actor`` with the address and the id of this request."""
    return replace(actor, ip=request.remote_addr, request_id=g.request_id)


def is_poll() -> bool:
    """Return whether the request comes from a timer and not from a person."""
    return request.path.startswith("/_fragments/")


def _sign_in() -> Response:
    """Answer a request without an actor: 401 for programs, the login page for people."""
    shape = wanted()
    if shape == "page" and request.method in SAFE_METHODS:
        here = form_return.path() + request.full_path.removeprefix(request.path).rstrip("?")
        return redirect(f"/login?next={quote(here, safe='')}", 303)  # type: ignore[return-value]
    if shape == "htmx":
        page = parts_of(request.headers.get("HX-Current-URL", ""))
        here = page.path + (f"?{page.query}" if page.query else "")
        response = Response("Sign in again.", status=401, mimetype="text/plain")
        response.headers["HX-Redirect"] = f"/login?next={quote(here or '/', safe='')}"
        return response
    if shape == "page" and request.path == "/logout":
        return redirect("/login", 303)  # type: ignore[return-value]
    if shape == "page" and request.method == "POST" and (request.form or referring_path()):
        return _session_ended_page()
    raise Unauthorized("Sign in at /login, or send Authorization: Bearer <token> (wakeboard token create).")


def _session_ended_page() -> Response:
    """Answer a form whose session has ended: nothing was done, and the form is offered again."""
    way, whose = form_return.with_reason(), request.form.get("by", "")
    query = urlencode({"next": way.address} | ({"whose": whose} if whose else {}), quote_via=quote, safe="")
    page = render_template(
        "signed_out.html",
        way=way,
        whose=whose,
        sign_in=f"/login?{query}",
        typed=request.form.get("reason", "").strip()[:500],
        has_more=form_return.has_more(),
    )
    return Response(page, status=401)


def _check_site() -> None:
    """Refuse a write that another site's page sent, by fetch metadata. Raises Forbidden, audited."""
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    if site is not None and site not in ("same-origin", "none"):
        _cross_site(f"Sec-Fetch-Site: {site}")
    if origin is not None and not is_ours(parts_of(origin)):
        _cross_site(f"Origin: {origin}")
    if site is None and origin is None and not _has_bearer_only():
        _cross_site("neither Sec-Fetch-Site nor Origin")


def _has_bearer_only() -> bool:
    authorization = request.authorization
    has_session = any("wakeboard_" in name for name in set(request.cookies) - PREFERENCES)
    return authorization is not None and authorization.type == "bearer" and not has_session


def _cross_site(why: str) -> None:
    actor = Actor(NOBODY.name, NOBODY.role, "web", request.remote_addr, g.request_id)
    if anonymous_throttle.may_record():
        record_refusal(actor, "cross_site", "page", request.path, reason=why, result="refused")
    raise Forbidden(f"This request came from another site ({why}) and was refused. Use the page itself.")


def record_refusal(
    actor: Actor,
    action: str,
    target_type: str,
    target_id: str,
    *,
    result: str,
    reason: str | None = None,
) -> None:
    """Write a refusal to the audit log; without a database it is only logged."""
    try:
        with writing() as connection:
            audit.record(connection, actor, action, target_type, target_id, reason=reason, result=result)
    except Exception:
        log.warning("refusal not audited: %s %s by %s", action, target_id, actor.name, exc_info=True)


def can(verb: Verb) -> bool:
    """Return whether the signed-in actor's role covers ``verb``."""
    actor: Actor | None = g.get("actor")
    return actor is not None and actor.role.covers(verb.role)


def require(verb: Verb) -> None:
    """Raise Forbidden, audited as denied, unless the actor may use ``verb``."""
    if not can(verb):
        record_refusal(g.actor, verb.action, "page", request.path, result="denied")
        raise Forbidden(
            f"“{verb.label}” needs the role {verb.role.value}; you are {g.actor.name}, {g.actor.role.value}."
        )


def require_role(role: Role) -> None:
    """Raise Forbidden unless the actor's role covers ``role``."""
    if not g.actor.role.covers(role):
        raise Forbidden(f"This needs the role {role.value}; you are {g.actor.name}, {g.actor.role.value}.")


def cookie_name(connection: psycopg.Connection) -> str:
    """Return the session cookie's name; it carries the installation's id because cookies ignore ports."""
    name = known_cookie_name()
    if name is None:
        current_app.extensions["wakeboard_cookie"] = f"wakeboard_{users.install_id(connection)}"
        name = known_cookie_name()
        assert name is not None
    return name


def known_cookie_name() -> str | None:
    """Return the session cookie's name; None before the database was asked for it."""
    name: str | None = current_app.extensions.get("wakeboard_cookie")
    return f"__Host-{name}" if name and request.is_secure else name


def _cache_control() -> str:
    """Return the Cache-Control of a static file: for ever only where the address names its present content.

    While two versions serve side by side, one may be asked for the other's file, which must not be cached.
    """
    version = request.args.get("v")
    if version is None:
        return "public, max-age=3600"
    name = request.path.removeprefix(STATIC)
    is_current = version == fingerprint(str(current_app.static_folder), name)
    return "public, max-age=31536000, immutable" if is_current else "no-store"


def add_headers(response: Response) -> Response:
    """Add the security headers, and no-store to everything that is not a versioned static file."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if request.is_secure:
        response.headers["Strict-Transport-Security"] = "max-age=31536000; includeSubDomains"
    if request.path.startswith(STATIC) and response.status_code in (200, 304):
        response.headers["Cache-Control"] = _cache_control()
        for name in NO_FILE_HEADERS:
            response.headers.pop(name, None)
        return response
    response.headers["X-Request-Id"] = g.get("request_id", "")
    response.headers["Cache-Control"] = "no-store"
    response.vary.update(("Cookie", "HX-Request", "Accept"))
    return response
