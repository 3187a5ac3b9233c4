"""An operator sees what fires, silences it, and tries whether messages arrive."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import Connection
from tests.support.browsers import Dashboard, profile
from tests.support.factories import a_run, rows
from tests.support.receivers import Mailbox, Receiver, mailbox, receiver
from wakeboard.alerts.evaluation import RuleEvaluator
from wakeboard.config.settings import Settings

pytestmark = pytest.mark.browser
__all__ = ["mailbox", "receiver"]
LIVE = 15_000


@pytest.fixture(autouse=True)
def channels(monkeypatch: pytest.MonkeyPatch, mailbox: Mailbox, receiver: Receiver) -> None:
    """Both channels, known to the dashboard that is started afterwards."""
    for name, value in {**mailbox.environment, **receiver.environment}.items():
        monkeypatch.setenv(name, value)


def test_a_rule_that_fires_is_silenced_for_a_while(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    a_run(connection, "dead")
    page.goto("/alerts")
    # The dashboard's own watcher may have looked just before the run was there.
    connection.execute("UPDATE wakeboard.alert_rules SET checked_at = NULL")
    RuleEvaluator("worker", Settings.load({}, environ={})).step(connection)
    dead = page.locator("#rules tr", has_text="Runs that gave up")
    expect(dead).to_contain_text("1 run died in the last 1 h", timeout=LIVE)
    expect(page).to_have_title("(1) Alerts – Wakeboard")
    dead.get_by_role("link", name="Silence").click()
    page.locator("select[name=for]").select_option("8h")
    page.locator("main input[name=reason]").fill("the mail server moves")
    page.locator("main form").get_by_role("button", name="Silence").click()
    expect(page.locator("#toasts")).to_contain_text("is silenced until")
    expect(dead).to_contain_text("silenced")
    assert rows(connection, "audit_log", "action = 'alert.silence'")[0]["reason"] == "the mail server moves"
    assert complaints == []


def test_the_test_button_shows_what_the_other_side_answered(
    page: Page, mailbox: Mailbox, receiver: Receiver, complaints: list[str]
) -> None:
    page.goto("/alerts")
    page.locator("#test-mail").click()
    expect(page.locator("#toasts")).to_contain_text("accepted the mail", timeout=LIVE)
    expect(page.locator("#messages")).to_contain_text("sent", timeout=LIVE)
    assert [letter["To"] for letter in mailbox.letters] == ["ops@example.org, night@example.org"]
    page.locator("#test-webhook").click()
    expect(page.locator("#toasts")).to_contain_text("answered 204", timeout=LIVE)
    assert receiver.is_genuine()
    assert complaints == []


def test_a_test_that_fails_says_why(page: Page, receiver: Receiver) -> None:
    receiver.status = 500
    page.goto("/alerts")
    page.locator("#test-webhook").click()
    expect(page.locator("#toasts")).to_contain_text("answered 500", timeout=LIVE)
    expect(page.locator("#messages")).to_contain_text("not sent", timeout=LIVE)


def test_without_script_a_test_is_sent_and_its_answer_shown(
    chromium: Browser, dashboard: Dashboard, connection: Connection, mailbox: Mailbox
) -> None:
    with profile(chromium, dashboard.url, connection, java_script_enabled=False) as bare:
        page = bare.new_page()
        page.goto("/alerts")
        page.locator("#test-mail").click()
        expect(page.locator("body")).to_contain_text("accepted the mail")
        assert len(mailbox.letters) == 1
