"""Without JavaScript: every page is readable, and every verb is done by links and forms alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.test_every_page import NOT_PAGES, fill, furnish
from tests.conftest import Connection
from tests.support.browsers import Dashboard, follow, profile, serving, sign_in
from tests.support.factories import a_definition, a_run, a_type, a_worker, insert, rows, status
from wakeboard.config.settings import Settings
from wakeboard.core.states import VERBS
from wakeboard_dashboard import create_app

pytestmark = pytest.mark.browser

WORDS = re.compile(r"\S")
DATE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
ADDRESS = "postgresql://nobody@127.0.0.1:1/nothing"


@dataclass(frozen=True)
class Way:
    """How a verb is reached: the page that offers it, its own path, what its question wants to know."""

    page: str
    path: str
    fields: dict[str, str] = field(default_factory=dict)


def of_run(state: str, verb: str) -> Callable[[Connection], Way]:
    def way(connection: Connection) -> Way:
        run_id = a_run(connection, state)
        return Way(f"/runs/{run_id}", f"/runs/{run_id}/{verb}")

    return way


def of_lease(connection: Connection) -> Way:
    silent = a_worker(connection, seen="-1 hour")
    run_id = a_run(connection, "running", locked_by=silent, locked_until="-1 minute")
    return Way("/leases", f"/leases/{run_id}/release")


def of_schedule(verb: str) -> Callable[[Connection], Way]:
    def way(connection: Connection) -> Way:
        name = f"nightly-{verb}"
        a_definition(connection, name, enabled=verb != "resume")
        return Way(f"/schedules/{name}", f"/schedules/{name}/{verb}")

    return way


def of_type(verb: str, **fields: str) -> Callable[[Connection], Way]:
    def way(connection: Connection) -> Way:
        name = a_type(connection, f"type-{verb}")
        if verb == "resume":
            connection.execute(
                "UPDATE wakeboard.job_types SET paused_at = now(), paused_by = 'ben' WHERE name = %s", (name,)
            )
        return Way(f"/types?q={name}", f"/types/{name}/{verb}", fields)

    return way


def of_worker(verb: str, **columns: Any) -> Callable[[Connection], Way]:
    def way(connection: Connection) -> Way:
        worker = a_worker(connection, **columns)
        return Way("/workers", f"/workers/{worker}/{verb}")

    return way


def of_effect(connection: Connection) -> Way:
    run_id = a_run(connection, "dead")
    values = {"key": "letter", "attempt": 1, "lease_epoch": 1, "status": "started"}
    effect = insert(connection, "effects", {**values, "scope": f"run:{run_id}", "run_id": run_id})
    return Way("/effects", f"/effects/{effect}/settle", {"happened": "yes"})


def of_rule(verb: str, **fields: str) -> Callable[[Connection], Way]:
    def way(connection: Connection) -> Way:
        rule = rows(connection, "alert_rules")[0]["id"]
        return Way("/alerts", f"/alerts/{rule}/{verb}", fields)

    return way


def of_view(connection: Connection) -> Way:
    values = {"page": "runs", "name": "Dead mail", "query": "status=dead&type=mail", "created_by": "anna"}
    view = insert(connection, "saved_views", values)
    return Way("/runs?status=dead&type=mail", f"/runs/views/{view}/remove")


WAYS: dict[str, Callable[[Connection], Way]] = {
    "run.retry": of_run("dead", "retry"),
    "run.cancel": of_run("queued", "cancel"),
    "run.again": of_run("succeeded", "again"),
    "lease.release": of_lease,
    "schedule.run": of_schedule("run"),
    "schedule.pause": of_schedule("pause"),
    "schedule.resume": of_schedule("resume"),
    "type.pause": of_type("pause"),
    "type.resume": of_type("resume"),
    "run.enqueue": lambda _: Way("/runs", "/runs/enqueue", {"type": "mail", "payload": '{"to": 7}'}),
    "type.limit": of_type("limit", limit="3"),
    "type.keep": of_type("keep", succeeded_days="9"),
    "worker.drain": of_worker("drain"),
    "worker.undrain": of_worker("undrain", drain_requested_at="-1 minute"),
    "worker.stop": of_worker("stop"),
    "effect.settle": of_effect,
    "alert.edit": of_rule("edit", enabled="0"),
    "alert.silence": of_rule("silence"),
    "view.save": lambda _: Way("/runs?status=cancelled", "/runs/views/save", {"name": "Cancelled"}),
    "view.remove": of_view,
}


def rules() -> dict[str, list[str]]:
    """Return the addresses' patterns by the last part of their endpoint, for those that are GET and POST."""
    app = create_app(Settings.load({"database_url": ADDRESS}, environ={}))
    found: dict[str, list[str]] = {}
    for rule in app.url_map.iter_rules():
        if {"GET", "POST"} <= (rule.methods or set()) and not rule.rule.startswith("/demo"):
            found.setdefault(rule.endpoint.rpartition(".")[2], []).append(rule.rule)
    return found


