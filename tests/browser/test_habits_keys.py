"""The keys: every page within two of them, a list of them, none while typing, none at all if one wants."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import Connection
from tests.support.browsers import Dashboard, profile
from tests.support.factories import a_run, a_type, rows, status
from tests.support.processes import wait_until
from wakeboard.core.states import Role
from wakeboard_dashboard.pages import navigation
from wakeboard_dashboard.pages.navigation import KEYS

pytestmark = pytest.mark.browser

# The key of each page.
PAGES = {entry.path: entry.key for entry in navigation.PAGES if entry.path != "/demo"}


def test_g_and_a_letter_lead_to_every_page(page: Page, complaints: list[str]) -> None:
    page.goto("/runs")
    for path in [path for path in PAGES if path != "/runs"] + ["/runs"]:
        page.keyboard.press("g")
        page.keyboard.press(PAGES[path])
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
        expect(dialog.locator(f"dt:has(kbd:text-is('g')):has(kbd:text-is('{PAGES[path]}'))")).to_have_count(1)
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


@pytest.mark.parametrize(("state", "word"), [("dead", "Dismiss"), ("failed", "Cancel")])
def test_c_cancels_a_row_whose_button_is_retry(
    page: Page, connection: Connection, state: str, word: str
) -> None:
    run_id = a_run(connection, state)
    page.goto("/runs")
    page.keyboard.press("j")
    page.keyboard.press("c")
    dialog = page.locator("#confirm")
    expect(dialog).to_contain_text(f"{word} run {run_id}?")
    expect(dialog.locator("[value=keep]")).to_be_focused()
    dialog.locator("[value=yes]").click()
    expect(page.locator(f"#run-{run_id}")).to_contain_text("cancelled")
    assert status(connection, run_id) == "cancelled"


@pytest.mark.parametrize("address", ["/runs", "/runs/{run_id}"])
def test_r_asks_before_a_finished_job_runs_a_second_time(
    page: Page, connection: Connection, address: str
) -> None:
    run_id = a_run(connection, "succeeded")
    page.goto(address.format(run_id=run_id))
    page.keyboard.press("j")
    page.keyboard.press("r")
    dialog = page.locator("#confirm")
    expect(dialog).to_contain_text(f"Run {run_id} again?")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    assert len(rows(connection, "job_runs")) == 1
    page.keyboard.press("r")
    dialog.locator("input").fill("the file came late")
    dialog.locator("[value=yes]").click()
    wait_until(lambda: len(rows(connection, "job_runs")) == 2, 10, "it is enqueued again")
    (written,) = rows(connection, "audit_log", "action = 'run.again'")
    assert written["reason"] == "the file came late"


def test_r_asks_before_many_are_retried_and_not_before_one(page: Page, connection: Connection) -> None:
    first, second, third = (a_run(connection, "dead") for _ in range(3))
    page.goto("/runs")
    page.check(f"#box-{first}")
    page.check(f"#box-{second}")
    dialog = page.locator("#confirm")
    for by_key in (True, False):
        page.keyboard.press("r") if by_key else page.click(".bulk .primary")
        expect(dialog).to_contain_text("Retry 2 runs?")
        expect(dialog.locator("[value=keep]")).to_be_focused()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
    assert {status(connection, run) for run in (first, second, third)} == {"dead"}
    page.keyboard.press("r")
    dialog.locator("[value=yes]").click()
    expect(page.locator("#toasts")).to_contain_text("2 runs")
    assert [status(connection, run) for run in (first, second, third)] == ["queued", "queued", "dead"]
    page.check(f"#box-{third}")
    page.keyboard.press("r")
    wait_until(lambda: status(connection, third) == "queued", 10, "one is retried at once")


def test_no_key_is_silent(page: Page, connection: Connection, complaints: list[str]) -> None:
    a_type(connection)
    toasts = page.locator("#toasts")
    page.goto("/runs")
    for key, says in (
        ("j", "There is no row here."),
        ("h", "The key h does nothing here."),
        ("l", "The key l does nothing here."),
    ):
        page.keyboard.press(key)
        expect(toasts).to_contain_text(says)
    for state in ("succeeded", "queued", "cancelled", "running"):
        a_run(connection, state)
    page.reload()
    for key in "rcxo":
        page.keyboard.press(key)
        expect(toasts).to_contain_text("No row has the focus (j, k)")
        page.click("#toasts [data-do=close]")
    for key, state in (
        ("r", "stuck"),
        ("c", "cancelled"),
        ("r", "queued"),
        ("c", "succeeded"),
    ):
        page.keyboard.press("j")
        page.keyboard.press(key)
        expect(toasts).to_contain_text(f"The key {key} does nothing where the state is {state}.")
    page.goto("/types")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(toasts).to_contain_text("The key x does nothing here.")
    page.goto("/system")
    page.keyboard.press("/")
    expect(toasts).to_contain_text("The key / does nothing here.")
    assert complaints == []


def test_a_key_says_why_its_button_is_refused(
    chromium: Browser, dashboard: Dashboard, connection: Connection
) -> None:
    a_run(connection, "dead")
    with profile(chromium, dashboard.url, connection, Role.VIEWER) as opened:
        page = opened.new_page()
        page.goto("/runs")
        told = page.locator("#toasts .toast", has_text="Nothing was done: Needs the role operator.")
        for key in "rc":
            page.keyboard.press("j")
            page.keyboard.press(key)
            expect(told).to_have_count(1)
            told.locator("[data-do=close]").click()
