"""Leases count down before the eye, and verbs that ask first keep the reason that was given."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Connection
from tests.support.factories import a_run, a_type, a_worker, rows, status
from tests.support.processes import wait_until

pytestmark = pytest.mark.browser

LIVE = 15_000
RENEW = "UPDATE wakeboard.job_runs SET locked_until = now() + interval '28 seconds' WHERE id = %s"

BEYOND_THE_FRAME = """() => [...document.querySelectorAll('#list .frame :is(button, .button, th, td)')]
  .filter(each => each.getBoundingClientRect().right > each.closest('.frame').getBoundingClientRect().right)
  .map(each => each.outerHTML.slice(0, 100))"""


def test_a_lease_runs_down_until_it_is_renewed(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    worker = a_worker(connection)
    run_id = a_run(connection, "running", locked_by=worker, locked_until="20 seconds")
    page.goto("/leases")
    bar = f"document.querySelector('#left-{run_id}').value"
    before = page.evaluate(bar)
    assert 5 < before <= 20
    wait_until(lambda: page.evaluate(bar) < before - 1, sentence="the bar runs down")
    connection.execute(RENEW, (run_id,))
    wait_until(lambda: page.evaluate(bar) > 20, sentence="the bar is full again")
    assert complaints == []


def test_the_run_of_a_silent_worker_is_taken_and_leaves_the_list(page: Page, connection: Connection) -> None:
    run_id = a_run(connection, "running", locked_by=a_worker(connection, seen="-1 hour"))
    page.goto("/leases")
    expect(page).to_have_title("(1) Leases – Wakeboard")
    page.click(f"#release-{run_id}")
    dialog = page.locator("#confirm")
    expect(dialog).to_contain_text(f"Take run {run_id} from its worker?")
    dialog.locator("input").fill("its machine burnt")
    dialog.locator("[value=yes]").click()
    expect(page.locator("#list")).to_contain_text("Nothing runs now", timeout=LIVE)
    expect(page).to_have_title("Leases – Wakeboard")
    assert status(connection, run_id) == "failed"
    assert [row["reason"] for row in rows(connection, "audit_log", "action = 'lease.release'")] == [
        "its machine burnt"
    ]


def test_a_type_is_paused_with_a_reason_that_all_can_read(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    a_type(connection, "mail/letters & more")
    page.goto("/types")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.locator("#confirm input").fill("the post is on strike")
    page.locator("#confirm [value=yes]").click()
    expect(page.locator("#list")).to_contain_text("the post is on strike", timeout=LIVE)
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible(timeout=LIVE)
    assert rows(connection, "job_types")[0]["paused_at"] is None
    assert complaints == []


@pytest.mark.parametrize("width", [1280, 1024])
def test_the_buttons_of_types_stay_in_the_frame_whatever_is_said_beside_them(
    page: Page, connection: Connection, width: int
) -> None:
    a_type(connection, "send_the_monthly_statement_of_account_to_all_customers", max_running=20)
    a_type(connection, "mail", keep_succeeded_days=14, keep_dead_days=90, lease_seconds=120, memory_mb=512)
    connection.execute(
        "UPDATE wakeboard.job_types SET paused_at = now(), paused_by = 'anna', paused_reason = %s"
        " WHERE name = 'mail'",
        ("the post is on strike until further notice",),
    )
    a_run(connection, "dead", job_type="mail", error_code="UPSTREAM_REFUSED_THE_CONNECTION")
    page.set_viewport_size({"width": width, "height": 800})
    page.goto("/types")
    expect(page.locator("#list")).to_contain_text("UPSTREAM_REFUSED_THE_CONNECTION")
    assert page.evaluate(BEYOND_THE_FRAME) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_limit_is_set_on_a_page_of_its_own(page: Page, connection: Connection) -> None:
    a_type(connection, "mail")
    page.goto("/types")
    page.get_by_role("link", name="Limit").click()
    page.get_by_label("At most, over all workers").fill("3")
    page.get_by_role("button", name="Limit").click()
    expect(page.locator("#toasts")).to_contain_text("runs at most 3 at once")
    expect(page.locator("#list")).to_contain_text("of 3")
