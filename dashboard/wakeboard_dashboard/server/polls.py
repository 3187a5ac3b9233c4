"""Answers to live regions that ask again and find nothing new: from memory, one look for all viewers.

A region is looked at again when its last look is too old, or when something happened since; whoever asks
first then is answered by the page's own query, everybody else by what that found. A browser repeats the same
bytes while nothing changes, so such a poll needs no parsing. It is answered only while its session is known
to be good: all sessions that poll are looked up together every other second, and after every act of a person.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from socket import socket
from time import monotonic
from weakref import WeakKeyDictionary

import psycopg
from flask import Flask, Response, g, request
from sqlalchemy.exc import SQLAlchemyError

from wakeboard.accounts.sessions import hash_of, still_good
from wakeboard.config.service_thread import ServiceThread
from wakeboard.core.states import Role
from wakeboard.core.text.sanitize import described
from wakeboard.database.db import DatabaseError
from wakeboard.reporting.heartbeats import Beat
from wakeboard_dashboard.server.board import Board, News, View
from wakeboard_dashboard.web.connection import writing

EXTENSION = "wakeboard_polls"
# How often somebody asks what is new, and which sessions are good.
NEWS_SECONDS, SESSIONS_SECONDS = 0.5, 2.0
# A round of the watch may wait for a slow statement, and for a connection.
WATCH_SECONDS = 20.0
# What was asked longer ago is not relied on.
UNHEARD_SECONDS, UNPROVEN_SECONDS = 1.5, 5.0
# While one viewer's question is under way the others get the last answer: a second later somebody else asks
# too, and what is older than a slow statement may take is not given any more.
TURN_SECONDS, LATE_SECONDS = 1.0, 6.0
# What nobody asked for during this time is forgotten.
FORGET_SECONDS = 60.0
MOST_POLLS, MOST_TEXTS = 5000, 500
# How long a look is good: hardly, unless there is a crowd. For a crowd until something happens that NEWEST
# sees, and no longer than CROWD_SECONDS because it does not see everything. Where runs come and go all the
# time, they count after BUSY_SECONDS: a little less than browsers wait.
SECONDS, CROWD_SECONDS, BUSY_SECONDS = 1.0, 8.0, 1.8
CROWD = 10
# Two numbers, for the last acts and for which runs there are and which of them run: they move when one comes
# or goes. Several acts, because one with a smaller id may be committed later.
NEWEST = """
SELECT hashtextextended(coalesce((SELECT string_agg(last.id::text, ' ' ORDER BY last.id) FROM (
        SELECT id FROM wakeboard.audit_log ORDER BY id DESC LIMIT 20
    ) AS last), ''), 0),
    hashtextextended(concat((SELECT max(id) FROM wakeboard.job_runs), ' ', (
        SELECT string_agg(running.id || '.' || running.lease_epoch, ' ' ORDER BY running.id) FROM (
            SELECT id, lease_epoch FROM wakeboard.job_runs WHERE status = 'running'
            ORDER BY job_type, locked_until LIMIT 200
        ) AS running
    )), 0)
"""


@dataclass(slots=True)
class _Poll:
    """What a browser's repeated question is: of which view, with which text at hand, by whom, as what."""

    key: bytes
    tag: str
    session: str
    role: Role
    head: str
    asked_at: float


@dataclass(slots=True)
class _Text:
    tag: str
    html: str
    asked_at: float


