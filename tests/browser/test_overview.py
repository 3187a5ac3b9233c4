"""The overview stands still while its numbers change, and its window is a link."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_every_page import SHIFTS
from tests.conftest import Connection
from tests.support.browsers import refresh
from tests.support.factories import a_definition, a_run, a_worker, from_now, insert

pytestmark = pytest.mark.browser

LIVE = 15_000
# Where each part of the page begins.
PLACES = """() => ['.tile', '#done', '#attention', '#fires', '#pace', '#types'].map(
  part => Math.round(document.querySelector(part).getBoundingClientRect().top)
)"""


def test_nothing_moves_when_things_go_wrong(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    a_worker(connection)
    definition = a_definition(connection, "nightly")
    page.goto("/")
    expect(page.locator("#tiles .sentence")).to_contain_text("All is well.", timeout=LIVE)
    page.evaluate(SHIFTS)
    places = page.evaluate(PLACES)
    for job_type in ("mail", "report"):
        a_run(connection, "dead", job_type=job_type)
        a_run(connection, "queued", job_type=job_type)
    missed = {"definition_id": definition, "scheduled_for": from_now("-1 minute"), "reason": "misfire"}
    insert(connection, "missed_fires", missed)
    expect(page.locator("#tiles .sentence")).to_contain_text(
        "Two runs are dead and one schedule missed its time; everything else is normal.", timeout=LIVE
    )
    expect(page.locator("#attention tbody tr")).to_have_count(3, timeout=LIVE)
    expect(page.locator(".tile.queued time")).to_contain_text("ago")
    assert page.evaluate(PLACES) == places
    shifted = page.evaluate("window.shifted")
    assert sum(entry[0] for entry in shifted) < 0.01, shifted
    assert complaints == []


def test_the_window_is_a_link_that_stays(page: Page, complaints: list[str]) -> None:
    page.goto("/")
    expect(page.locator("#done svg.chart g")).to_have_count(24)
    page.click("nav[aria-label=Window] a:has-text('7 days')")
    expect(page).to_have_url("/?window=7d")
    expect(page.locator("#done svg.chart g")).to_have_count(168)
    with page.expect_response("**/_fragments/overview/done?window=7d"):
        refresh(page)
    page.click("#hours summary")
    expect(page.locator("#hours tbody tr")).to_have_count(168)
    assert complaints == []
