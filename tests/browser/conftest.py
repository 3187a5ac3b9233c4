"""The browser's test world: the dashboard under gunicorn, and Chromium signed in to it.

Skipped where no Chromium is installed. Every page collects what the browser complains about.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.conftest import Connection
from tests.support.browsers import Dashboard, listen, profile, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# With RenderDocument, Chromium answers a close that meets a navigation's commit, and closes nothing: whoever
# closes the page waits for ever (crbug.com/536385539). This list replaces Playwright's own, so what of that
# keeps a browser still is in it again.
WITHOUT = "RenderDocument,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,MediaRouter,OptimizationHints"
QUIET = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    f"--disable-features={WITHOUT}",
)
# What is awaited on a page may take its time on a busy machine.
expect.set_options(timeout=20_000)


@pytest.fixture
def dashboard(database: str) -> Iterator[Dashboard]:
    """The dashboard on ``database``, as ``wakeboard web`` runs it."""
    with serving(database) as served:
        yield served


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One Chromium for the whole run."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture
def context(chromium: Browser, dashboard: Dashboard, connection: Connection) -> Iterator[BrowserContext]:
    """A browser profile that is signed in as an admin named anna."""
    with profile(chromium, dashboard.url, connection) as opened:
        yield opened


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complained about on ``page``: errors, warnings, violations of the policy."""
    return []


@pytest.fixture
def page(context: BrowserContext, dashboard: Dashboard, complaints: list[str]) -> Page:
    """A tab of ``context``."""
    return listen(context.new_page(), dashboard.url, complaints)
