"""Three in the morning: something failed; who is on call finds it, mends it, and sees it succeed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import Connection
from tests.support.browsers import listen, profile
from tests.support.factories import rows, status
from tests.support.installation import Household, enqueue, running_household, wait_for_end
from tests.support.processes import wait_until

pytestmark = pytest.mark.browser

LIVE = 15_000


@pytest.fixture(scope="module")
def household(chromium: Browser, shared_database: str) -> Iterator[Household]:
    """Worker and dashboard, for all journeys."""
    with running_household(shared_database) as running:
        yield running


@pytest.fixture
def page(
    chromium: Browser, household: Household, shared: Connection, complaints: list[str]
) -> Iterator[Page]:
    """A tab in which anna is signed in."""
    with profile(chromium, household.url, shared) as opened:
        yield listen(opened.new_page(), household.url, complaints)


def failed_run(connection: Connection, file: Path) -> int:
    """Let a run fail for want of ``file``; return its id."""
    run_id = enqueue(connection, "needs_file", file=str(file))
    assert wait_for_end(connection, run_id) == "dead"
    return run_id


def test_a_failure_is_found_retried_and_seen_to_succeed_without_a_reload(
    page: Page, shared: Connection, tmp_path: Path, complaints: list[str]
) -> None:
    file = tmp_path / "prices.csv"
    run_id = failed_run(shared, file)
    page.goto("/")
    page.click("#attention a:has-text('needs_file')")
    row = page.locator(f"#run-{run_id}")
    expect(row).to_contain_text("FileNotFoundError")
    page.click(f"#to-{run_id}")
    expect(page.locator("main")).to_contain_text("The price list prices.csv has not arrived.")
    file.write_text("1 board: 300")
    page.evaluate("window.sameDocument = true")
    page.keyboard.press("r")
    expect(page.locator("#toasts")).to_contain_text(f"Run {run_id} is due now.", timeout=LIVE)
    expect(page.locator("#state")).to_contain_text("Succeeded", timeout=LIVE)
    expect(page.locator("#attempts")).to_contain_text("succeeded", timeout=LIVE)
    assert page.evaluate("window.sameDocument") is True
    assert complaints == []


def test_a_reason_given_before_a_cancel_is_found_in_the_audit(page: Page, shared: Connection) -> None:
    run_id = enqueue(shared, "long")
    wait_until(lambda: status(shared, run_id) == "running", 20, "the run has started")
    page.goto(f"/runs/{run_id}")
    page.keyboard.press("c")
    dialog = page.locator("#confirm")
    expect(dialog.locator("[value=keep]")).to_be_focused()
    dialog.locator("input").fill("the wrong catalogue")
    dialog.locator("[value=yes]").click()
    expect(page.locator("#state")).to_contain_text("Cancelled", timeout=LIVE)
    page.keyboard.press("g")
    page.keyboard.press("a")
    page.wait_for_url("**/audit")
    line = page.locator("tr", has_text=str(run_id)).first
    expect(line).to_contain_text("anna")
    expect(line).to_contain_text("the wrong catalogue")


def test_a_key_pressed_before_the_page_is_wired_asks_in_the_page_all_the_same(
    page: Page, shared: Connection
) -> None:
    # When all scripts have run, and before any timeout of theirs: htmx wires the buttons in one.
    page.add_init_script("""document.addEventListener('DOMContentLoaded', () =>
        document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'c', bubbles: true})))""")
    run_id = enqueue(shared, "long")
    wait_until(lambda: status(shared, run_id) == "running", 20, "the run has started")
    page.goto(f"/runs/{run_id}")
    expect(page.locator("#confirm")).to_be_visible()
    page.locator("#confirm [value=yes]").click()
    expect(page.locator("#state")).to_contain_text("Cancelled", timeout=LIVE)


def test_without_script_a_run_is_retried_by_a_form_and_cancelled_through_a_question(
    chromium: Browser, household: Household, shared: Connection, tmp_path: Path
) -> None:
    run_id = failed_run(shared, tmp_path / "prices.csv")
    (tmp_path / "prices.csv").write_text("1 board: 300")
    with profile(chromium, household.url, shared, java_script_enabled=False) as opened:
        page = opened.new_page()
        page.goto("/runs?status=dead")
        page.click(f"#to-{run_id}")
        page.click("button:has-text('Retry')")
        expect(page.locator("#toasts")).to_contain_text(f"Run {run_id} is due now.")
        assert wait_for_end(shared, run_id) == "succeeded"
        page.reload()
        expect(page.locator("#state")).to_contain_text("Succeeded")
        expect(page.locator("#toasts")).to_be_empty()
        long = enqueue(shared, "long")
        page.goto(f"/runs/{long}")
        page.click("button:has-text('Cancel')")
        expect(page.locator("h1")).to_contain_text("Cancel")
        page.fill("[name=reason]", "on paper instead")
        page.click("main form button")
        assert wait_for_end(shared, long) == "cancelled"
    (line,) = rows(shared, "audit_log", "target_id = %s AND action = 'run.cancel'", str(long))
    assert (line["actor"], line["reason"]) == ("anna", "on paper instead")
