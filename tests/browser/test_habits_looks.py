"""How pages look elsewhere than on a desk: on a phone, on paper, in forced colours, with less motion."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.test_every_page import AXE, PHONE, VIOLATIONS, furnish
from tests.conftest import Connection
from tests.support.browsers import Dashboard, profile, refresh, serving

pytestmark = pytest.mark.browser

LISTS = (
    "/",
    "/runs",
    "/leases",
    "/schedules",
    "/types",
    "/workers",
    "/audit",
    "/effects",
    "/alerts",
    "/night",
)
# Tables that are wider than the phone they are on.
SIDEWAYS = """() => [...document.querySelectorAll('main .frame')]
  .filter(frame => frame.clientWidth && frame.scrollWidth > frame.clientWidth + 1)
  .filter(frame => !frame.querySelector('.fleet'))
  .map(frame => frame.outerHTML.slice(0, 200))"""
STYLE = "(element, [name, part]) => getComputedStyle(element, part)[name]"


@pytest.fixture(scope="module")
def place(chromium: Browser, shared_database: str, shared: Connection) -> Iterator[Dashboard]:
    """A dashboard of a production over rows of every kind."""
    furnish(shared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WAKEBOARD_ENVIRONMENT", "production red")
        with serving(shared_database) as served:
            yield served


@pytest.fixture
def page(chromium: Browser, place: Dashboard, shared: Connection) -> Iterator[Page]:
    """A tab in which anna is signed in."""
    with profile(chromium, place.url, shared) as opened:
        yield opened.new_page()


def test_on_a_phone_rows_are_lines_with_labels_and_nothing_is_out_of_sight(
    chromium: Browser, place: Dashboard, shared: Connection
) -> None:
    with profile(chromium, place.url, shared, viewport=PHONE) as opened:
        opened.add_init_script(path=AXE)
        page = opened.new_page()
        found = []
        for address in LISTS:
            page.goto(address)
            found += [f"{address}: {wide}" for wide in page.evaluate(SIDEWAYS)]
            found += [f"{address}: {small}" for small in page.evaluate(VIOLATIONS, ["target-size"])]
        assert not found, "\n".join(found)
        page.goto("/runs")
        row = page.locator("tbody tr").first
        label = row.locator("td[data-head=When]").evaluate(STYLE, ["content", "::before"])
        assert label == '"When: "'
        refresh(page)
        page.wait_for_load_state("networkidle")
        expect(row.locator("td[data-head=When]")).to_have_count(1)
        row.locator("input[data-row]").check()
        expect(page.locator(".bulk")).to_be_in_viewport()


def test_targets_are_large_enough_on_a_desk(chromium: Browser, place: Dashboard, shared: Connection) -> None:
    with profile(chromium, place.url, shared) as opened:
        opened.add_init_script(path=AXE)
        page = opened.new_page()
        found = []
        for address in LISTS:
            page.goto(address)
            found += [f"{address}: {small}" for small in page.evaluate(VIOLATIONS, ["target-size"])]
        assert not found, "\n".join(found)


def test_paper_has_dates_black_badges_and_no_controls(page: Page) -> None:
    page.goto("/runs")
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator("time[data-relative=relative]").first).to_have_text(re.compile(r"^20\d\d-\d\d-\d\d "))
    expect(page.locator("time[data-relative=elapsed]").first).not_to_have_text(re.compile("^20"))
    for hidden in ("#pause", ".filters >> nth=0", "td.actions >> nth=0", "#box-1", "#more"):
        expect(page.locator(hidden)).to_be_hidden()
    dead = page.locator(".badge.dead").first
    assert dead.evaluate(STYLE, ["color", None]) == "rgb(0, 0, 0)"
    expect(page.locator(".where").first).to_be_visible()
    expect(page.locator(".foot")).to_contain_text("As of ")
    page.emulate_media(media="screen")
    expect(page.locator("time[data-relative=relative]").first).to_have_text(re.compile("ago|in "))


def test_forced_colours_keep_states_apart_by_outlines(page: Page) -> None:
    page.emulate_media(forced_colors="active")
    page.goto("/runs")
    for marked in (".badge", ".count", ".where", ".nav a[aria-current=page]"):
        assert page.locator(marked).first.evaluate(STYLE, ["borderTopStyle", None]) == "solid", marked


def test_nothing_turns_for_those_who_want_less_motion(page: Page) -> None:
    turning = page.locator(".badge.running svg").first
    page.goto("/runs/7")
    page.goto("/")
    assert turning.evaluate(STYLE, ["animationName", None]) == "turn"
    page.emulate_media(reduced_motion="reduce")
    assert turning.evaluate(STYLE, ["animationName", None]) == "none"


def test_the_environment_is_named_wherever_one_decides(page: Page) -> None:
    page.goto("/runs")
    expect(page).to_have_title(re.compile("– Wakeboard production$"))
    assert page.locator(".ribbon").evaluate(STYLE, ["backgroundColor", None]) == "rgb(179, 36, 27)"
    page.mouse.wheel(0, 2000)
    expect(page.locator(".brand .where")).to_be_in_viewport()
    page.locator(
        "button.danger[hx-post]:not(.bulk button):visible, td.actions button.danger:visible"
    ).first.click()
    expect(page.locator("#confirm")).to_contain_text("production")
    page.goto("/runs/1/cancel")
    expect(page.locator("main .where")).to_have_text("production")
