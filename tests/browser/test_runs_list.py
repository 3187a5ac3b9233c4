"""The list of runs under an operator's hands: new rows wait, pages have no gaps, wrong filters say why."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Connection
from tests.support.factories import a_run
from tests.support.processes import wait_until

pytestmark = pytest.mark.browser

LIVE = 15_000
MANY = """INSERT INTO wakeboard.job_runs (job_type, run_at)
    SELECT 'mail', now() + interval '1 hour' FROM generate_series(1, %s)"""


def shown(page: Page) -> list[int]:
    """Return the runs on the screen, from above."""
    return [int(str(row.get_attribute("id"))[4:]) for row in page.locator("tbody tr[id]").all()]


def test_new_runs_wait_behind_a_pill_until_somebody_wants_them(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    first = a_run(connection, run_at="1 hour")
    page.goto("/runs")
    connection.execute(MANY, (12,))
    pill = page.locator("#new")
    expect(pill).to_have_text("12 new – show", timeout=LIVE)
    assert shown(page) == [first]
    pill.click()
    expect(page.locator("tbody tr[id]")).to_have_count(13, timeout=LIVE)
    expect(pill).to_have_count(0, timeout=LIVE)
    assert complaints == []


def test_the_list_stands_still_while_rows_are_checked_and_says_so(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    runs = [a_run(connection, run_at="1 hour") for _ in range(3)]
    page.goto("/runs")
    expect(page.locator(".bulk")).to_be_hidden(timeout=LIVE)
    page.check(f"#box-{runs[1]}")
    expect(page.locator(".bulk")).to_contain_text("list paused while selecting", timeout=LIVE)
    page.evaluate(
        """() => { window.held = 0; document.addEventListener('htmx:before:request',
            event => { if (event.defaultPrevented) window.held += 1 }) }"""
    )
    connection.execute("UPDATE wakeboard.job_runs SET status = 'cancelled', finished_at = now()")
    wait_until(lambda: page.evaluate("window.held >= 2"), 20, "two updates were held back")
    expect(page.locator(f"#run-{runs[0]}")).to_contain_text("queued", timeout=LIVE)
    page.uncheck(f"#box-{runs[1]}")
    expect(page.locator(f"#run-{runs[0]}")).to_contain_text("cancelled", timeout=LIVE)
    expect(page.locator(".bulk")).to_be_hidden(timeout=LIVE)
    assert complaints == []


def test_pages_go_on_from_row_to_row_while_new_runs_come(page: Page, connection: Connection) -> None:
    connection.execute(MANY, (120,))
    page.goto("/runs")
    seen = shown(page)
    for _ in range(2):
        connection.execute(MANY, (7,))
        page.get_by_role("link", name="Older").click()
        expect(page.locator(f"#run-{seen[-1] - 1}")).to_be_visible(timeout=LIVE)
        seen += shown(page)
    assert seen == sorted(set(seen), reverse=True) and len(seen) == 120
    expect(page.get_by_role("link", name="Older")).to_have_count(0, timeout=LIVE)
    page.get_by_role("link", name="Newer").click()
    expect(page.locator(f"#run-{seen[50]}")).to_be_visible(timeout=LIVE)
    assert shown(page) == seen[50:100]


def test_a_count_stops_where_nobody_needs_it_exact(page: Page, connection: Connection) -> None:
    connection.execute(MANY, (10_050,))
    page.goto("/runs?status=queued")
    expect(page.locator(".pager .end")).to_have_text(re.compile(r"50 rows · 10\s000\+ match"), timeout=LIVE)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("colour:red", r"colour.*status.*type.*error.*worker.*key.*attempts.*since.*until.*payload.*q"),
        ("status:brokn", r"brokn.*queued.*running.*succeeded.*failed.*dead.*cancelled"),
        ("since:yesterdayish", r"yesterdayish.*24h"),
    ],
)
def test_what_is_no_filter_says_what_is_allowed(page: Page, typed: str, says: str) -> None:
    page.goto("/runs")
    page.fill("[data-filter]", typed)
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_have_text(re.compile(says, re.DOTALL), timeout=LIVE)


@pytest.mark.parametrize("width", [610, 768, 900])
def test_the_verb_of_a_row_is_in_sight_on_a_tablet(page: Page, connection: Connection, width: int) -> None:
    message = "the provider did not answer within thirty seconds, " * 3
    run = a_run(connection, "dead", job_type="subscription_invoice", last_error=message)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto("/runs?status=dead")
    button = page.locator(f"#retry-{run}")
    place = button.bounding_box()
    assert place is not None and place["x"] >= 0 and place["x"] + place["width"] <= width
    button.click(timeout=LIVE)
    expect(page.locator("#toasts")).to_contain_text(f"Run {run} is due now.", timeout=LIVE)


def test_what_was_typed_goes_along_when_a_list_is_chosen_from(page: Page, complaints: list[str]) -> None:
    page.goto("/runs?status=failed")
    page.fill("[data-filter]", "status:failed declined")
    page.select_option("select[name=status]", "dead")
    expect(page).to_have_url(re.compile(r"/runs\?status=dead&q=declined$"), timeout=LIVE)
    page.locator("#more-filters summary").click()
    page.fill("input[name=key]", "invoice:812")
    page.select_option("select[name=since]", "1d")
    expect(page).to_have_url(re.compile(r"status=dead&key=invoice:812&since=1d&q=declined$"), timeout=LIVE)
    page.select_option("select[name=status]", "")
    expect(page).to_have_url(re.compile(r"/runs\?key=invoice:812&since=1d&q=declined$"), timeout=LIVE)
    assert complaints == []


def test_times_are_in_the_zone_of_whoever_reads(page: Page, connection: Connection) -> None:
    run = a_run(connection, "dead")
    connection.execute(
        """UPDATE wakeboard.job_runs SET created_at = '2026-11-20T20:30:00Z',
            finished_at = '2026-11-20T20:30:00Z'"""
    )
    page.goto("/runs")
    page.context.add_cookies([{"name": "wakeboard_zone", "value": "Asia/Tokyo", "url": page.url}])
    page.reload()
    time = page.locator(f"#run-{run} td:nth-child(8) time")
    expect(time).to_have_attribute(
        "title", re.compile(r"2026-11-21 05:30:00 JST = 2026-11-20 20:30:00 UTC"), timeout=LIVE
    )
    # 05:00 there is 20:00 of the day before in UTC: a time that is typed is of the same zone.
    for typed, there in (("2026-11-21T05:00", 1), ("2026-11-21T06:00", 0)):
        page.goto(f"/runs?since={typed}")
        expect(page.locator("tbody tr[id]")).to_have_count(there, timeout=LIVE)
