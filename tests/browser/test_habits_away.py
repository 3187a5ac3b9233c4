"""When a session ends under an operator's hands: back to the same page, nothing typed is lost silently."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Connection
from tests.support.browsers import end_sessions, sign_in
from tests.support.factories import a_run, rows, status

pytestmark = pytest.mark.browser

LIVE = 15_000


def test_a_poll_leads_to_sign_in_and_back_to_the_same_list(page: Page, connection: Connection) -> None:
    a_run(connection, "dead")
    page.goto("/runs?status=dead&type=mail")
    end_sessions(connection)
    expect(page.locator("h1")).to_have_text("Sign in", timeout=LIVE)
    sign_in(page, connection)
    expect(page).to_have_url(re.compile(r"/runs\?status=dead&type=mail$"))
    expect(page.locator("tbody tr")).to_have_count(1)


def test_a_verb_leads_to_sign_in_and_its_reason_is_there_again(page: Page, connection: Connection) -> None:
    run_id = a_run(connection, "queued", run_at="1 hour")
    page.goto("/runs")
    page.keyboard.press("p")
    page.click(f"#cancel-{run_id}")
    page.locator("#confirm input").fill("the shop is closed")
    end_sessions(connection)
    page.click("#confirm [value=yes]")
    expect(page.locator("h1")).to_have_text("Sign in", timeout=LIVE)
    sign_in(page, connection)
    expect(page).to_have_url(re.compile("/runs$"))
    expect(page.locator("#toasts")).to_contain_text("so it was not. Your reason is kept")
    expect(page.locator("#toasts")).to_contain_text("“the shop is closed”")
    assert status(connection, run_id) == "queued"
    page.click(f"#cancel-{run_id}")
    expect(page.locator("#confirm input")).to_have_value("the shop is closed")
    page.click("#confirm [value=yes]")
    expect(page.locator("#toasts")).to_contain_text("cancelled")
    assert [line["reason"] for line in rows(connection, "audit_log", "action = 'run.cancel'")] == [
        "the shop is closed"
    ]
    page.reload()
    expect(page.locator("#toasts")).to_be_empty()


def test_a_reason_is_nobody_elses(page: Page, connection: Connection) -> None:
    run_id = a_run(connection, "queued", run_at="1 hour")
    page.goto("/runs")
    page.keyboard.press("p")
    page.click(f"#cancel-{run_id}")
    page.locator("#confirm input").fill("the shop is closed")
    end_sessions(connection)
    page.click("#confirm [value=yes]")
    sign_in(page, connection, "ben")
    expect(page).to_have_url(re.compile("/runs$"))
    expect(page.locator("#toasts")).to_be_empty()
    page.click(f"#cancel-{run_id}")
    expect(page.locator("#confirm input")).to_have_value("")


def test_nobody_is_taken_away_from_what_they_type_or_checked(page: Page, connection: Connection) -> None:
    run_id = a_run(connection, "queued", run_at="1 hour")
    page.goto("/runs")
    page.check(f"#box-{run_id}")
    page.fill("[data-filter]", "type:mail and more")
    end_sessions(connection)
    banner = page.locator("#stale")
    expect(banner).to_contain_text("What you typed or checked is still here", timeout=LIVE)
    expect(page.locator("[data-filter]")).to_have_value("type:mail and more")
    other = page.context.new_page()
    other.goto(banner.locator("a").get_attribute("href") or "")
    sign_in(other, connection)
    expect(other).to_have_url(re.compile("/runs$"))
    expect(banner).to_be_hidden(timeout=LIVE)
    assert page.locator("input[data-row]:checked").count() == 1


def test_a_refused_verb_keeps_its_reason_too(page: Page, connection: Connection) -> None:
    run_id = a_run(connection, "queued", run_at="1 hour")
    page.goto("/runs")
    page.keyboard.press("p")
    page.route("**/cancel", lambda route: route.abort())
    page.click(f"#cancel-{run_id}")
    page.locator("#confirm input").fill("the shop is closed")
    page.click("#confirm [value=yes]")
    expect(page.locator("#toasts .refused")).to_contain_text("The dashboard does not answer.")
    page.unroute("**/cancel")
    page.click(f"#cancel-{run_id}")
    expect(page.locator("#confirm input")).to_have_value("the shop is closed")
