"""Error answers: one sentence and the request's id, never a stack trace.

Every error goes through ``error_response``, as JSON, text or page. It never queries the database, which may
be the cause. After a verb it says whether it may have been done, and leads back to the form.
"""

from __future__ import annotations

import logging

import psycopg
from flask import Flask, Response, g, jsonify, make_response, render_template, request
from markupsafe import escape
from sqlalchemy import exc
from werkzeug.exceptions import HTTPException, NotFound

from wakeboard.core.errors.error_groups import DIGITS
from wakeboard.core.states import VERBS
from wakeboard.core.text.sanitize import first_line
from wakeboard.database.db import MISSING_TABLE_ERRORS, DatabaseError, RefusedError, UnsupportedDatabaseError
from wakeboard.reporting.filters.values import FilterError
from wakeboard_dashboard.web import form_return
from wakeboard_dashboard.web.responses import wanted
from wakeboard_dashboard.web.security import OPEN_PATHS

log = logging.getLogger("wakeboard.web")

AWAY = "The database does not answer, so this page has nothing to show. It is asked again with each request."
NOT_DONE = "Nothing was done."
UNKNOWN = (
    "It is not known whether it was done: look at the audit log, or at what it was to change, before you do "
    "it again."
)
ACT_AWAY = "The database does not answer."
ACT_BROKEN = "The connection to the database broke while this was being done."
ACT_SLOW = "The database took too long to do this."
ACT_WRONG = "The dashboard made a mistake and wrote it to its log."
ACTS = ("POST", "PUT", "PATCH", "DELETE")
BARE = (
    '<!doctype html>\n<html lang="en"><title>{title}</title>\n'
    '<h1>{title}</h1>\n<p>{sentence}</p>\n<p>Request {id}</p>\n<p><a href="/">Overview</a></p>\n'
)
# Errors after which the same form may succeed.
TRY_AGAIN = (400, 409, 500, 503)
SLOW = "The database took too long to answer this page. Narrow the filter or the time span and try again."
BUSY = "All of the dashboard's database connections are in use. Try again in a few seconds."
SHUT_OUT = (
    "The database role of this dashboard may not do that. Use the role that owns the schema wakeboard; "
    "wakeboard doctor names what is wanting."
)
# Errors of the database about a character that its encoding does not have.
UNSTORABLE = (psycopg.errors.CharacterNotInRepertoire, psycopg.errors.UntranslatableCharacter)
NO_LETTERS = "The text has letters that the database cannot store: leave them out."
EMPTY = "The database has no Wakeboard tables of this version yet. Run: wakeboard db upgrade"
TITLES = {
    400: "That cannot be read",
    401: "Sign in",
    403: "Not allowed",
    404: "Not found",
    405: "Not that way",
    409: "Not now",
    413: "Too large",
    429: "Too many tries",
    500: "Something broke here",
    503: "Database unreachable",
}
SENTENCES = {
    404: "There is nothing at this address. It may have been removed by retention, or the id is mistyped.",
    405: "This address does not take that method: GET shows, POST does.",
    413: "The request is larger than 1 MB, which is the most the dashboard takes.",
}


def install(app: Flask) -> None:
    """Register the handlers on ``app``."""
    app.register_error_handler(HTTPException, _handle_http)
    app.register_error_handler(FilterError, lambda wrong: error_response(400, str(wrong)))
    app.register_error_handler(DatabaseError, _handle_unreachable)
    app.register_error_handler(exc.SQLAlchemyError, _handle_database)
    app.register_error_handler(psycopg.Error, _handle_database)
    app.register_error_handler(Exception, _handle_unexpected)


class NotFoundWithLink(NotFound):
    """A 404 with a link to what remains of the thing: ``lead`` is an address here, ``label`` its text."""

    def __init__(self, sentence: str, lead: str, label: str) -> None:
        super().__init__(sentence)
        self.lead, self.label = lead, label


def error_response(
    code: int, sentence: str, title: str | None = None, more: NotFoundWithLink | None = None
) -> Response:
    """Return the error ``code`` with ``sentence`` as JSON, as plain text for htmx, or as a page.

    ``more`` has a link to what remains of the thing.
    """
    g.is_error = True
    title = title or TITLES.get(code, "Not done")
    shape = wanted()
    if shape == "json":
        response = jsonify({"error": title, "message": sentence, "request_id": g.get("request_id", "")})
    elif shape == "htmx":
        response = Response(sentence, mimetype="text/plain")
    else:
        response = make_response(_page(code, title, sentence, more))
    response.status_code = code
    return response


