"""The keys: every page within two of them, a list of them, none while typing, none at all if one wants."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from dashboard import MORE_PAGES, NAVIGATION
from dashboard.keyboard import GO, KEYS
from tests.conftest import Connection
from tests.factories import a_run, status

pytestmark = pytest.mark.browser

PAGES = [path for path, _ in (*NAVIGATION, *MORE_PAGES) if path != "/demo"]


def test_g_and_a_letter_lead_to_every_page(page: Page, complaints: list[str]) -> None:
    assert len(set(GO.values())) == len(GO)
    page.goto("/runs")
    for path in [path for path in PAGES if path != "/runs"] + ["/runs"]:
        page.keyboard.press("g")
        page.keyboard.press(GO[path])
        expect(page).to_have_url(re.compile(f"{re.escape(path)}$"))
        page.wait_for_load_state()
    assert complaints == []


def test_the_dialog_lists_every_key(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("?")
    dialog = page.locator("#keys")
    for pressed, does in KEYS:
        for key in pressed.split():
            expect(dialog.locator("kbd", has_text=re.compile(f"^{re.escape(key)}$")).first).to_be_visible()
        expect(dialog).to_contain_text(does)
    for path in PAGES:
        expect(dialog.locator(f"dt:has(kbd:text-is('g')):has(kbd:text-is('{GO[path]}'))")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_no_key_fires_while_typing_or_with_a_modifier(page: Page, connection: Connection) -> None:
    run_id = a_run(connection, "dead")
    page.goto("/runs")
    page.keyboard.press("/")
    expect(page.locator("[data-filter]")).to_be_focused()
    page.keyboard.type("jkxorcp?gl")
    expect(page.locator("[data-filter]")).to_have_value("jkxorcp?gl")
    page.locator("[data-filter]").evaluate("box => { box.value = ''; box.blur() }")
    page.keyboard.press("j")
    for modifier in ("Control", "Alt", "Meta"):
        page.keyboard.press(f"{modifier}+x")
        page.keyboard.press(f"{modifier}+p")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "false")
    assert page.locator("input[data-row]:checked").count() == 0
    assert page.locator("dialog[open]").count() == 0
    assert status(connection, run_id) == "dead"


def test_a_row_is_opened_by_enter_and_a_box_never_sends_the_form(page: Page, connection: Connection) -> None:
    run_id = a_run(connection, "dead")
    page.goto("/runs")
    page.check(f"#box-{run_id}")
    page.keyboard.press("Enter")
    page.wait_for_timeout(500)
    assert (page.url.endswith("/runs"), status(connection, run_id)) == (True, "dead")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/runs/{run_id}$"))


def test_h_and_l_turn_the_pages_of_a_list(page: Page, connection: Connection) -> None:
    connection.execute("INSERT INTO wakeboard.job_runs (job_type) SELECT 'x' FROM generate_series(1, 60)")
    page.goto("/runs")
    page.keyboard.press("l")
    expect(page.locator("tbody tr")).to_have_count(10)
    page.keyboard.press("h")
    expect(page.locator("tbody tr")).to_have_count(50)


def test_keys_stay_switched_off_in_this_browser(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("?")
    page.uncheck("#keys-on")
    page.keyboard.press("Escape")
    page.goto("/runs")
    for key in ("p", "?", "g", "l"):
        page.keyboard.press(key)
    page.wait_for_timeout(300)
    expect(page).to_have_url(re.compile("/runs$"))
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "false")
    assert page.locator("dialog[open]").count() == 0
    page.click("[data-do=keys]")
    expect(page.locator("#keys-on")).not_to_be_checked()
    page.check("#keys-on")
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
