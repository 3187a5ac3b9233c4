"""What is done before anybody asks: by the first process before it forks the others, and by each of those.

A statement compiled, a module loaded, code run for the first time: all processes share what the first one
leaves. No connection is open when the others begin, so each opens its own and makes a page by it. Who asks
first would wait for all that. Nobody is signed in here.
"""

from __future__ import annotations

import logging
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from zoneinfo import ZoneInfo

from flask import Flask, g
from werkzeug.test import Client, create_environ

from wakeboard.database.audit import NOBODY
from wakeboard_dashboard import NAVIGATION
from wakeboard_dashboard.server.turns import EXTENSION, Turns
from wakeboard_dashboard.web import files, preferences
from wakeboard_dashboard.web.errors import in_a_line

log = logging.getLogger("wakeboard.web")

# What every browser asks first, and a probe: none of it opens a connection or needs a session.
UNASKING = ("/healthz", f"{files.STATIC}app.css", f"{files.STATIC}{files.SCRIPTS}")
# A database that has just started is slow, and nobody asked for these pages yet.
LONGEST_SECONDS = 1.0
# By then a page that was begun is given up: a server may take connections and never answer.
LAST_SECONDS = 3.0
ADDRESS = "http://127.0.0.1"


def ask_nothing(app: Flask) -> None:
    """Let ``app`` answer once what asks no database: modules, routes and packed files are there after it."""
    # Flask's own client, as its test_request_context, would load a debugger with it.
    client = Client(app, use_cookies=False)
    for path in UNASKING:
        client.get(
            path, ADDRESS, headers={"Accept-Encoding": "gzip"}, environ_base={"REMOTE_ADDR": "127.0.0.1"}
        )


def make_pages(app: Flask) -> None:
    """Make the navigation's pages for nobody, begun within LONGEST_SECONDS; leaves no connection open.

    It is over after LAST_SECONDS but for a host's name that is looked up, and wants the main thread for that.
    Whatever fails, the page itself will say when somebody asks for it.
    """
    began = monotonic()
    zone = ZoneInfo(app.config["SETTINGS"].timezone)
    try:
        with _at_most(LAST_SECONDS):
            for path, _ in NAVIGATION:
                _make(app, path, zone)
                if monotonic() - began > LONGEST_SECONDS:
                    break
    except (Exception, _TooLong) as failure:
        log.info("pages are not made before the start: %s", in_a_line(failure))
    finally:
        app.extensions["wakeboard_database"].dispose()


def begin(app: Flask) -> threading.Thread:
    """Let this process, which nobody has asked yet, make its first page; return the thread that does.

    It leaves an open connection that knows what all pages ask, and memory that is this process's own.
    """
    thread = threading.Thread(target=make_first, args=(app,), name="first page", daemon=True)
    thread.start()
    return thread


def make_first(app: Flask) -> None:
    """Make the overview for nobody. It has the turn of a page: one that is asked for meanwhile comes next.

    Whatever fails, the page itself will say when somebody asks for it.
    """
    turns: Turns = app.extensions[EXTENSION]
    turn = turns.take()
    try:
        _make(app, NAVIGATION[0][0], ZoneInfo(app.config["SETTINGS"].timezone))
    except Exception as failure:
        log.info("no page is made before somebody asks: %s", in_a_line(failure))
    finally:
        turns.give_back(turn)


def _make(app: Flask, path: str, zone: ZoneInfo) -> None:
    with app.request_context(create_environ(path, ADDRESS)):
        g.actor, g.request_id = NOBODY, secrets.token_hex(8)
        preferences.take_zone(zone)
        app.make_response(app.dispatch_request())


class _TooLong(BaseException):
    """The time is over. No ``Exception``: who catches those would go on, and keep a connection half used."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise _TooLong where the main thread still is after ``seconds``."""

    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise _TooLong(f"the database did not answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
