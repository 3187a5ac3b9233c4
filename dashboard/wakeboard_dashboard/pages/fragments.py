"""The response to a poll of a fragment: 304 when the browser has it, and one rendering for many viewers.

A rendering is cached for two seconds by all that shapes it: address, role, and the browser's preferences.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic

from flask import Flask, Response, current_app, g, request

from wakeboard_dashboard.text.formats import iso, local
from wakeboard_dashboard.web.connection import FRESH_COOKIE, as_of, database
from wakeboard_dashboard.web.preferences import CHOICES

EXTENSION = "wakeboard_fragments"
# While one request renders a fragment again, others get the former rendering, up to so much older.
SECONDS, LATE_SECONDS = 2.0, 6.0
MOST_RENDERINGS = 300

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered fragment, read at ``as_of``; ``made_at`` is when its rendering began (monotonic)."""

    html: str
    tag: str
    as_of: str
    clock: str
    made_at: float


class FragmentCache:
    """The renderings of one process, each valid for ``seconds``."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._renderings: dict[Key, Rendering] = {}
        self._renewals: dict[Key, float] = {}

    def find(self, key: Key) -> Rendering | None:
        """Return the rendering; after None the caller renders and calls ``keep``."""
        now = monotonic()
        with self._lock:
            rendering = self._renderings.get(key)
            if rendering is not None:
                age = now - rendering.made_at
                is_renewed = now - self._renewals.get(key, -self._seconds) < self._seconds
                if age < self._seconds or (is_renewed and age < self._seconds + LATE_SECONDS):
                    return rendering
            self._renewals[key] = now
            return None

    def keep(self, key: Key, rendering: Rendering) -> None:
        """Store the rendering, unless there are too many; drop those that are too old."""
        oldest = monotonic() - self._seconds - LATE_SECONDS
        with self._lock:
            self._renderings = {k: each for k, each in self._renderings.items() if each.made_at > oldest}
            self._renewals = {k: at for k, at in self._renewals.items() if at > oldest}
            if len(self._renderings) < MOST_RENDERINGS:
                self._renderings[key] = rendering


def install(app: Flask, seconds: float = SECONDS) -> None:
    """Give ``app`` a cache of fragments."""
    app.extensions[EXTENSION] = FragmentCache(seconds)


def respond(render: Callable[[], str]) -> Response:
    """Return the response to a poll: the cached rendering, or what ``render`` returns."""
    cache: FragmentCache = current_app.extensions[EXTENSION]
    if not _is_shared():
        return _answer(_render(render))
    key = _key()
    rendering = cache.find(key)
    if rendering is None:
        rendering = _render(render)
        cache.keep(key, rendering)
    return _answer(rendering)


def _is_shared() -> bool:
    """Return whether this request may get a cached rendering: a browser's poll without a verb just before.

    Pages of a replica are rendered for each request: they show their own lag.
    """
    is_own = "session_cookie" not in g or FRESH_COOKIE in request.cookies
    return not is_own and database().pages is database().primary


def _key() -> Key:
    preferences = [request.cookies.get(f"wakeboard_{name}", "") for name in (*CHOICES, "zone")]
    return (request.full_path, request.host_url, g.actor.role.value, str(g.zone), *preferences)


def _render(render: Callable[[], str]) -> Rendering:
    began_at = monotonic()
    html = render()
    return Rendering(html, fragment_tag(html), iso(as_of()), local(as_of(), g.zone), began_at)


def _answer(rendering: Rendering) -> Response:
    is_known = request.headers.get("HX-PTag") == rendering.tag
    response = Response(status=304) if is_known else Response(rendering.html, mimetype="text/html")
    response.headers["HX-PTag"] = rendering.tag
    response.headers["X-Wakeboard-As-Of"] = rendering.as_of
    response.headers["X-Wakeboard-Clock"] = rendering.clock
    response.headers["X-Wakeboard-Age"] = f"{monotonic() - rendering.made_at:.1f}"
    return response


def fragment_tag(html: str) -> str:
    """Return the tag of a rendered fragment: equal text, equal tag."""
    return blake2b(html.encode(), digest_size=12).hexdigest()
