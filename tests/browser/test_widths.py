"""Every list at every width of a desk and of a zoomed page: nothing lies where nobody can scroll to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.test_every_page import AXE, PAINTED, VIOLATIONS, furnish
from tests.conftest import Connection
from tests.support.browsers import Dashboard, profile, refresh, serving
from tests.support.factories import a_definition, a_run, an_attempt, from_now, insert

pytestmark = pytest.mark.browser

WIDTHS = (320, 390, 601, 768, 961, 970, 1024, 1120, 1240, 1310, 1366, 1600, 1920)
LONG = "every-night-" + "x" * 88
TYPE = "synchronise_the_stock_of_all_warehouses"
MESSAGE = "the provider of the warehouse in the north did not answer within thirty seconds, "
SEEN = "th, td, a, button, input, select, svg, summary, time"
# What lies beyond the first box around it that neither shows nor scrolls it; text that ends in “…” is whole
# in its title, and what only a screen reader sees is nowhere.
BEYOND = """seen => [...document.querySelectorAll(`main :is(${seen})`)]
  .filter(each => each.checkVisibility() && !each.closest('.visually-hidden'))
  .filter(each => {
    const { left, right } = each.getBoundingClientRect()
    for (let box = each.parentElement; box; box = box.parentElement) {
      const { overflowX, textOverflow } = getComputedStyle(box)
      if (['auto', 'scroll'].includes(overflowX) || textOverflow === 'ellipsis') return false
      const edge = box.getBoundingClientRect()
      if (overflowX !== 'visible' && (right > edge.right + 1.5 || left < edge.left - 1.5)) return true
    }
    return false
  })
  .map(each => `${each.tagName} ${each.id} ${each.textContent.trim().slice(0, 40)}`)"""
PAGE_WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def place(
    chromium: Browser, shared_database: str, shared: Connection
) -> Iterator[tuple[Dashboard, list[str]]]:
    """A dashboard over rows of every kind with long names in them, and the addresses of what has tables."""
    filling = furnish(shared)
    a_definition(shared, LONG, job_type=TYPE)
    insert(shared, "job_types", {"name": TYPE}, "name")
    run = a_run(
        shared, "dead", job_type=TYPE, error_code="warehouse_silent", last_error=MESSAGE * 3,
        started_at=from_now("-6 minutes"), finished_at=from_now("-5 minutes"), attempts=0,
    )  # fmt: skip
    an_attempt(
        shared, run, outcome="failed", error_code="warehouse_silent", error=MESSAGE * 3,
        started_at=from_now("-6 minutes"), finished_at=from_now("-5 minutes"),
    )  # fmt: skip
    for before in ({"max_running": 2}, {"paused_by": "anna", "paused_reason": MESSAGE}):
        insert(
            shared, "audit_log",
            {"actor": "anna.of.the.night.shift@example.org", "source": "web", "action": "schedule.edit",
             "target_type": "schedule", "target_id": LONG, "before": before, "after": {"max_running": 4},
             "reason": MESSAGE},
        )  # fmt: skip
    code, group = filling["/errors"][0], filling["<group:"][0]
    addresses = [
        "/", "/runs", "/errors?since=24h", f"/errors/{code}", f"/errors/{group}", "/leases", "/schedules",
        f"/schedules/{LONG}", "/types", f"/types/{TYPE}", "/types/mail", "/workers",
        f"/workers/{filling['/workers'][0]}", "/audit", "/effects", "/alerts", "/operations", "/operations/1",
        "/night?since=24h", "/system", f"/runs/{run}",
    ]  # fmt: skip
    with serving(shared_database) as served:
        yield served, addresses


@pytest.fixture
def page(chromium: Browser, place: tuple[Dashboard, list[str]], shared: Connection) -> Iterator[Page]:
    """A tab in which anna is signed in."""
    with profile(chromium, place[0].url, shared) as opened:
        opened.add_init_script(path=AXE)
        yield opened.new_page()


def resize(page: Page, width: int) -> None:
    """Make the window ``width`` wide, and wait until the page has been painted anew."""
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(PAINTED)


def test_nothing_lies_where_nobody_can_scroll_to_it(page: Page, place: tuple[Dashboard, list[str]]) -> None:
    found = []
    for address in place[1]:
        answer = page.goto(address)
        assert answer is not None and answer.status == 200, address
        for details in page.locator("main details").all():
            details.evaluate("each => { each.open = true }")
        for width in WIDTHS:
            resize(page, width)
            found += [f"{address} at {width}: {each}" for each in page.evaluate(BEYOND, SEEN)]
            if page.evaluate(PAGE_WIDTH) > width:
                found.append(f"{address} at {width}: the page is {page.evaluate(PAGE_WIDTH)} wide")
    assert not found, "\n".join(found)


def test_what_scrolls_can_be_scrolled_without_a_mouse(page: Page, place: tuple[Dashboard, list[str]]) -> None:
    found = []
    resize(page, 970)
    for address in place[1]:
        page.goto(address)
        page.evaluate(PAINTED)
        found += [f"{address}: {each}" for each in page.evaluate(VIOLATIONS, ["scrollable-region-focusable"])]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("width", [961, 1024, 1366])
def test_the_verbs_of_a_row_are_in_sight_however_wide_its_table_is(page: Page, width: int) -> None:
    resize(page, width)
    for address, row in (("/schedules", LONG), ("/runs", TYPE), ("/types", TYPE)):
        page.goto(address)
        place = page.locator("tbody tr", has_text=row[:40]).locator("button:visible").last.bounding_box()
        assert place is not None and place["x"] >= 0, address
        assert place["x"] + place["width"] <= width - 24, address


def test_heads_stay_under_the_bar_where_the_table_fits(page: Page, shared: Connection) -> None:
    """Also after a live update; where the bar takes two lines they go along with the page."""
    shared.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, finished_at, attempts, error_code)
        SELECT %s, 'dead', now(), 1, 'warehouse_silent' FROM generate_series(1, 50)""",
        (TYPE,),
    )
    page.goto(f"/runs?type={TYPE}")
    for width, stays in ((1440, True), (700, False), (961, True)):
        resize(page, width)
        page.evaluate("scrollTo(0, 500)")
        with page.expect_response("**/_fragments/**"):
            refresh(page)
        page.evaluate(PAINTED)
        head = page.locator("thead th").nth(1).bounding_box()
        assert head is not None and (head["y"] > 0) is stays, (width, head)
