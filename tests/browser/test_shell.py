"""The shell in a real browser: live, pausable, honest when it is stale, and within the policy."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.conftest import Connection
from tests.support.browsers import Dashboard, end_sessions, refresh

pytestmark = pytest.mark.browser

TILES = "**/_fragments/overview/tiles*"


def enqueue(connection: Connection, count: int = 1) -> None:
    connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type) SELECT 'x' FROM generate_series(1, %s)", (count,)
    )


def tile(page: Page, number: str) -> None:
    expect(page.locator("a.tile.queued b")).to_have_text(number, timeout=10_000)


def test_numbers_follow_the_database_and_an_opened_part_stays_open(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    page.goto("/")
    tile(page, "0")
    page.click("#hours summary")
    enqueue(connection, 3)
    tile(page, "3")
    refresh(page)
    page.wait_for_timeout(500)
    assert page.evaluate("document.getElementById('hours').open") is True
    assert complaints == []


def test_pause_stops_the_polls_and_resume_asks_at_once(page: Page, connection: Connection) -> None:
    page.goto("/")
    page.keyboard.press("p")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    enqueue(connection)
    page.wait_for_timeout(4500)
    assert asked == []
    page.click("#pause")
    tile(page, "1")


def test_a_lost_session_leads_to_the_sign_in_page_and_back(page: Page, connection: Connection) -> None:
    page.goto("/")
    end_sessions(connection)
    page.wait_for_url("**/login?next=%2F", timeout=10_000)
    expect(page.locator("h1")).to_have_text("Sign in")


def test_a_dashboard_that_is_away_leaves_the_data_and_says_since_when(
    page: Page, dashboard: Dashboard
) -> None:
    page.goto("/")
    dashboard.stop()
    # While it ends it may answer one part of the page once more when it answers another no longer.
    when = r"(Shown is what was known|A part of this page is as it was) at \d\d:\d\d:\d\d UTC\."
    expect(page.locator("#stale")).to_contain_text(
        re.compile(rf"The dashboard does not answer\. {when}"), timeout=20_000
    )
    expect(page.locator(".tile")).to_have_count(8)


def test_the_tab_says_how_many_things_need_a_person(page: Page, connection: Connection) -> None:
    page.goto("/")
    expect(page).to_have_title("Overview – Wakeboard")
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, error_code, finished_at)
        VALUES ('x', 'dead', 'BOOM', now()), ('x', 'dead', 'BOOM', now())"""
    )
    expect(page).to_have_title("(2) Overview – Wakeboard", timeout=20_000)
    assert "icon-alert" in (page.get_attribute("link[rel=icon]", "href") or "")


def test_a_chosen_theme_and_zone_are_kept(page: Page) -> None:
    page.goto("/")
    page.click("#account summary")
    page.select_option("#theme", "dark")
    page.reload()
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 24)"


def test_single_keys_can_be_switched_off(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("?")
    page.uncheck("#keys-on")
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "false")


def test_a_phone_scrolls_down_and_never_sideways(
    context: BrowserContext, page: Page, connection: Connection
) -> None:
    enqueue(connection, 5)
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_menu_behind_the_navigation_leads_to_the_other_pages(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/")
    more, alerts = page.locator("#more > summary"), page.get_by_role("link", name="Alerts", exact=True)
    expect(alerts).to_be_hidden()
    more.focus()
    page.keyboard.press("Enter")
    expect(alerts).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Last night")).to_be_focused()
    page.keyboard.press("Escape")
    expect(alerts).to_be_hidden()
    expect(more).to_be_focused()
    more.click()
    page.locator("h1").click()
    expect(alerts).to_be_hidden()
    more.click()
    alerts.click()
    expect(page).to_have_url(re.compile("/alerts$"))
    more.click()
    expect(alerts).to_have_attribute("aria-current", "page")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_wide_window_shows_all_pages_beside_each_other(page: Page) -> None:
    page.set_viewport_size({"width": 1700, "height": 900})
    page.goto("/night")
    for name in ("Runs", "Last night", "Operations", "Effects", "Alerts", "System"):
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Last night")).to_have_attribute("aria-current", "page")


def test_without_script_the_page_can_be_read_and_left(context: BrowserContext, page: Page) -> None:
    assert context.browser is not None
    plain = context.browser.new_context(java_script_enabled=False, storage_state=context.storage_state())
    tab = plain.new_page()
    page.goto("/")
    tab.goto(page.url)
    expect(tab.locator(".tile")).to_have_count(8)
    expect(tab.locator("#pause")).to_be_hidden()
    tab.click("#more summary")
    tab.click("#more a[href='/system']")
    expect(tab).to_have_url(re.compile("/system$"))
    tab.click("#account summary")
    tab.click("text=Sign out")
    expect(tab).to_have_url(re.compile("/login$"))
    plain.close()
