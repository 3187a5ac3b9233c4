"""The shape of a response: JSON, htmx or a page. Verbs and errors both use it.

Functions of ``wakeboard`` return an ``Answer``; ``respond`` turns it into a response.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from flask import Response, abort, current_app, jsonify, make_response, redirect, render_template, request

from wakeboard.queue import Answer
from wakeboard_dashboard.web.connection import FRESH_COOKIE, FRESH_SECONDS

# Programs ask for these, whatever they accept.
PROBES = ("/healthz", "/readyz", "/statusz", "/metrics")
TOAST_COOKIE = "wakeboard_toast"
LONGEST_TOAST = 500
# In bytes: browsers drop a cookie of more than 4096, with its name and all that it says besides.
LARGEST_COOKIE = 3800
TONES = {"done": "done", "asked": "asked", "already": "already"}


def wanted() -> Literal["json", "htmx", "page"]:
    """Return the shape the current request asks for: its path, then htmx's header, then ``Accept``."""
    if request.path.endswith((".json", ".csv")) or request.path in PROBES:
        return "json"
    if "HX-Request" in request.headers:
        return "htmx"
    best = request.accept_mimetypes.best_match(["text/html", "application/json"], default="text/html")
    return "json" if best == "application/json" else "page"


def local_path(address: str | None) -> str | None:
    """Return ``address`` when it is a path on this site, else None: never another site's."""
    if not address or not address.startswith("/") or address[1:2] in ("/", "\\"):
        return None
    if any(ord(character) < 33 or character in "\\\x7f" for character in address):
        return None
    parts = parts_of(address)
    return address if not parts.scheme and not parts.netloc else None


def parts_of(address: str) -> SplitResult:
    """Return the parts of an address from a header; empty ones where it is no address."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def is_ours(address: SplitResult) -> bool:
    """Return whether an address is that of this request or the public one of the settings: a proxy may have
    dropped the port of the former."""
    public = current_app.config["SETTINGS"].public_url
    is_public = public is not None and address[:2] == parts_of(public)[:2]
    return is_public or address.netloc == request.host


def referring_path() -> str | None:
    """Return the path of the page on this site that the request was sent from."""
    parts = parts_of(request.referrer or "")
    if not is_ours(parts):
        return None
    return local_path(parts.path + (f"?{parts.query}" if parts.query else ""))


def respond(
    answer: Answer, back: str, *, clear_selection: bool = False, ahead: str | None = None
) -> Response:
    """Return ``answer`` as JSON, as htmx's toast and refresh, or as a 303 to where the asker was.

    ``back`` is the local path to go to when the form names no ``next``; ``ahead`` wins over both.
    ``clear_selection`` empties the check boxes of the page after a bulk verb. Denied, missing and invalid are
    error pages.
    """
    shape = wanted()
    if shape == "json":
        response = jsonify(answer.body())
        response.status_code = answer.http_status
    elif shape == "htmx":
        response = _toast(answer)
        clears = clear_selection and answer.ok
        response.headers["HX-Trigger"] = ("selection:clear, " if clears else "") + "live:now"
    elif answer.ok or answer.result in ("forbidden", "locked"):
        response = see_other(
            ahead or local_path(request.form.get("next")) or back, answer.message, _tone(answer)
        )
    else:
        abort(answer.http_status, answer.message)
    if answer.changed:
        response.set_cookie(FRESH_COOKIE, "1", max_age=FRESH_SECONDS, httponly=True, samesite="Lax")
    return response


def _toast(answer: Answer) -> Response:
    """Return a toast for htmx to swap in, or a refusal as text, which the script shows as a toast."""
    if answer.ok:
        return make_response(
            render_template("_toast_partial.html", tone=_tone(answer), message=answer.message)
        )
    return Response(answer.message, status=answer.http_status, mimetype="text/plain")


def _tone(answer: Answer) -> str:
    return TONES.get(answer.result, "refused")


def see_other(path: str, message: str | None = None, tone: str = "done") -> Response:
    """Return a 303 to the local ``path``; ``message`` is shown there once, without any script."""
    response = make_response(redirect(path, 303))
    if message:
        response.set_cookie(
            TOAST_COOKIE,
            _toast_cookie(tone, message),
            max_age=60,
            httponly=True,
            samesite="Lax",
            secure=request.is_secure,
        )
    return response


def _toast_cookie(tone: str, message: str) -> str:
    """Return the value of the toast's cookie; a message that is too long for one is cut."""
    shown = message if len(message) <= LONGEST_TOAST else message[: LONGEST_TOAST - 1] + "…"
    while len(text := urlsafe_b64encode(_packed(tone, shown))) > LARGEST_COOKIE:
        shown = shown[: len(shown) * 3 // 4] + "…"
    return text.decode()


def _packed(tone: str, message: str) -> bytes:
    return json.dumps([tone, message], ensure_ascii=False).encode("utf-8", "replace")


def read_toast() -> tuple[str, str] | None:
    """Return (tone, message) that the last 303 left for this page, if any."""
    try:
        tone, message = json.loads(urlsafe_b64decode(request.cookies.get(TOAST_COOKIE, "").encode()))
        return (tone if tone in ("done", "asked", "already") else "refused", str(message))
    except (ValueError, TypeError, RecursionError):
        return None
