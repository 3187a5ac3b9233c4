"""Live on every page: the count in the title, the clock, the banner of what is stale, and the pause."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.test_every_page import SHIFTS
from tests.conftest import Connection
from tests.support.browsers import Dashboard, end_sessions
from tests.support.factories import a_run
from tests.support.processes import wait_until

pytestmark = pytest.mark.browser

LIVE = 15_000
CALM = ("/audit", "/types", "/runs", "/night", "/display")


@pytest.mark.parametrize("address", CALM)
def test_the_title_counts_what_needs_a_person_wherever_one_is(
    page: Page, connection: Connection, complaints: list[str], address: str
) -> None:
    page.goto(address)
    expect(page).not_to_have_title(re.compile(r"^\("))
    a_run(connection, "dead")
    expect(page).to_have_title(re.compile(r"^\(1\) "), timeout=LIVE)
    expect(page.locator("#needs")).to_have_text(re.compile("^1"))
    assert "icon-alert" in (page.get_attribute("link[rel=icon]", "href") or "")
    # The next page says so before any script has asked.
    wait_until(lambda: "<title>(1) " in page.request.get("/workers").text())
    connection.execute("DELETE FROM wakeboard.job_runs")
    expect(page).not_to_have_title(re.compile(r"^\("), timeout=LIVE)
    assert complaints == []


def test_a_page_without_lists_is_live_too_and_goes_to_sign_in_and_back(
    page: Page, connection: Connection
) -> None:
    page.goto("/display?next=%2Fruns")
    end_sessions(connection)
    page.wait_for_url("**/login?next=%2Fdisplay%3Fnext%3D%252Fruns", timeout=LIVE)


def test_one_missed_poll_is_no_alarm_two_are_and_it_is_over_when_they_succeed(page: Page) -> None:
    page.goto("/runs")
    page.wait_for_load_state("networkidle")
    page.evaluate(SHIFTS)
    banner, failures = page.locator("#stale"), 0

    def fail(route: Route) -> None:
        nonlocal failures
        failures += 1
        assert failures > 2 or not banner.is_visible()
        route.fulfill(status=500, body="no", headers={"X-Request-Id": "x"})

    page.route("**/_fragments/runs/list*", fail)
    expect(banner).to_contain_text("The dashboard answered with an error (500).", timeout=LIVE)
    expect(banner).to_contain_text("A part of this page is as it was at ")
    assert failures >= 2
    expect(page.locator("#list")).to_contain_text("There are no runs yet")
    page.unroute("**/_fragments/runs/list*")
    expect(banner).to_be_hidden(timeout=LIVE)
    assert sum(entry[0] for entry in page.evaluate("window.shifted")) < 0.01


def test_what_answers_in_our_place_never_gets_into_the_page(page: Page, connection: Connection) -> None:
    run_id = a_run(connection, "dead")
    page.goto("/runs")
    page.route("**/_fragments/**", lambda route: route.fulfill(status=200, body="<h1>Proxy sign-in</h1>"))
    page.route("**/retry", lambda route: route.fulfill(status=200, body="<h1>Proxy sign-in</h1>"))
    expect(page.locator("#stale")).to_contain_text("answered in its place", timeout=LIVE)
    expect(page.locator("body")).not_to_contain_text("Proxy sign-in")
    page.click(f"#retry-{run_id}")
    expect(page.locator("#toasts .refused")).to_contain_text("nothing was done")


def test_a_pause_holds_for_the_tab_and_says_so(page: Page, connection: Connection) -> None:
    page.goto("/runs")
    page.keyboard.press("p")
    expect(page.locator("#toasts")).to_contain_text("every page of this tab stands still")
    expect(page.locator("#clock-word")).to_have_text("Paused at ")
    page.goto("/leases")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#pause")).to_contain_text("Resume live")
    expect(page.locator("#clock-word")).to_have_text("Paused at ")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(4500)
    assert asked == []
    page.keyboard.press("p")
    wait_until(lambda: asked, sentence="resuming asks at once")
    page.reload()
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "false")
    other = page.context.new_page()
    page.keyboard.press("p")
    other.goto("/runs")
    expect(other.locator("#pause")).to_have_attribute("aria-pressed", "false")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_the_foot_moves_with_the_head_and_keeps_the_date(page: Page, dashboard: Dashboard, zone: str) -> None:
    page.context.add_cookies([{"name": "wakeboard_zone", "value": zone, "url": dashboard.url}])
    page.goto("/runs")
    made = page.inner_text(".foot > span")
    expect(page.locator(".foot > span")).not_to_have_text(made, timeout=LIVE)
    page.click("#pause")
    page.wait_for_load_state("networkidle")
    foot, head = page.inner_text(".foot > span"), page.inner_text("#clock")
    assert (re.sub(r"\d", "0", foot), head in foot) == (re.sub(r"\d", "0", made), True)
    moments = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]{3}", foot)
    assert len(moments) == (1 if zone == "UTC" else 2)
    utc, local = (datetime.fromisoformat(each[:-4]) for each in (moments[-1], moments[0]))
    assert local - utc == timedelta(hours=0 if zone == "UTC" else 5.5)
    # A page of which nothing but the head is live stays what it was.
    page.click("#pause")
    page.goto("/display")
    made, before = page.inner_text(".foot > span"), page.inner_text("#clock")
    expect(page.locator("#clock")).not_to_have_text(before, timeout=LIVE)
    assert page.inner_text(".foot > span") == made


def test_times_live_by_the_databases_clock_and_carry_the_date_in_both_zones(
    page: Page, connection: Connection
) -> None:
    run_id = a_run(connection, "queued", run_at="-1 minute")
    page.goto("/runs")
    page.click("#account summary")
    page.evaluate("document.querySelector('#zone').add(new Option('Asia/Tokyo'))")
    page.select_option("#zone", "Asia/Tokyo")
    time = page.locator(f"#run-{run_id} time").last
    expect(time).to_have_text("1 min ago", timeout=LIVE)
    expect(time).to_have_attribute("title", re.compile(r"^20\S+ \S+ JST = 20\S+ \S+ UTC$"))
    expect(page.locator("#clock")).to_contain_text("JST")
    connection.execute("UPDATE wakeboard.job_runs SET run_at = now() + interval '90 minutes'")
    expect(time).to_have_text(re.compile("in 1 h (29|30) min"), timeout=LIVE)
    page.click("#account summary")
    page.select_option("#times", "absolute")
    expect(time).to_have_text(re.compile(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d JST$"))
    page.reload()
    expect(time).to_have_text(re.compile(r"JST$"))
    connection.execute("UPDATE wakeboard.job_runs SET run_at = '2031-01-01 00:00:00Z'")
    expect(time).to_have_text("2031-01-01 09:00:00 JST", timeout=LIVE)


def test_the_banner_tells_of_a_dashboard_that_comes_back(page: Page, dashboard: Dashboard) -> None:
    page.goto("/types")
    page.context.set_offline(True)
    expect(page.locator("#stale")).to_contain_text("The dashboard does not answer. Shown is", timeout=20_000)
    assert "stale" in (page.get_attribute("html", "class") or "")
    page.context.set_offline(False)
    expect(page.locator("#stale")).to_be_hidden(timeout=LIVE)
