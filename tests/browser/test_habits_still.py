"""No page jumps: neither while it loads, nor while everything on it changes, nor when things go wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.test_every_page import A_LITTLE_LATER, DESK, PAINTED, PHONE, SHIFTS, furnish
from tests.conftest import Connection
from tests.support.browsers import Dashboard, profile, refresh, serving
from tests.support.factories import a_run, an_attempt
from wakeboard.core.errors.error_groups import parse_fingerprint

pytestmark = pytest.mark.browser

# One of each page that has something live of its own, and one that has not.
ADDRESSES = ["/", "/runs", "/runs/1", "/runs/5", "/runs?status=dead", "/errors"]
ADDRESSES += ["/leases", "/schedules", "/schedules/nightly", "/types", "/workers", "/audit", "/effects"]
ADDRESSES += ["/alerts", "/system", "/night", "/display", "/errors/smtp_down", "/errors/{group}"]


@pytest.fixture(scope="module")
def group(shared: Connection) -> str:
    """Rows of every kind; what the address of one error group has."""
    return furnish(shared)["<group:"][0]


@pytest.fixture(scope="module")
def place(chromium: Browser, shared_database: str, group: str) -> Iterator[Dashboard]:
    """A dashboard over rows of every kind."""
    with serving(shared_database) as served:
        yield served


def shifted(page: Page) -> list[list[object]]:
    """Return the layout shifts since the page was asked for."""
    page.evaluate(PAINTED)
    found: list[list[object]] = page.evaluate("window.shifted")
    return found


def total(found: list[list[object]]) -> float:
    return sum(float(str(entry[0])) for entry in found)


def fail(connection: Connection, code: str, group: str | None = None) -> None:
    """Let a run die of an error."""
    number = group and parse_fingerprint(group)
    run = a_run(connection, "dead", error_code=code, error_group=number, attempts=0)
    an_attempt(
        connection,
        run,
        outcome="failed",
        error_code=code,
        error_group=number,
        error="What happened, in words",
    )


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_no_page_jumps_while_it_loads_and_while_everything_changes(
    place: Dashboard, chromium: Browser, shared: Connection, group: str, viewport: dict[str, int]
) -> None:
    jumped = {}
    with profile(chromium, place.url, shared, viewport=viewport) as opened:
        opened.add_init_script(f"({SHIFTS})()")
        page = opened.new_page()
        for address in ADDRESSES:
            page.goto(address.format(group=group))
            page.wait_for_load_state("networkidle")
            loading = shifted(page)
            for statement in A_LITTLE_LATER:
                shared.execute(statement.encode())
            fail(shared, "smtp_down")
            fail(shared, "E" * 90, group)
            with page.expect_response("**/_fragments/shell/attention"):
                refresh(page)
            page.wait_for_load_state("networkidle")
            found = shifted(page)
            if total(loading) >= 0.01 or total(found) - total(loading) >= 0.01:
                jumped[address] = (loading, found[len(loading) :])
    assert jumped == {}, jumped


def test_the_banner_and_the_count_move_nothing(
    place: Dashboard, chromium: Browser, shared: Connection
) -> None:
    with profile(chromium, place.url, shared) as opened:
        opened.add_init_script(f"({SHIFTS})()")
        page = opened.new_page()
        page.goto("/audit")
        page.wait_for_load_state("networkidle")
        opened.set_offline(True)
        expect(page.locator("#stale")).to_be_visible(timeout=20_000)
        opened.set_offline(False)
        expect(page.locator("#stale")).to_be_hidden(timeout=15_000)
        assert total(shifted(page)) < 0.01, shifted(page)