def _page(code: int, title: str, sentence: str, more: NotFoundWithLink | None) -> str:
    """Return the error as a page; a bare one when the page itself cannot be made."""
    way = form_return.back() if request.method in ACTS and code in TRY_AGAIN else None
    try:
        return render_template(
            "error.html",
            code=code,
            heading=title,
            sentence=sentence,
            form=way.address if way and way.asks else None,
            is_unknown=UNKNOWN in sentence,
            is_away=code == 503,
            more=more,
        )
    except Exception:
        log.exception("error page failed: %s %s", g.get("request_id", ""), request.path)
        return BARE.format(
            title=escape(title), sentence=escape(sentence), id=escape(g.get("request_id", "–"))
        )


def _handle_http(error: HTTPException) -> Response:
    if error.response is not None:
        return make_response(error.response)
    code = error.code or 500
    if code == 405 and (sentence := _invalid_group()):
        return error_response(404, sentence)
    own = error.description if error.description != type(error).description else None
    sentence = own or SENTENCES.get(code) or error.description or "This could not be done."
    response = error_response(code, sentence, more=error if isinstance(error, NotFoundWithLink) else None)
    if code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    for name, value in error.get_headers():
        if name.lower() in ("allow", "retry-after", "location"):
            response.headers[name] = value
    return response


def _invalid_group() -> str | None:
    """Return the sentence for a verb on what is no error group: such an address is that of a code, which may
    be any text and takes no POST."""
    head, _, verb = request.path.rpartition("/")
    given = head.removeprefix("/errors/")
    if request.method != "POST" or given == head or f"error.{verb}" not in VERBS:
        return None
    return (
        f"“{given[:40]}” is no error group: the address of one has {DIGITS} digits 0-9 a-f, which "
        "/errors.json gives as fingerprint."
    )


def _handle_unreachable(error: Exception) -> Response:
    log.warning("database unreachable: %s", first_line(error), extra={"request_id": g.get("request_id")})
    if isinstance(error, UnsupportedDatabaseError | RefusedError):
        sentence = error.shown if isinstance(error, RefusedError) else str(error)
        return error_response(503, _act_sentence(sentence, sentence), "The database cannot be used")
    act = ACT_BROKEN if g.get("may_be_done") else ACT_AWAY
    response = error_response(503, _act_sentence(act, AWAY))
    if not _may_be_done():
        response.headers["Retry-After"] = "2"
    return response


def _may_be_done() -> bool:
    """Return whether this request may have done its verb before it failed."""
    return request.method in ACTS and bool(g.get("may_be_done"))


def _act_sentence(act: str, look: str) -> str:
    """Return ``look`` for a page; for a verb ``act``, and whether it may have been done."""
    if request.method not in ACTS:
        return look
    if request.path in OPEN_PATHS:
        return f"{act} Try to sign in again."
    return f"{act} {UNKNOWN if _may_be_done() else NOT_DONE}"


def _handle_database(error: Exception) -> Response:
    """Distinguish a database that is away, slow, busy or empty from a fault of ours."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, MISSING_TABLE_ERRORS):
        log.warning("schema missing: %s", first_line(cause))
        return error_response(503, EMPTY, "No tables here yet")
    if isinstance(cause, UNSTORABLE):
        return error_response(400, NO_LETTERS)
    if isinstance(cause, psycopg.errors.InsufficientPrivilege):
        log.warning("role shut out: %s", first_line(cause))
        return error_response(503, SHUT_OUT, "The database says no")
    if isinstance(cause, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable):
        log.warning("statement timeout: %s", request.path)
        return error_response(503, _act_sentence(ACT_SLOW, SLOW), "That took too long")
    if isinstance(cause, exc.TimeoutError):
        log.warning("connection pool exhausted: %s", request.path)
        return error_response(503, _act_sentence(BUSY, BUSY), "Too busy")
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
        return _handle_unreachable(cause)
    return _handle_unexpected(error)


def _handle_unexpected(error: Exception) -> Response:
    request_id = g.get("request_id", "")
    log.error("request failed: %s %s %s", request_id, request.method, request.path, exc_info=error)
    return error_response(500, _act_sentence(ACT_WRONG, f"{ACT_WRONG} Nothing was changed by this page."))