class Polls:
    """The memory of one process; the ``board`` is everybody's."""

    def __init__(self, app: Flask, board: Board) -> None:
        self._app = app
        self._idle_seconds = app.config["SETTINGS"].session_idle_seconds
        self._board = board
        # Pages take the connection that was used last: one of the watch's, between two pages, knows none of
        # their statements.
        self._pool = app.extensions["wakeboard_database"].primary.pool.recreate()
        self._polls: dict[bytes, _Poll] = {}
        self._texts: dict[bytes, _Text] = {}
        self._sessions: dict[str, tuple[Role, float]] = {}
        self._arrived: WeakKeyDictionary[socket, bytes] = WeakKeyDictionary()
        self._crowds: Counter[bytes] = Counter()
        self._used_at = 0.0
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread = ServiceThread("polls", self._watch, stopping=self._stopping, failed=self._failed)
        self._is_resting = True
        self._watched_at = monotonic()
        self._error: str | None = None

    def start(self) -> None:
        """Begin to watch for acts and sessions, whenever somebody polls."""
        self._thread.start()

    def stop(self) -> None:
        """End the watching."""
        self._stopping.set()
        self._wanted.set()
        self._thread.join(3)

    def beat(self) -> Beat:
        """Return how the watching stands. It rests while nobody polls."""
        ago = 0.0 if self._is_resting else monotonic() - self._watched_at
        error, self._error = self._error, None
        return Beat("polls", WATCH_SECONDS, ago, error)

    # ---- without parsing: called from the loop that waits for all connections -----------------------

    def answer(self, raw: bytes) -> bytes | None:
        """Return the answer to the request ``raw`` when it is a poll that finds nothing new, else None."""
        poll = self._polls.get(digest(raw))
        if poll is None:
            return None
        now = monotonic()
        good = self._sessions.get(poll.session)
        if good is None or good[0] is not poll.role or now - good[1] > UNPROVEN_SECONDS:
            return None
        view = self._board.view(poll.key)
        if view is None or view.tag != poll.tag:
            return None
        is_good = self._is_good(view, now)
        if not (is_good or (is_good is None and self._board.is_turn_taken(view.key, now, TURN_SECONDS))):
            return None
        poll.asked_at = self._used_at = now
        return (
            f"{poll.head}X-Request-Id: {secrets.token_hex(8)}\r\nX-Wakeboard-As-Of: {view.as_of}\r\n"
            f"X-Wakeboard-Clock: {view.clock}\r\nX-Wakeboard-Age: {now - view.looked_at:.1f}\r\n\r\n"
        ).encode()

    def arriving(self, client: socket, raw: bytes) -> None:
        """Remember a poll that goes the long way, so that the next one like it need not."""
        self._arrived[client] = raw

    def _is_good(self, view: View, now: float) -> bool | None:
        """Whether ``view`` is good enough; None: only while somebody else is looking."""
        news, age = self._board.news, now - view.looked_at
        if not 0 <= now - news.asked_at < UNHEARD_SECONDS:
            return False
        is_news = view.looked_at <= news.acted_at or (view.looked_at <= news.moved_at and age >= BUSY_SECONDS)
        if age < view.holds_seconds and not is_news:
            return True
        return None if age < view.holds_seconds + LATE_SECONDS else False

    # ---- within a request ---------------------------------------------------------------------------

    def known(self, key: bytes, tag: str | None) -> tuple[View, str | None] | None:
        """Return the view and its text as another viewer was just given it; None: look for yourself.

        The text is None where the asker has ``tag`` and nothing is new.
        """
        now, view, text = monotonic(), self._board.view(key), self._texts.get(key)
        is_good = self._is_good(view, now) if view else False
        if view is None or is_good is False:
            return None
        if is_good is None and self._board.take_turn(key, now, TURN_SECONDS):
            return None
        if view.tag == tag:
            return view, None
        if text is None or text.tag != view.tag:
            return None
        text.asked_at = now
        return view, text.html

    def keep(self, key: bytes, began_at: float, every_seconds: float, html: str, response: Response) -> None:
        """Remember what a look that ``began_at`` (monotonic) found; browsers ask ``every_seconds``."""
        headers = response.headers
        is_crowded = self._crowds[key] >= CROWD
        holds_seconds = max(CROWD_SECONDS, every_seconds / 2) if is_crowded else SECONDS
        view = View(
            key, began_at, holds_seconds, headers["HX-PTag"],
            headers["X-Wakeboard-As-Of"], headers["X-Wakeboard-Clock"],
        )  # fmt: skip
        self._board.keep(view)
        if len(self._texts) < MOST_TEXTS or key in self._texts:
            self._texts[key] = _Text(view.tag, html, monotonic())

    def expect(self, key: bytes, tag: str, head: str) -> None:
        """The browser that is being given ``tag`` of a view will ask the same again, with that tag."""
        self._used_at = monotonic()
        self._wanted.set()
        raw = self._arrived.pop(request.environ["gunicorn.socket"], b"")
        cookies = request.environ.get("HTTP_COOKIE", "").encode("latin-1")
        asked = request.environ["RAW_URI"].encode("latin-1")
        # What had arrived may be an earlier request of the connection, one that was refused.
        if not (cookies and raw.startswith(b"GET " + asked + b" ") and cookies in raw):
            return
        session = hash_of(g.session_cookie)
        self._sessions[session] = (g.actor.role, self._used_at)
        old = request.headers.get("HX-PTag", "").encode("latin-1")
        if len(self._polls) < MOST_POLLS and old and raw.count(old) == 1:
            self._polls.pop(digest(raw), None)
            again = digest(raw.replace(old, tag.encode()))
            self._polls[again] = _Poll(key, tag, session, g.actor.role, head, self._used_at)

    # ---- watching -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        proven_at = acted_at = 0.0
        self._watched_at = monotonic()
        while not self._stopping.is_set():
            if monotonic() - self._used_at > UNPROVEN_SECONDS:
                self._is_resting = True
                self._wanted.wait()
                self._wanted.clear()
                self._watched_at, self._is_resting = monotonic(), False
                continue
            try:
                with self._app.app_context():
                    self._ask_for_news()
                    if monotonic() - proven_at >= SESSIONS_SECONDS or acted_at != self._board.news.acted_at:
                        proven_at, acted_at = monotonic(), self._board.news.acted_at
                        self._prove_sessions()
            except (DatabaseError, SQLAlchemyError, psycopg.Error):
                # Nothing is answered from memory then: the long way says what is the matter.
                self._sessions.clear()
            self._tidy()
            self._watched_at = monotonic()
            self._thread.recovered()
            self._stopping.wait(NEWS_SECONDS)

    def _failed(self, failure: BaseException) -> None:
        self._sessions.clear()
        self._error = described(failure)

    def _ask_for_news(self) -> None:
        """Ask what is new, unless another process did just now."""
        known = self._board.news
        if 0 <= monotonic() - known.asked_at < NEWS_SECONDS:
            return
        with writing(self._pool) as connection:
            act, runs = connection.execute(NEWEST).fetchone() or (0, 0)
        now = monotonic()
        acted_at = now if act != known.act else known.acted_at
        moved_at = now if runs != known.runs else known.moved_at
        self._board.tell(News(now, acted_at, moved_at, act, runs))

    def _prove_sessions(self) -> None:
        """Ask which of the sessions that poll are still good, with the role that they had."""
        asked_at, sessions = monotonic(), dict(self._sessions)
        with writing(self._pool) as connection:
            good = still_good(connection, list(sessions), self._idle_seconds)
        for session, (role, _) in sessions.items():
            if good.get(session) == role:
                self._sessions[session] = (role, asked_at)
            else:
                self._sessions.pop(session, None)

    def _tidy(self) -> None:
        before = monotonic() - FORGET_SECONDS
        for asked in [each for each, poll in list(self._polls.items()) if poll.asked_at < before]:
            self._polls.pop(asked, None)
        for key in [each for each, text in list(self._texts.items()) if text.asked_at < before]:
            self._texts.pop(key, None)
        viewers = {(poll.key, poll.session) for poll in list(self._polls.values())}
        self._crowds = Counter(key for key, _ in viewers)
        in_use = {session for _, session in viewers}
        for session in [each for each in list(self._sessions) if each not in in_use]:
            self._sessions.pop(session, None)


def digest(text: bytes) -> bytes:
    """Return what stands for ``text`` as a key."""
    return blake2b(text, digest_size=16).digest()
