"""A list that lives under the reader: what is checked, opened or in focus stays what it is."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Connection
from tests.support.factories import a_run, an_attempt, rows, status
from tests.support.processes import wait_until

pytestmark = pytest.mark.browser

LIVE = 15_000
# Each time the list wants to update itself and is held back.
COUNT_UPDATES = """() => {
  window.held = 0
  document.addEventListener('htmx:before:request', event => { if (event.defaultPrevented) window.held += 1 })
}"""
CANCEL = "UPDATE wakeboard.job_runs SET status = 'cancelled', finished_at = now() WHERE id = %s"
SUCCEED = "UPDATE wakeboard.job_runs SET status = 'succeeded', finished_at = now() WHERE id = %s"


def shown(page: Page) -> list[str]:
    """Return the ids of the rows on the screen, from above."""
    return [str(row.get_attribute("id")) for row in page.locator("tbody tr[id]").all()]


def checked(page: Page) -> list[str]:
    return [str(box.get_attribute("value")) for box in page.locator("input[data-row]:checked").all()]


@pytest.fixture
def runs(connection: Connection) -> list[int]:
    """Five runs that wait for an hour."""
    return [a_run(connection, "queued", run_at="1 hour") for _ in range(5)]


def test_a_checked_row_stays_the_same_run_while_the_world_goes_on(
    page: Page, runs: list[int], connection: Connection, complaints: list[str]
) -> None:
    page.goto("/runs")
    page.check(f"#box-{runs[2]}")
    before = shown(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    a_run(connection, "dead", job_type="other")
    connection.execute(
        "UPDATE wakeboard.job_runs SET status = 'cancelled', finished_at = now() WHERE id = %s", (runs[4],)
    )
    page.evaluate(COUNT_UPDATES)
    wait_until(lambda: page.evaluate("window.held >= 3"), 20, "three updates were held back")
    assert [url for url in asked if "/_fragments/runs/" in url] == []
    assert (shown(page), checked(page)) == (before, [str(runs[2])])
    page.click("[data-do=clear]")
    expect(page.locator(f"#run-{runs[4]}")).to_contain_text("cancelled", timeout=LIVE)
    expect(page.locator("#new")).to_contain_text("1 new")
    assert shown(page) == before
    assert complaints == []


def test_an_opened_trace_and_the_focus_survive_three_more_failures(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    run_id = a_run(connection, "running", attempts=2, lease_epoch=2, locked_until="10 minutes")
    again = "UPDATE wakeboard.job_runs SET attempts = %s, lease_epoch = %s WHERE id = %s"
    a_failure(connection, run_id, 2)
    connection.execute(again, (3, 3, run_id))
    page.goto(f"/runs/{run_id}")
    trace = page.locator("#attempts details", has_text="line 2 of the trace")
    trace.locator("summary").click()
    expect(trace.locator("pre")).to_be_visible()
    name = trace.get_attribute("id")
    for attempt in (3, 4, 5):
        a_failure(connection, run_id, attempt)
        connection.execute(again, (attempt + 1, attempt + 1, run_id))
        expect(page.locator("#attempts")).to_contain_text(f"no answer at try {attempt}", timeout=LIVE)
        assert page.evaluate("document.activeElement.parentElement.id") == name
        expect(trace.locator("pre")).to_be_visible()
        assert page.locator("#attempts details[open]").count() == 1
    assert complaints == []


def a_failure(connection: Connection, run_id: int, attempt: int) -> None:
    an_attempt(
        connection,
        run_id,
        attempt=attempt,
        lease_epoch=attempt,
        outcome="failed",
        error_code="smtp_down",
        error=f"no answer at try {attempt}",
        traceback=f"line {attempt} of the trace",
    )


def test_rows_in_focus_keep_it_while_their_neighbours_change(
    page: Page, runs: list[int], connection: Connection
) -> None:
    page.goto("/runs")
    page.focus(f"#to-{runs[1]}")
    for run_id in (runs[0], runs[2], runs[4]):
        connection.execute(
            "UPDATE wakeboard.job_runs SET status = 'cancelled', finished_at = now() WHERE id = %s", (run_id,)
        )
        expect(page.locator(f"#run-{run_id}")).to_contain_text("cancelled", timeout=LIVE)
        assert page.evaluate("document.activeElement.id") == f"to-{runs[1]}"


def test_cancelling_a_selection_asks_first_and_keep_is_in_focus(
    page: Page, runs: list[int], connection: Connection, complaints: list[str]
) -> None:
    page.goto("/runs")
    for run_id in runs[:3]:
        page.check(f"#box-{run_id}")
    page.click(".bulk .danger")
    dialog = page.locator("#confirm")
    expect(dialog).to_contain_text("Cancel 3 runs?")
    expect(dialog.locator("[value=keep]")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    assert {status(connection, run_id) for run_id in runs} == {"queued"}
    assert len(checked(page)) == 3
    page.click(".bulk .danger")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert {status(connection, run_id) for run_id in runs} == {"queued"}
    page.keyboard.press("c")
    dialog.locator("input").fill("the shop is closed")
    dialog.locator("[value=yes]").click()
    expect(page.locator("#toasts")).to_contain_text("3 runs cancelled.")
    expect(page.locator(f"#run-{runs[0]}")).to_contain_text("cancelled", timeout=LIVE)
    assert checked(page) == []
    assert [status(connection, run_id) for run_id in runs] == ["cancelled"] * 3 + ["queued"] * 2
    written = rows(connection, "audit_log", "action = 'run.cancel'")
    assert {(line["actor"], line["reason"]) for line in written} == {("anna", "the shop is closed")}
    assert complaints == []


def test_the_list_is_worked_with_the_keyboard_alone(
    page: Page, connection: Connection, complaints: list[str]
) -> None:
    first, second, third = (a_run(connection, "dead") for _ in range(3))
    page.goto("/runs")
    page.keyboard.press("j")
    expect_row(page, third)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect_row(page, first)
    page.keyboard.press("k")
    expect_row(page, second)
    page.keyboard.press("x")
    assert checked(page) == [str(second)]
    page.keyboard.press("x")
    assert checked(page) == []
    page.keyboard.press("r")
    wait_until(lambda: status(connection, second) == "queued", 10, "the run in focus is retried")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("r")
    wait_until(lambda: status(connection, first) == "queued", 10, "the checked run is retried")
    assert status(connection, third) == "dead"
    assert complaints == []


def expect_row(page: Page, run_id: int) -> None:
    """Expect the focus to be in the row of a run."""
    assert page.evaluate("document.activeElement.closest('tr').id") == f"run-{run_id}"


def test_shift_checks_the_rows_between(page: Page, runs: list[int]) -> None:
    page.goto("/runs")
    page.click(f"#box-{runs[4]}")
    page.click(f"#box-{runs[1]}", modifiers=["Shift"])
    assert checked(page) == [str(run_id) for run_id in reversed(runs[1:])]
    expect(page.locator(".bulk b[data-count]")).to_have_text("4")


def test_a_verb_that_comes_too_late_says_so_and_shows_what_is(
    page: Page, runs: list[int], connection: Connection
) -> None:
    page.goto("/runs")
    page.click("#pause")
    connection.execute(SUCCEED, (runs[0],))
    page.focus(f"#to-{runs[0]}")
    page.keyboard.press("c")
    page.click("#confirm [value=yes]")
    expect(page.locator("#toasts .refused")).to_contain_text(f"Run {runs[0]} already")
