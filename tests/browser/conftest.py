"""The browser's test world: the dashboard under gunicorn, and Chromium signed in to it.

Skipped where no Chromium is installed. Every page collects what the browser complains about.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.conftest import Connection
from worker import users

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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


@pytest.fixture
def dashboard(database: str) -> Iterator[Dashboard]:
    """The dashboard on ``database``, as ``wakeboard web`` runs it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        bind = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [sys.executable, "-m", "dashboard", "--bind", bind],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "WAKEBOARD_DATABASE_URL": database},
    )
    assert process.stderr is not None
    assert bind in process.stderr.readline()
    served = Dashboard(f"http://{bind}", process)
    yield served
    served.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One Chromium for the whole run."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def context(chromium: Browser, dashboard: Dashboard, connection: Connection) -> Iterator[BrowserContext]:
    """A browser profile that is signed in as an admin named anna."""
    from worker.states import Role

    opened = chromium.new_context(base_url=dashboard.url, viewport={"width": 1440, "height": 860})
    cookie = users.open_session(connection, "anna", Role.ADMIN)
    name = f"wakeboard_{users.install_id(connection)}"
    opened.add_cookies([{"name": name, "value": cookie, "url": dashboard.url}])
    yield opened
    opened.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complained about on ``page``: errors, warnings, violations of the policy."""
    return []


@pytest.fixture
def page(context: BrowserContext, complaints: list[str]) -> Page:
    """A tab of ``context``."""
    opened = context.new_page()
    opened.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: complaints.append(f"uncaught: {error}"))
    return opened
