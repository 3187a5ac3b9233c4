"""Signing in and out: by the one-time link of the terminal, or by name and password.

A GET changes nothing: the link shows a button, its POST consumes the token.
"""

from __future__ import annotations

import psycopg
from flask import Blueprint, Response, abort, current_app, g, redirect, render_template, request

from wakeboard.accounts import sessions, throttle, users
from wakeboard.database import audit
from wakeboard.database.audit import Actor
from wakeboard_dashboard.web import anonymous_throttle, form_return
from wakeboard_dashboard.web.connection import writing
from wakeboard_dashboard.web.responses import local_path, see_other
from wakeboard_dashboard.web.security import cookie_name, identify

blueprint = Blueprint("login", __name__)

PASSWORD_REFUSED = "That name and password do not go together, or the account is disabled."
LINK_REFUSED = "This link was used already or is older than 15 minutes. Make another: wakeboard login-link"


@blueprint.get("/login")
def show_form() -> str | Response:
    """Show the sign-in form, or the button of a login link."""
    token = request.args.get("token")
    if token:
        with writing() as connection:
            good = sessions.peek_login_link(connection, token)
        return _form(token=token) if good else _form(says=LINK_REFUSED)
    actor = identify()
    if actor is not None:
        return redirect(_return_path(actor), 303)  # type: ignore[return-value]
    return _form()


@blueprint.post("/login")
def sign_in() -> Response | tuple[str, int] | tuple[str, int, dict[str, str]]:
    """Sign in by token or by name and password, always into a new session."""
    token = request.form.get("token")
    return _sign_in_by_link(token) if token else _sign_in_by_password()


def _sign_in_by_link(token: str) -> Response | tuple[str, int]:
    with writing() as connection:
        actor = sessions.consume_login_link(connection, token)
        if actor is None:
            if anonymous_throttle.may_record():
                _record_failure(connection, "link", "login.link", "denied")
            return _form(says=LINK_REFUSED), 403
        return _open_session(connection, actor)


def _sign_in_by_password() -> Response | tuple[str, int] | tuple[str, int, dict[str, str]]:
    name, password = request.form.get("name", ""), request.form.get("password", "")
    if "\0" in name or len(name) > 100 or len(password) > 1000:
        abort(400, "A name has at most 100 characters, a password at most 1000.")
    with writing() as connection:
        try:
            actor = users.check_password(connection, name, password, request.remote_addr)
        except throttle.TooManyAttempts as wait:
            seconds = max(1, round(wait.seconds))
            says = f"Too many tries for this name or from this address. Try again in {seconds} s."
            return _form(says=says, name=name), 429, {"Retry-After": str(seconds)}
        if actor is None:
            _record_failure(connection, name, "login.password", "denied")
            return _form(says=PASSWORD_REFUSED, name=name), 403
        row = connection.execute("SELECT id FROM wakeboard.users WHERE name = %s", (actor.name,)).fetchone()
        return _open_session(connection, actor, row[0] if row else None)


def _open_session(connection: psycopg.Connection, actor: Actor, user_id: int | None = None) -> Response:
    """Start a session for ``actor``, end the one the browser had, and go where they wanted to."""
    old = request.cookies.get(cookie_name(connection))
    if old:
        sessions.close_session(connection, old)
    seconds = current_app.config["SETTINGS"].session_seconds
    with audit.audited_transaction(connection):
        cookie = sessions.open_session(
            connection, actor.name, actor.role, user_id=user_id, ip=request.remote_addr, seconds=seconds
        )
        here = Actor(actor.name, actor.role, "web", request.remote_addr, g.request_id)
        audit.record(connection, here, "login", "session", actor.name)
    response = see_other(_return_path(actor))
    response.set_cookie(
        cookie_name(connection),
        cookie,
        max_age=int(seconds),
        httponly=True,
        samesite="Lax",
        secure=request.is_secure,
        path="/",
    )
    return response


@blueprint.post("/logout")
def sign_out() -> Response:
    """End this session, here and in the database, or with ``everywhere`` all sessions of the same person."""
    with writing() as connection:
        name = cookie_name(connection)
        cookie = request.cookies.get(name)
        if cookie:
            with audit.audited_transaction(connection):
                _close_sessions(connection, cookie, everywhere=bool(request.form.get("everywhere")))
    response = see_other("/login")
    response.delete_cookie(name, path="/", secure=request.is_secure, httponly=True, samesite="Lax")
    return response


def _close_sessions(connection: psycopg.Connection, cookie: str, *, everywhere: bool) -> None:
    """End the sessions and note whose they were: a token may have been sent along with the cookie."""
    actor: Actor = g.actor
    ended = (sessions.close_everywhere if everywhere else sessions.close_session)(connection, cookie)
    action, after = ("logout.everywhere", {"sessions_ended": len(ended)}) if everywhere else ("logout", None)
    audit.record(connection, actor, action, "session", ended[0] if ended else actor.name, after=after)


@blueprint.get("/logout")
def show_sign_out() -> str:
    """Show the buttons that sign out, here or everywhere; a GET signs nobody out."""
    return render_template("logout.html")


def _record_failure(connection: psycopg.Connection, name: str, action: str, result: str) -> None:
    actor = Actor(name or "anonymous", audit.NOBODY.role, "web", request.remote_addr, g.request_id)
    audit.record(connection, actor, action, "session", name, result=result)


def _return_path(actor: Actor | None = None) -> str:
    """Return where to go after signing in: a local page, never a fragment and never another site.

    What somebody typed goes along for nobody else: ``whose`` says who that was, ``actor`` who signs in.
    """
    path = local_path(request.values.get("next"))
    if not path or path.startswith(("/_fragments", "/login", "/logout")):
        return "/"
    is_others = actor is not None and request.values.get("whose", actor.name) != actor.name
    return form_return.without_reason(path) if is_others else path


def _form(token: str = "", says: str = "", name: str = "") -> str:
    whose = request.values.get("whose", "")
    return render_template("login.html", token=token, says=says, name=name, goal=_return_path(), whose=whose)
