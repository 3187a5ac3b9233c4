"""All that match: from the filtered list to the preview, the start, the progress, a pause and the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import Connection
from tests.support.browsers import Dashboard, follow, profile
from tests.support.factories import a_type, rows
from tests.support.workers.bulk_operations import operation
from tests.support.workers.worker_processes import a_worker as a_real_worker

pytestmark = pytest.mark.browser

LIVE = 30_000


@pytest.fixture
def many(connection: Connection) -> None:
    """120 dead runs."""
    a_type(connection, "quick")
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, status, attempts, failures, lease_epoch, started_at,
            finished_at, failed_at, error_code, max_attempts)
        SELECT 'quick', 'dead', 1, 1, 1, now(), now(), now(), 'smtp_down', 1 FROM generate_series(1, 120)"""
    )


@pytest.mark.usefixtures("many")
def test_all_that_match_are_previewed_begun_watched_paused_and_aborted(
    page: Page, database: str, connection: Connection, complaints: list[str]
) -> None:
    page.goto("/runs?status=dead&type=quick")
    page.click("#all-retry")
    expect(page.locator("h1")).to_have_text("Retry 120 runs?")
    expect(page.locator("main")).to_contain_text("queued afresh")
    page.uncheck("[name=canary]")
    page.fill("[name=per_minute]", "60")
    page.fill("[name=reason]", "CRM is back")
    page.fill("[name=confirm]", "12")
    page.click("form.card button.primary")
    assert rows(connection, "operations") == [], "the browser sends no wrong number"
    page.fill("[name=confirm]", "120")
    page.click("form.card button.primary")
    page.wait_for_url("**/operations/1")
    expect(page.locator("#toasts")).to_contain_text("Operation 1 has begun: retry 120 runs.")
    expect(page.locator("#state")).to_contain_text("No worker is alive to move them.")
    with a_real_worker(database, ready=connection):
        expect(page.locator("#state")).to_contain_text("Retrying, 60 a minute", timeout=LIVE)
        expect(page.locator("#runs tbody tr").first).to_contain_text("succeeded", timeout=LIVE)
        page.click("#do-pause")
        expect(page.locator("#state")).to_contain_text("Nothing is moved until it is resumed", timeout=LIVE)
        page.click("#do-resume")
        expect(page.locator("#do-pause")).to_be_visible(timeout=LIVE)
        expect(page.locator("#facts")).to_contain_text("not yet")
        page.click("#do-abort")
        expect(page.locator("#confirm [value=keep]")).to_be_focused()
        page.click("#confirm [value=yes]")
        expect(page.locator("#state")).to_contain_text("Aborted after", timeout=LIVE)
        expect(page.locator("#facts")).not_to_contain_text("not yet", timeout=LIVE)
    done = operation(connection, 1)["done"]
    assert 0 < done < 120
    expect(page.locator("#state")).to_contain_text("left as they are")
    assert complaints == []


@pytest.fixture
def plain(chromium: Browser, dashboard: Dashboard, connection: Connection) -> Iterator[Page]:
    """A tab of a browser that runs no scripts."""
    with profile(chromium, dashboard.url, connection, java_script_enabled=False) as opened:
        yield opened.new_page()


@pytest.mark.usefixtures("many")
def test_without_a_script_the_same_links_and_forms_do_it(plain: Page, connection: Connection) -> None:
    plain.goto("/runs?status=dead&type=quick")
    follow(plain, plain.locator("#all-retry"))
    plain.fill("[name=confirm]", "120")
    follow(plain, plain.locator("form.card button.primary"))
    assert plain.url.endswith("/operations/1")
    follow(plain, plain.locator("#do-pause"))
    assert operation(connection, 1)["status"] == "paused"
    follow(plain, plain.locator("#do-abort"))
    follow(plain, plain.locator("form.card button.primary"))
    assert operation(connection, 1)["status"] == "aborted"
    assert "Aborted after 0 runs retried" in plain.inner_text("main")


def test_chosen_runs_are_seen_first_and_many_are_typed(page: Page, connection: Connection) -> None:
    connection.execute(
        """INSERT INTO wakeboard.job_runs (job_type, run_at)
        SELECT 'mail', now() + interval '1 hour' FROM generate_series(1, 101)"""
    )
    page.goto("/runs?limit=200")
    page.locator("input[data-row]").first.check()
    page.get_by_role("button", name="Retry…", exact=True).click()
    expect(page.locator("main")).to_contain_text("Moved: 1 queued, due now instead of later.")
    page.goto("/runs?limit=200")
    page.check("#box-all")
    page.locator(".bulk .primary").click()
    page.locator("#confirm [value=yes]").click()
    expect(page.get_by_label("Type 101 to confirm")).to_be_visible()
    assert rows(connection, "audit_log", "action = 'run.retry'") == []
    page.get_by_label("Type 101 to confirm").fill("101")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator("#toasts")).to_contain_text("101 runs due now.")
