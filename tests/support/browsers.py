"""A dashboard to look at, a browser profile to look with, and what the browser complains about."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request

from tests.conftest import Connection
from tests.support.factories import rows
from wakeboard.accounts import sessions, users
from wakeboard.core.states import Role
from wakeboard.database.audit import Actor

PASSWORD = "seven small boats at dawn"


@dataclass
class Dashboard:
    """A dashboard process; ``url`` has no slash at its end."""

    url: str
    process: subprocess.Popen[str]

    def stop(self) -> None:
        """End it as an operator would, and wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)


@contextmanager
def serving(database: str) -> Iterator[Dashboard]:
    """Run the dashboard on ``database``, as ``wakeboard web`` does, while the block lasts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        bind = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [sys.executable, "-m", "wakeboard_dashboard", "--bind", bind],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "WAKEBOARD_DATABASE_URL": database},
    )
    assert process.stderr is not None
    assert bind in process.stderr.readline(), "it says that it starts"
    assert f"listens on {bind}" in process.stderr.readline()
    served = Dashboard(f"http://{bind}", process)
    try:
        yield served
    finally:
        served.stop()


@contextmanager
def profile(
    browser: Browser, url: str, connection: Connection, role: Role = Role.ADMIN, **options: Any
) -> Iterator[BrowserContext]:
    """Open a browser profile in which anna is signed in as ``role``; ``options`` are Playwright's."""
    opened = browser.new_context(base_url=url, **({"viewport": {"width": 1440, "height": 860}} | options))
    cookie = sessions.open_session(connection, "anna", role)
    name = f"wakeboard_{users.install_id(connection)}"
    opened.add_cookies([{"name": name, "value": cookie, "url": url}])
    try:
        yield opened
    finally:
        # An answer that a route still fetches would fail, or hold up, whatever asks the browser next.
        for page in opened.pages:
            page.unroute_all(behavior="wait")
        opened.close()


def listen(page: Page, url: str, complaints: list[str]) -> Page:
    """Add to ``complaints`` what ``page`` logs, throws, blocks, or asks of others than ``url``; return it."""

    def asked(address: str) -> None:
        if not address.startswith((f"{url}/", "data:", "blob:")):
            complaints.append(f"asked another site: {address}")

    def heard(message: ConsoleMessage) -> None:
        # What Chromium merely remarks (type info: an autofocus that came second) is no complaint. That a poll
        # failed is told with its reason below.
        if message.type in ("error", "warning") and "Failed to fetch" not in message.text:
            complaints.append(f"{message.type}: {message.text}")

    def failed(request: Request) -> None:
        # A poll that is under way when its page is left, or that a newer one replaces, is given up.
        if request.failure != "net::ERR_ABORTED":
            complaints.append(f"no answer: {request.url}: {request.failure}")

    page.on("console", heard)
    page.on("pageerror", lambda error: complaints.append(f"uncaught: {error}"))
    page.on("request", lambda request: asked(request.url))
    page.on("requestfailed", failed)
    return page


def refresh(page: Page) -> None:
    """Let the live regions of ``page`` poll now."""
    page.evaluate("htmx.trigger(document, 'live:now')")


def end_sessions(connection: Connection) -> None:
    """End the sessions of everybody."""
    connection.execute("DELETE FROM wakeboard.sessions")


def sign_in(page: Page, connection: Connection, name: str = "anna") -> None:
    """Sign in with a password on the sign-in page; an admin of that ``name`` is made where there is none."""
    if not rows(connection, "users", "name = %s", name):
        operator = Actor("cli:boss", Role.ADMIN, "cli")
        users.create_user(connection, operator, name, Role.ADMIN, PASSWORD)
    page.fill("[name=name]", name)
    page.fill("[name=password]", PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def follow(page: Page, control: Locator) -> None:
    """Click on a link or button and be on the page that it leads to; a click alone may come back before."""
    with page.expect_navigation():
        control.click()
