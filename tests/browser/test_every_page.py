"""Every page there is: nothing blocked, nothing foreign, nothing jumping, readable for everybody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from dashboard import create_app
from tests.browser.places import Dashboard, listen, profile, serving
from tests.conftest import Connection
from tests.factories import a_definition, a_run, a_type, a_worker, an_attempt, insert
from worker.settings import Settings

pytestmark = pytest.mark.browser

AXE = Path(__file__).parent.parent / "vendor" / "axe-4.14.1.min.js"
NOT_PAGES = re.compile(r"^/(_fragments|static)/|\.(json|csv)$|^/(healthz|readyz|statusz|metrics)$")
HOSTILE = "bad\u202e <b>job</b> with a name that is much longer than any column is wide, " + "x" * 100
STATES = ("queued", "running", "succeeded", "failed", "dead", "cancelled")
# The shift of everything that moved without a person's doing, as browsers measure it.
SHIFTS = """() => {
  window.shifted = []
  new PerformanceObserver(list => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput)
      window.shifted.push([entry.value, ...entry.sources.map(source => source.node?.outerHTML?.slice(0, 120))])
  }).observe({ type: 'layout-shift', buffered: true })
}"""
VIOLATIONS = """async () => {
  const found = await axe.run(document, { resultTypes: ['violations'] })
  return found.violations.flatMap(rule => rule.nodes.map(node => `${rule.id}: ${node.html.slice(0, 160)} ${node.failureSummary}`))
}"""


@dataclass
class World:
    """A dashboard over rows of every kind, and the addresses of all its pages."""

    dashboard: Dashboard
    connection: Connection
    addresses: list[str]


@pytest.fixture(scope="module")
def world(chromium: Browser, shared_database: str, shared: Connection) -> Iterator[World]:
    """Rows of every kind, and a dashboard on them."""
    filling = furnish(shared)
    app = create_app(Settings.load({"database_url": shared_database}, environ={}))
    rules = [rule.rule for rule in app.url_map.iter_rules() if "GET" in (rule.methods or ())]
    pages = [rule for rule in rules if not NOT_PAGES.search(rule)]
    with serving(shared_database) as served:
        yield World(served, shared, sorted({address for rule in pages for address in fill(rule, filling)}))


def furnish(connection: Connection) -> dict[str, list[str]]:
    """Write rows of every kind; return what to put into addresses, by the start of their path."""
    a_type(connection, "mail", max_running=2)
    a_type(connection, HOSTILE[:180], paused_at=None)
    connection.execute("UPDATE wakeboard.job_types SET paused_at = now(), paused_by = 'anna' WHERE name = 'mail'")
    worker, silent = a_worker(connection), a_worker(connection, seen="-1 hour")
    runs = [a_run(connection, state, locked_by=worker) if state == "running" else a_run(connection, state) for state in STATES]
    runs.append(a_run(connection, "running", locked_by=silent, locked_until="-1 minute"))
    runs.append(a_run(connection, "dead", job_type=HOSTILE[:180], error_code="E" * 90, last_error=HOSTILE * 10, payload={"token": "hidden", "text": HOSTILE}))
    a_definition(connection, "nightly")
    a_definition(connection, "paused", enabled=False)
    insert(connection, "effects", {"scope": f"run:{runs[0]}", "key": "letter", "run_id": runs[0], "attempt": 1, "lease_epoch": 1, "status": "started"})
    ids = [str(run_id) for run_id in runs]
    return {"/runs": ids, "/leases": [ids[-2]], "/schedules": ["nightly", "paused"], "/types": ["mail"], "/workers": [worker, silent], "/errors": ["smtp_down", "E" * 90], "/effects": ["1"]}


def fill(rule: str, filling: dict[str, list[str]]) -> list[str]:
    """Return the addresses of a rule: each of its arguments as the world has them."""
    if rule.startswith("/runs/bulk/"):
        return [f"/runs/bulk/{verb}?run={filling['/runs'][0]}" for verb in ("retry", "cancel")]
    if rule == "/runs/find":
        return ["/runs/find?text=status:dead", "/runs?status=dead&type=mail", "/runs?q=no+such+words"]
    given = next((values for start, values in filling.items() if rule.startswith(f"{start}/")), ["1"])
    whole_page = rule.count("/") == 2
    return [re.sub(r"<[^>]+>", value, rule) for value in (given if whole_page else given[:1])] if "<" in rule else [rule]


def tab(world: World, opened: BrowserContext, complaints: list[str]) -> Page:
    return listen(opened.new_page(), world.dashboard.url, complaints)


def test_no_page_is_blocked_complains_or_asks_another_site(world: World, chromium: Browser, complaints: list[str]) -> None:
    assert len(world.addresses) > 30
    with profile(chromium, world.dashboard.url, world.connection) as opened:
        page = tab(world, opened, complaints)
        for address in world.addresses:
            answer = page.goto(address)
            assert answer is not None
            if answer.status != 200:
                complaints.append(f"{answer.status} {address}")
            page.wait_for_load_state("networkidle")
            complaints += [f"{address}: no h1"] if page.locator("h1").count() != 1 else []
    assert not complaints, "\n".join(complaints)


def test_no_page_scrolls_sideways_on_a_phone(world: World, chromium: Browser) -> None:
    wide = []
    with profile(chromium, world.dashboard.url, world.connection, viewport={"width": 390, "height": 844}) as opened:
        page = opened.new_page()
        for address in world.addresses:
            page.goto(address)
            width = page.evaluate("document.documentElement.scrollWidth")
            wide += [f"{address}: {width}"] if width > 390 else []
    assert not wide, "\n".join(wide)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(world: World, chromium: Browser, scheme: str) -> None:
    found: list[str] = []
    options: dict[str, Any] = {"color_scheme": scheme, "bypass_csp": True}
    with profile(chromium, world.dashboard.url, world.connection, **options) as opened:
        opened.add_init_script(path=AXE)
        page = opened.new_page()
        for address in world.addresses:
            page.goto(address)
            found += [f"{address}: {violation}" for violation in page.evaluate(VIOLATIONS)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("address", ["/", "/runs", "/leases", "/schedules", "/workers"])
def test_nothing_jumps_while_rows_change(world: World, chromium: Browser, address: str) -> None:
    with profile(chromium, world.dashboard.url, world.connection) as opened:
        page = opened.new_page()
        page.goto(address)
        page.evaluate(SHIFTS)
        for _ in range(3):
            a_run(world.connection, "dead")
            world.connection.execute("UPDATE wakeboard.workers SET seen_at = now() WHERE seen_at > now() - interval '5 minutes'")
            with page.expect_response(lambda response: "/_fragments/" in response.url and response.status == 200, timeout=15_000):
                page.evaluate("htmx.trigger(document, 'live:now')")
            page.wait_for_load_state("networkidle")
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        shifted = page.evaluate("window.shifted")
        assert sum(entry[0] for entry in shifted) < 0.01, shifted
