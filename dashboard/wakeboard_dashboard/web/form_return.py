"""The address that leads back to a form that failed, and what it carries.

It carries the question and at most the reason. What was typed stays in the browser, where ``static/forms.js``
keeps it for the same person.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from flask import current_app, request
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException

from wakeboard_dashboard.web.responses import referring_path

# Fields that a confirm page takes from its address: where to go afterwards, and which runs.
QUESTION = ("next", "run")
REASON = "reason"
# In characters of a sign-in page's address that leads on to this one; gunicorn and proxies cut at 8,000.
LONGEST = 6000
# Fields of forms that nobody types.
UNTYPED = (
    *QUESTION, REASON, "by", "preview", "version",
    "query", "filter", "also", "as_of", "counted", "highest",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReturnAddress:
    """A page of this site. With ``asks`` it is the form of this request, which has the ``reason`` in it."""

    address: str
    asks: bool = False
    reason: str = ""


def back() -> ReturnAddress:
    """Return the address of this request's form, else of the page that it came from, without the reason."""
    address = _address(QUESTION) if _is_shown() else None
    return ReturnAddress(address, asks=True) if address else ReturnAddress(referring_path() or "/")


def with_reason() -> ReturnAddress:
    """Return the address of the form of this request, with the reason where that is short enough."""
    reason = sent().get(REASON, "").strip()[:500]
    address = _address((REASON, *QUESTION)) if reason and _is_shown() else None
    return ReturnAddress(address, asks=True, reason=reason) if address else back()


def without_reason(address: str) -> str:
    """Return the local ``address`` without the reason that it carries."""
    parts = urlsplit(address)
    kept = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != REASON]
    return f"{parts.path}?{urlencode(kept)}" if kept else parts.path


def has_more() -> bool:
    """Return whether something else than the reason was typed into the form of this request."""
    return any(text.strip() for name, text in sent().items(multi=True) if name not in UNTYPED)


def sent() -> MultiDict[str, str]:
    """Return the form of this request; an empty one where it cannot be read."""
    try:
        return request.form
    except HTTPException:
        return MultiDict()


def path() -> str:
    """Return the path of this request, quoted: names may have ? and line breaks in them."""
    return quote(request.path)


def _address(names: tuple[str, ...]) -> str | None:
    """Return the address of this request with the form's fields ``names``; None when it is too long."""
    given = {name: texts for name in names if (texts := [text for text in sent().getlist(name) if text])}
    came = referring_path()
    if "next" not in (*given, *request.args) and came and urlsplit(came).path != path():
        given["next"] = [came]
    kept = [pair for pair in request.args.items(multi=True) if pair[0] not in (*given, REASON)]
    pairs = kept + [(name, text) for name, texts in given.items() for text in texts]
    address = f"{path()}?{urlencode(pairs)}" if pairs else path()
    return address if len(quote(address, safe="")) <= LONGEST else None


def _is_shown() -> bool:
    """Return whether the address of this form answers GET, as the confirm page of every verb does."""
    try:
        current_app.url_map.bind("").match(request.path, method="GET")
    except HTTPException:
        return False
    return True