VERB_RULES = rules()
ON_PAGES = [action for action in VERBS if action.replace(".", "_") in VERB_RULES]
# Those that no way above leads to: asked at their own path, with the rows that every page is looked at with.
OTHERS = [action for action in ON_PAGES if action not in WAYS]


@dataclass
class World:
    """A dashboard over rows of every kind, and what to put into its addresses."""

    dashboard: Dashboard
    connection: Connection
    filling: dict[str, list[str]]


@pytest.fixture(scope="module")
def world(chromium: Browser, shared_database: str, shared: Connection) -> Iterator[World]:
    """Rows of every kind, and a dashboard on them."""
    filling = furnish(shared)
    with serving(shared_database) as served:
        yield World(served, shared, filling)


@pytest.fixture(scope="module")
def plain(world: World, chromium: Browser) -> Iterator[BrowserContext]:
    """A browser without JavaScript in which anna is signed in as an admin."""
    with profile(chromium, world.dashboard.url, world.connection, java_script_enabled=False) as opened:
        yield opened


@pytest.fixture
def page(plain: BrowserContext) -> Iterator[Page]:
    """A tab of ``plain``."""
    opened = plain.new_page()
    yield opened
    opened.close()


def posts(page: Page) -> list[tuple[str, int]]:
    """Collect (path, code) of every form that ``page`` sends from here on."""
    sent: list[tuple[str, int]] = []

    def heard(method: str, address: str, code: int) -> None:
        if method == "POST":
            sent.append((urlsplit(address).path, code))

    page.on("response", lambda response: heard(response.request.method, response.url, response.status))
    return sent


def test_every_page_can_be_read(world: World, page: Page) -> None:
    app = create_app(Settings.load({"database_url": ADDRESS}, environ={}))
    patterns = [rule.rule for rule in app.url_map.iter_rules() if "GET" in (rule.methods or ())]
    addresses = {
        each for rule in patterns if not NOT_PAGES.search(rule) for each in fill(rule, world.filling)
    }
    assert len(addresses) > 30
    wrong = []
    for address in sorted(addresses):
        answer = page.goto(address)
        assert answer is not None
        found = {
            "status": answer.status,
            "headings": page.locator("h1:visible").count(),
            "controls of the script": page.locator(".needs-js:visible").count(),
            "empty live regions": page.locator("main [data-live]:visible").filter(has_not_text=WORDS).count(),
            "times that are no dates": page.locator("time[data-relative]").filter(has_not_text=DATE).count(),
        }  # fmt: skip
        if list(found.values()) != [200, 1, 0, 0, 0]:
            wrong.append((address, found))
    assert wrong == []


@pytest.mark.parametrize("action", [action for action in ON_PAGES if action in WAYS])
def test_a_verb_is_done_from_its_page_by_links_and_forms(world: World, page: Page, action: str) -> None:
    way = WAYS[action](world.connection)
    sent = posts(page)
    page.goto(way.page)
    last = f"[formaction='{way.path}'], a[href='{way.path}'], a[href^='{way.path}?']"
    follow(page, page.locator(last).first)
    if not sent:
        answer(page, way.fields, f"why {action}")
    assert sent == [(way.path, 303)]
    expect(page.locator("#toasts .toast")).to_have_count(1)
    expect(page.locator("#toasts .refused")).to_have_count(0)
    written = rows(world.connection, "audit_log", "action = %s", action)
    assert [line["actor"] for line in written] == ["anna"]
    assert written[0]["result"] in ("done", "asked")
    if VERBS[action].is_destructive:
        assert written[0]["reason"] == f"why {action}"


def answer(page: Page, fields: dict[str, str], reason: str) -> None:
    """Fill the question in and say yes."""
    form = page.locator("main form[method=post]")
    for name, value in fields.items():
        choice = form.locator(f"input[type=radio][name='{name}'][value='{value}']")
        if choice.count():
            choice.check()
        elif form.locator(f"select[name='{name}']").count():
            form.locator(f"select[name='{name}']").select_option(value)
        else:
            form.locator(f"[name='{name}']").fill(value)
    if form.locator("[name=reason]").count():
        form.locator("[name=reason]").fill(reason)
    follow(page, form.locator("button").first)


