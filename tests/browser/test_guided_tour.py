"""From an alert to the cause, to a paced retry of all that it hit, to the audit row: six clicks at most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import Connection
from tests.support.factories import rows
from tests.support.processes import Wakeboard, wait_until
from tests.support.workers.bulk_operations import operation
from tests.support.workers.worker_processes import a_worker, insert
from wakeboard.core.rule_types import KINDS

pytestmark = pytest.mark.browser

FAILED = 12
LIVE = 30_000
MOST_CLICKS = 6
MOST_TABS = 120


class Mouse:
    """A person with a mouse, whose clicks are counted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def follow(self, target: Locator) -> None:
        """Click what leads on."""
        target.first.click()
        self.clicks += 1

    def write(self, field: Locator, text: str) -> None:
        """Fill a field; the click into it is one."""
        field.click()
        self.clicks += 1
        field.press_sequentially(text)


class Keyboard:
    """A person without a mouse: Tab until it has the focus, then Enter or letters."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def _reach(self, target: Locator) -> None:
        for _ in range(MOST_TABS):
            if target.first.evaluate("each => each === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"{MOST_TABS} times Tab does not lead to {target}")

    def follow(self, target: Locator) -> None:
        """Go to what leads on and press Enter."""
        self._reach(target)
        self.page.keyboard.press("Enter")

    def write(self, field: Locator, text: str) -> None:
        """Go to a field and type."""
        self._reach(field)
        self.page.keyboard.type(text)


@pytest.fixture
def repaired(tmp_path: Path) -> Path:
    """The file that lets the partner answer."""
    return tmp_path / "repaired"


@pytest.fixture
def worker(database: str, connection: Connection, repaired: Path) -> Iterator[Wakeboard]:
    """A worker whose partner was down: its runs are dead, each with a message of its own."""
    for number in range(FAILED):
        insert(connection, "bill_customer", {"repaired": str(repaired), "invoice": number})
    with a_worker(database, APP="tests.support.workers.apps.crm", ready=connection) as started:
        wait_until(lambda: len(rows(connection, "job_runs", "status = 'dead'")) == FAILED, 30, "all are dead")
        yield started


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("person", [Mouse, Keyboard])
@pytest.mark.parametrize("alert", ["failures_rise", "dead_runs"])
def test_an_alert_leads_to_the_cause_a_paced_retry_and_its_audit_row(
    page: Page,
    connection: Connection,
    repaired: Path,
    complaints: list[str],
    person: type[Mouse] | type[Keyboard],
    alert: str,
) -> None:
    page.goto(KINDS[alert].page)
    somebody = person(page)
    if alert == "dead_runs":
        somebody.follow(page.locator("tbody a[id^=to-]"))
        expect(page.locator("main")).to_contain_text("The CRM answered 503 to invoice")
    somebody.follow(page.locator("main a.mono", has_text="crm_down"))
    expect(page.locator("h1")).to_have_text("Error crm_down")
    expect(page.locator("main")).to_contain_text("The CRM answered <n> to invoice <n>")
    expect(page.locator("main")).to_contain_text("crm.py in bill_customer")
    repaired.touch()
    somebody.follow(page.locator("a", has_text="Retry this group"))
    expect(page.locator("h1")).to_have_text(f"Retry {FAILED} runs?")
    somebody.write(page.locator("[name=per_minute]"), "600")
    somebody.follow(page.locator("form.card button.primary"))
    page.wait_for_url("**/operations/1")
    expect(page.locator("#state")).to_contain_text("Finished", timeout=LIVE)
    somebody.follow(page.locator("a", has_text="Who did what to it"))
    expect(page.locator("tbody tr").last).to_contain_text("anna")
    assert somebody.clicks <= MOST_CLICKS
    found = operation(connection, 1)
    assert (found["status"], found["done"], found["per_minute"]) == ("finished", FAILED, 600)
    wait_until(lambda: len(rows(connection, "job_runs", "status = 'succeeded'")) == FAILED, 30, "all succeed")
    assert complaints == []
