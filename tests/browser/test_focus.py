"""Where the focus goes when a verb takes its button's place away: to what stands there then, or near it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Connection
from tests.support.browsers import refresh
from tests.support.factories import a_definition, a_group, a_run, a_type, a_worker
from tests.support.workers.bulk_operations import begin

pytestmark = pytest.mark.browser

LIVE = 15_000
FOCUSED = "document.activeElement.id || document.activeElement.tagName"
SUCCEED = """UPDATE wakeboard.job_runs SET status = 'succeeded', finished_at = now(), locked_by = NULL,
    locked_until = NULL WHERE id = %s"""


def press(page: Page, button: str, *, asks: bool = True) -> None:
    """Press the button by the keyboard alone, and say yes where it asks."""
    page.locator(button).focus()
    page.keyboard.press("Enter")
    if asks:
        expect(page.locator("#confirm [value=keep]")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")


def focused(page: Page, element: str) -> None:
    expect(page.locator(element)).to_be_focused(timeout=LIVE)


def test_pause_and_resume_of_a_schedule_hand_the_focus_to_each_other(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    for name in ("hourly", "nightly", "weekly"):
        a_definition(connection, name)
    page.goto("/schedules")
    press(page, "#pause-nightly")
    focused(page, "#resume-nightly")
    page.keyboard.press("Enter")
    focused(page, "#pause-nightly")
    page.goto("/schedules/nightly")
    press(page, "#do-pause")
    focused(page, "#do-resume")
    assert complaints == []


def test_so_do_those_of_a_type_in_the_list_and_on_its_page(page: Page, connection: Connection) -> None:
    for name in ("letters", "mail"):
        a_type(connection, name)
    for address, within in (("/types", "#list tr:has-text('mail')"), ("/types/mail", "#state")):
        page.goto(address)
        press(page, f"{within} button:has-text('Pause')")
        focused(page, f"{within} button:has-text('Resume')")
        page.keyboard.press("Enter")
        focused(page, f"{within} button:has-text('Pause')")


def test_so_do_drain_and_undrain_of_a_worker(page: Page, connection: Connection) -> None:
    name = a_worker(connection)
    for address in ("/workers", f"/workers/{quote(name)}"):
        page.goto(address)
        press(page, "[id^=drain-]")
        focused(page, "[id^=undrain-]")
        page.keyboard.press("Enter")
        focused(page, "[id^=drain-]")
    press(page, "[id^=stop-]")
    expect(page.locator("[id^=stop-]")).to_be_disabled(timeout=LIVE)
    assert page.evaluate(FOCUSED) != "BODY"


def test_the_verbs_of_a_run_keep_the_focus_beside_them(page: Page, connection: Connection) -> None:
    dead, silent = a_run(connection, "dead"), a_worker(connection, seen="-1 hour")
    page.goto(f"/runs/{dead}")
    press(page, "#do-retry", asks=False)
    expect(page.locator("#do-retry")).to_be_disabled(timeout=LIVE)
    focused(page, "#do-cancel")
    press(page, "#do-cancel")
    focused(page, "#do-again")
    page.goto(f"/runs/{a_run(connection, 'running', locked_by=silent)}")
    press(page, "#do-release")
    focused(page, "#do-cancel")
    page.goto(f"/runs/{a_run(connection, 'running', locked_by=a_worker(connection))}")
    press(page, "#do-cancel")
    focused(page, "#state [data-verbs] a")


def test_those_of_an_operation_end_at_the_heading_of_its_page(page: Page, connection: Connection) -> None:
    a_run(connection, "dead")
    page.goto(f"/operations/{begin(connection, 'retry')}")
    press(page, "#do-pause", asks=False)
    focused(page, "#do-resume")
    press(page, "#do-resume", asks=False)
    focused(page, "#do-pause")
    press(page, "#do-abort")
    focused(page, "h1")


def test_a_group_that_is_muted_no_longer_leaves_the_focus_near(page: Page, connection: Connection) -> None:
    muted: dict[str, Any] = {"muted_until": "2 hours", "muted_by": "anna"}
    for code in ("smtp_down", "smtp_full"):
        group = a_group(connection, code=code, **muted)
        a_run(connection, "dead", error_code=code, error_group=group)
    page.goto("/errors")
    press(page, "tr[id^=muted-] >> nth=0 >> button", asks=False)
    expect(page.locator("tr[id^=muted-]")).to_have_count(1, timeout=LIVE)
    focused(page, "#groups tbody tr:not([id^=muted-]) a >> nth=0")
    page.locator("tr[id^=muted-] a").first.click()
    press(page, "#unmute", asks=False)
    expect(page.locator("#unmute")).to_have_count(0, timeout=LIVE)
    focused(page, "#facts .row a.button >> nth=1")


def test_a_row_that_leaves_hands_the_focus_to_the_next_and_the_last_one_to_the_heading(
    page: Page, connection: Connection
) -> None:
    worker = a_worker(connection)
    runs = [a_run(connection, "running", locked_by=worker, started_at=f"-{age} minutes") for age in (3, 2)]
    page.goto(f"/workers/{quote(worker)}")
    page.locator(f"#cancel-{runs[0]}").focus()
    connection.execute(SUCCEED, (runs[0],))
    focused(page, f"#run-{runs[1]} a")
    connection.execute(SUCCEED, (runs[1],))
    heading = page.locator("#runs h2")
    expect(heading).to_be_focused(timeout=LIVE)
    a_run(connection, "running", locked_by=worker)
    expect(page.locator("#runs tbody tr")).to_have_count(1, timeout=LIVE)
    expect(heading).to_be_focused()
    page.locator("#runs tbody a").focus()
    a_run(connection, "running", locked_by=worker)
    expect(page.locator("#runs tbody tr")).to_have_count(2, timeout=LIVE)
    expect(page.locator("#runs tbody a").first).to_be_focused()


def test_the_focus_comes_back_at_whatever_poll_takes_its_button_away(
    page: Page, connection: Connection
) -> None:
    a_definition(connection, "nightly")
    turn = "UPDATE wakeboard.job_definitions SET enabled = NOT enabled"
    page.goto("/schedules")
    page.locator("#pause-nightly").focus()
    connection.execute(turn)
    focused(page, "#resume-nightly")
    connection.execute(turn)
    focused(page, "#pause-nightly")
    # While the dialog asks, somebody else does it.
    page.keyboard.press("Enter")
    connection.execute(turn)
    expect(page.locator("#resume-nightly")).to_have_count(1, timeout=LIVE)
    page.keyboard.press("Escape")
    focused(page, "#resume-nightly")
    connection.execute("DELETE FROM wakeboard.job_definitions")
    expect(page.locator("#list")).to_contain_text("There are no schedules yet", timeout=LIVE)
    focused(page, "h1")


def test_whoever_has_gone_on_keeps_the_focus_where_it_is(page: Page, connection: Connection) -> None:
    for number in range(40):
        a_definition(connection, f"nightly-{number:02}")
    turn = "UPDATE wakeboard.job_definitions SET enabled = NOT enabled WHERE name = 'nightly-20'"
    page.goto("/schedules")
    press(page, "#pause-nightly-20")
    page.locator("[data-filter]").focus()
    expect(page.locator("#resume-nightly-20")).to_be_visible(timeout=LIVE)
    assert page.evaluate("document.activeElement.matches('[data-filter]')")
    page.locator("#resume-nightly-20").focus()
    page.evaluate("scrollTo(0, 0)")
    connection.execute(turn)
    focused(page, "#pause-nightly-20")
    assert page.evaluate("scrollY") == 0
    page.locator("h1").click()
    assert page.evaluate(FOCUSED) != "pause-nightly-20"
    before = page.evaluate(FOCUSED)
    connection.execute(turn)
    expect(page.locator("#resume-nightly-20")).to_have_count(1, timeout=LIVE)
    refresh(page)
    page.wait_for_load_state("networkidle")
    assert page.evaluate(FOCUSED) == before