@pytest.mark.parametrize("action", OTHERS)
def test_any_other_verb_asks_at_its_own_path_and_answers_its_form(
    world: World, page: Page, action: str
) -> None:
    for rule in VERB_RULES[action.replace(".", "_")]:
        (address, *_) = fill(rule, world.filling)
        sent = posts(page)
        shown = page.goto(address)
        assert shown is not None and shown.status == 200, address
        radio = page.locator("main form[method=post] input[type=radio]")
        if radio.count():
            radio.first.check()
        # A form may have a button for a preview before the one that does it.
        follow(page, page.locator("main form[method=post] button:not([name=preview])").first)
        assert len(sent) == 1 and sent[0][1] in (303, 400, 409), (address, sent)


@pytest.mark.parametrize(
    ("verb", "before", "after"), [("retry", "dead", "queued"), ("cancel", "queued", "cancelled")]
)
def test_checked_runs_are_moved_together(
    world: World, page: Page, verb: str, before: str, after: str
) -> None:
    runs = [a_run(world.connection, before, job_type=f"many-{verb}") for _ in range(3)]
    sent = posts(page)
    page.goto(f"/runs?type=many-{verb}")
    for run_id in runs[:2]:
        page.check(f"#box-{run_id}")
    follow(page, page.locator(f".bulk [hx-post='/runs/bulk/{verb}']"))
    if not sent:
        answer(page, {}, "together")
    assert sent == [(f"/runs/bulk/{verb}", 303)]
    expect(page.locator("#toasts")).to_contain_text("2 runs")
    assert [status(world.connection, run_id) for run_id in runs] == [after, after, before]


def test_filters_pages_and_exports_are_links_and_forms(world: World, page: Page) -> None:
    world.connection.execute(
        "INSERT INTO wakeboard.job_runs (job_type) SELECT 'paged' FROM generate_series(1, 60)"
    )
    page.goto("/runs")
    page.get_by_label("Filter", exact=True).fill("type:paged status:queued")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page).to_have_url(re.compile(r"/runs\?status=queued&type=paged$"))
    expect(page).to_have_title(re.compile(r"Runs: status queued, type paged – Wakeboard$"))
    expect(page.locator("tbody tr")).to_have_count(50)
    page.locator("a[rel=next]").click()
    expect(page.locator("tbody tr")).to_have_count(10)
    page.locator("a[rel=prev]").click()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_label("Remove the filter status").click()
    expect(page).to_have_url(re.compile(r"/runs\?type=paged$"))
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename.endswith(".csv")


def test_display_is_chosen_by_a_form(world: World, page: Page) -> None:
    run_id = a_run(world.connection, "dead")
    page.goto(f"/runs/{run_id}")
    page.locator("#account summary").click()
    page.locator("#account a[href='/display']").click()
    page.locator("main [name=theme]").select_option("dark")
    page.locator("main [name=zone]").select_option("Asia/Tokyo")
    page.get_by_role("button", name="Keep").click()
    expect(page).to_have_url(re.compile(f"/runs/{run_id}$"))
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("#clock")).to_contain_text("JST")
    page.goto("/display")
    expect(page.locator("main [name=zone]")).to_have_value("Asia/Tokyo")
    page.locator("main [name=theme]").select_option("")
    page.locator("main [name=zone]").select_option("")
    page.get_by_role("button", name="Keep").click()
    expect(page.locator("#clock")).to_contain_text("UTC")


@pytest.mark.parametrize("is_same", [True, False])
def test_a_form_that_comes_after_the_session_ended_keeps_its_reason(
    world: World, chromium: Browser, is_same: bool
) -> None:
    connection = world.connection
    run_id = a_run(connection, "queued")
    with profile(chromium, world.dashboard.url, connection, java_script_enabled=False) as opened:
        page = opened.new_page()
        page.goto(f"/runs/{run_id}/cancel")
        newest = "(SELECT max(created_at) FROM wakeboard.sessions)"
        connection.execute(f"DELETE FROM wakeboard.sessions WHERE created_at = {newest}".encode())
        answer(page, {}, "the shop is closed & dark")
        expect(page.locator("main")).to_contain_text("Nothing was done.")
        expect(page.locator("main")).to_contain_text("the shop is closed & dark")
        assert status(connection, run_id) == "queued"
        page.get_by_role("link", name="Sign in").click()
        sign_in(page, connection, "anna" if is_same else "vera")
        expect(page).to_have_url(re.compile(f"/runs/{run_id}/cancel"))
        expect(page.locator("[name=reason]")).to_have_value("the shop is closed & dark" if is_same else "")
        follow(page, page.locator("main form[method=post] button").first)
        assert status(connection, run_id) == "cancelled"
