"""The audit log and the page of the system in a browser: choices that filter, and a replica that is late."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.conftest import Connection
from tests.support.factories import insert

pytestmark = pytest.mark.browser
# A navigation on a machine that has other work.
SLOW = 30_000
ENTRY = {"actor": "anna", "role": "operator", "source": "web", "action": "run.retry", "result": "done"}


def test_a_choice_filters_at_once_and_keeps_the_others(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    insert(connection, "audit_log", ENTRY | {"target_type": "run", "target_id": "7"})
    insert(connection, "audit_log", ENTRY | {"actor": "ben", "result": "denied"})
    page.goto("/audit")
    page.get_by_label("Who").select_option("ben")
    expect(page).to_have_url(re.compile(r"who=ben"), timeout=SLOW)
    page.get_by_label("Result").select_option("refused, in any way")
    expect(page).to_have_url(re.compile(r"who=ben.*result=forbidden"), timeout=SLOW)
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody .badge")).to_have_text("denied")
    page.goto("/audit")
    page.get_by_role("link", name="run", exact=True).click()
    expect(page).to_have_url(re.compile(r"target=run:7"), timeout=SLOW)
    assert complaints == []


@pytest.mark.parametrize("button", ["Filter", "Show"])
def test_times_that_were_typed_go_along_with_every_button_and_choice(
    page: Page, connection: Connection, complaints: list[str], button: str
) -> None:
    insert(connection, "audit_log", ENTRY)
    page.goto("/audit")
    page.locator("#between summary").click()
    page.get_by_label("From, ").fill("2026-11-20T08:00")
    page.get_by_label("Until, ").fill("2036-11-20T09:00")
    page.get_by_label("Reason contains").fill("CRM")
    page.get_by_role("button", name=button, exact=True).click()
    typed = r"since=2026-11-20T08:00(:00Z)?&until=2036-11-20T09:00(:00Z)?"
    expect(page).to_have_url(re.compile(rf"/audit\?{typed}&q=CRM$"), timeout=SLOW)
    page.get_by_label("Reason contains").fill("")
    page.get_by_label("Who").select_option("anna")
    expect(page).to_have_url(re.compile(rf"/audit\?who=anna&{typed}$"), timeout=SLOW)
    page.locator("select[name=in]").select_option("the last 7 days")
    expect(page).to_have_url(
        re.compile(r"/audit\?who=anna&since=7d&until=2036-11-20T09:00:00Z$"), timeout=SLOW
    )
    assert complaints == []


def test_a_live_page_says_when_its_replica_falls_behind_and_when_it_is_back(
    page: Page, complaints: list[str]
) -> None:
    seconds = 0

    def late(route: Route) -> None:
        answer = route.fetch()
        headers = answer.headers | ({"x-wakeboard-behind": str(seconds)} if seconds else {})
        route.fulfill(response=answer, headers=headers)

    page.route("**/_fragments/**", late)
    page.goto("/system")
    banner = page.locator("#behind")
    expect(page.get_by_role("heading", name="What this dashboard costs")).to_be_visible()
    expect(banner).to_be_hidden()
    seconds = 75
    expect(banner).to_contain_text("is read from a replica that is 1 min behind", timeout=SLOW)
    seconds = 0
    expect(banner).to_be_hidden(timeout=SLOW)
    assert complaints == []
