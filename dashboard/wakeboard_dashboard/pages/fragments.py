"""The answers of live regions: 304 when the asker has it already, and one look for all who ask at once.

What a region shows is shaped by its address, the role of who asks and how their browser shows pages; whoever
has these in common is given the same answer, see ``wakeboard_dashboard.server.polls``.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from time import monotonic

from flask import Flask, Response, current_app, g, request

from wakeboard_dashboard.server.board import View
from wakeboard_dashboard.server.polls import EXTENSION, Polls, digest
from wakeboard_dashboard.text.formats import iso, local
from wakeboard_dashboard.web.connection import FRESH_COOKIE, as_of, database
from wakeboard_dashboard.web.preferences import CHOICES


def install(app: Flask) -> None:
    """Let polls that were answered be expected again. Call it first: what an answer says is settled then."""
    app.after_request(_expect_again)


def _expect_again(response: Response) -> Response:
    if "poll" in g and response.status_code in (200, 304):
        polls, key = g.poll
        polls.expect(key, response.headers["HX-PTag"], head_of(response))
    return response


def remembered(render: Callable[[], str], every_seconds: float) -> Response:
    """Return a live region's answer: as somebody else was just given it, or by ``render``.

    ``every_seconds``: how often a browser asks for it.
    """
    polls = of_request()
    if polls is None:
        return answer_fragment(render())
    g.poll = polls, (key := key_of_request())
    if (found := polls.known(key, request.headers.get("HX-PTag"))) is not None:
        return _as_known(*found)
    began_at = monotonic()
    html = render()
    response = answer_fragment(html)
    polls.keep(key, began_at, every_seconds, html, response)
    return response


def _as_known(view: View, html: str | None) -> Response:
    response = Response(status=304) if html is None else Response(html, mimetype="text/html")
    response.headers["HX-PTag"] = view.tag
    response.headers["X-Wakeboard-As-Of"], response.headers["X-Wakeboard-Clock"] = view.as_of, view.clock
    response.headers["X-Wakeboard-Age"] = f"{monotonic() - view.looked_at:.1f}"
    return response


def answer_fragment(html: str) -> Response:
    """Return ``html`` as a live region's answer: 304 when the asker has it already."""
    tag = fragment_tag(html)
    unchanged = request.headers.get("HX-PTag") == tag
    response = Response(status=304) if unchanged else Response(html, mimetype="text/html")
    response.headers["HX-PTag"] = tag
    stamp(response)
    return response


def stamp(response: Response) -> None:
    """Say on ``response`` at which moment of the database's clock it is true."""
    response.headers["X-Wakeboard-As-Of"] = iso(as_of())
    response.headers["X-Wakeboard-Clock"] = local(as_of(), g.zone)


def fragment_tag(html: str) -> str:
    """Return the tag of a rendered fragment: equal text, equal tag."""
    return blake2b(html.encode(), digest_size=12).hexdigest()


def of_request() -> Polls | None:
    """Return the memory when this request may be answered from it: a browser's poll, and no own act just now.

    Whoever just acted reads for themselves, and so does who reads a replica: it says how late it is.
    """
    found: Polls | None = current_app.extensions.get(EXTENSION)
    is_browser = "session_cookie" in g and "gunicorn.socket" in request.environ
    if found is None or not is_browser or FRESH_COOKIE in request.cookies:
        return None
    return found if database().pages is database().primary else None


def key_of_request() -> bytes:
    """Return what tells one view from another: the address, and all that shapes what is shown there."""
    looks = [request.cookies.get(f"wakeboard_{name}", "") for name in (*CHOICES, "zone")]
    parts = [request.full_path, request.host_url, g.actor.role.value, str(g.zone), *looks]
    return digest("\0".join(parts).encode("utf-8", "surrogatepass"))


def head_of(response: Response) -> str:
    """Return the beginning of later answers that find nothing new, in the words of this one."""
    left_out = ("content-type", "content-length", "x-request-id", "set-cookie", "content-encoding")
    lines = [
        f"{name}: {value}\r\n"
        for name, value in response.headers.items()
        if name.lower() not in left_out and not name.lower().startswith("x-wakeboard-")
    ]
    return "".join(["HTTP/1.1 304 NOT MODIFIED\r\nConnection: keep-alive\r\n", *lines])
