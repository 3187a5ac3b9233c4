"""Every page there is: nothing blocked, nothing foreign, nothing jumping, readable for everybody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Response, ViewportSize

from tests.conftest import Connection
from tests.support.browsers import Dashboard, listen, profile, refresh, serving
from tests.support.factories import (
    a_definition,
    a_group,
    a_run,
    a_type,
    a_worker,
    an_attempt,
    from_now,
    insert,
)
from wakeboard.config.settings import Settings
from wakeboard.core.errors.error_groups import format_fingerprint
from wakeboard_dashboard import create_app

pytestmark = pytest.mark.browser

DESK: ViewportSize = {"width": 1440, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
AXE = Path(__file__).parent.parent / "vendor" / "axe-4.14.1.min.js"
# The shop of the demo is open in the demo alone.
NOT_PAGES = re.compile(r"^/(_fragments|static|demo)\b|\.(json|csv)$|^/(healthz|readyz|statusz|metrics)$")
HOSTILE = "bad\u202e <b>job</b> with a name that is much longer than any column is wide, " + "x" * 80
UNCONFIRMED = {"key": "letter", "attempt": 1, "lease_epoch": 1, "status": "started"}
HOUR_AGO = from_now("-1 hour")
COUNTED = {
    "outcome": "failed", "duration_bucket": 50, "wait_bucket": 20, "runs": 9, "duration_ms": 300_000,
    "duration_max_ms": 50_000, "wait_ms": 1, "wait_max_ms": 1,
}  # fmt: skip
STATES = ("queued", "running", "succeeded", "failed", "dead", "cancelled")
# What moves without a person's doing, as browsers measure it, from here on.
SHIFTS = """() => {
  window.shifted = []
  new PerformanceObserver(list => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput)
      window.shifted.push([entry.value, ...entry.sources.map(each => each.node?.outerHTML?.slice(0, 99))])
  }).observe({ type: 'layout-shift' })
}"""
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
VIOLATIONS = """async rules => {
  const runOnly = rules && { type: 'rule', values: rules }
  const found = await axe.run(document, { resultTypes: ['violations'], ...(runOnly && { runOnly }) })
  return found.violations.flatMap(
    rule => rule.nodes.map(node => `${rule.id}: ${node.html.slice(0, 160)} ${node.failureSummary}`)
  )
}"""
# Chromium logs what the policy blocks; that the page itself is told as well leaves no doubt.
REPORTED = """addEventListener('securitypolicyviolation', blocked => console.error(
  `blocked by the policy: ${blocked.effectiveDirective} ${blocked.blockedURI}`
))"""
# What can differ in the dark: colours alone.
COLOURS = ["color-contrast", "link-in-text-block"]
AWAKE = b"UPDATE wakeboard.workers SET seen_at = now() WHERE seen_at > now() - interval '50 minutes'"
# Everything that pages show moves on a little.
A_LITTLE_LATER = (
    "UPDATE wakeboard.workers SET seen_at = now() WHERE seen_at > now() - interval '5 minutes'",
    "UPDATE wakeboard.job_definitions SET next_fire_at = next_fire_at + interval '1 minute'",
    "UPDATE wakeboard.job_runs SET locked_until = locked_until + interval '1 s' WHERE status = 'running'",
    "UPDATE wakeboard.job_runs SET status = 'cancelled', finished_at = now() WHERE status = 'queued'",
    "INSERT INTO wakeboard.job_runs (job_type) VALUES ('mail')",
)


@dataclass
class World:
    """A dashboard over rows of every kind, and the addresses of all its pages."""

    dashboard: Dashboard
    connection: Connection
    addresses: list[str]


@dataclass(frozen=True)
class Seen:
    """What one page was like."""

    address: str
    status: int
    headings: int
    complaints: list[str]
    barriers: list[str]
    phone_width: int


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
    a_type(connection, HOSTILE)
    connection.execute(
        "UPDATE wakeboard.job_types SET paused_at = now(), paused_by = 'anna' WHERE name = 'mail'"
    )
    worker, silent = a_worker(connection), a_worker(connection, seen="-1 hour")
    runs = [a_run(connection, state) for state in STATES]
    runs.append(a_run(connection, "running", locked_by=worker, locked_until="10 minutes"))
    runs.append(a_run(connection, "running", locked_by=silent, locked_until="-1 minute"))
    runs.append(
        a_run(
            connection,
            "dead",
            job_type=HOSTILE,
            error_code="E" * 90,
            last_error=HOSTILE * 10,
            payload={"token": "hidden", "text": HOSTILE},
        )
    )
    nightly = a_definition(connection, "nightly")
    a_definition(connection, "paused", enabled=False)
    runs.append(a_run(connection, "succeeded", definition_id=nightly))
    insert(
        connection, "missed_fires", {"definition_id": nightly, "reason": "overlap", "scheduled_for": HOUR_AGO}
    )
    for name in ("mail", HOSTILE):
        insert(connection, "statistics_rollups", COUNTED | {"minute": HOUR_AGO, "job_type": name}, "runs")
    insert(connection, "effects", UNCONFIRMED | {"scope": f"run:{runs[2]}", "run_id": runs[2]})
    insert(
        connection,
        "saved_views",
        {"page": "runs", "name": HOSTILE[:60], "query": "status=dead", "created_by": "anna"},
    )
    insert(
        connection,
        "operations",
        {"verb": "retry", "filter": {"query": f"type={HOSTILE[:80]}"}, "as_of": HOUR_AGO, "total": 9,
         "done": 4, "failed": 1, "succeeded": 2, "skipped": 2, "skips": {"paused": 2}, "actor": HOSTILE[:60]},
    )  # fmt: skip
    for run_id in runs:
        insert(connection, "operation_runs", {"operation_id": 1, "run_id": run_id}, "run_id")
    return {
        "/operations": ["1"],
        "/runs/views": ["1"],
        "/runs": [str(run_id) for run_id in runs],
        "/leases": [str(runs[7])],
        "/schedules": ["nightly", "paused"],
        "/types": ["mail"],
        "/workers": [worker],
        "/errors": ["smtp_down", "E" * 90],
        "/effects": ["1"],
        "<group:": [a_failing_group(connection)],
    }


def a_failing_group(connection: Connection) -> str:
    """Write an error group with everything that its page can show; return what its address has."""
    number = a_group(
        connection, "mail", "E" * 90, HOSTILE * 10, first_run_id=1, frame="crm.py in send",
        returned_at="-1 hour", quiet_from_at="-9 days", muted_until="1 day", muted_by="anna",
        muted_reason=HOSTILE,
    )  # fmt: skip
    a_group(connection, "report", "E" * 90, HOSTILE * 10, frame="crm.py in send")
    trace = 'Traceback (most recent call last):\n  File "/srv/crm.py", line 9, in send\n    send()\nE: gone'
    for state in ("failed", "dead"):
        run = a_run(connection, state, error_group=number, attempts=0, last_error=HOSTILE)
        an_attempt(
            connection, run, outcome="failed", error_code="E" * 90, error_group=number, traceback=trace
        )
    return format_fingerprint(number)


def fill(rule: str, filling: dict[str, list[str]]) -> list[str]:
    """Return the addresses of a rule: each of its arguments as the world has them."""
    if rule.startswith("/runs/bulk/"):
        all_of = [f"/runs/bulk/{verb}?since=24h" for verb in ("retry", "cancel", "again")]
        return all_of + [f"/runs/bulk/{verb}?run={filling['/runs'][0]}" for verb in ("retry", "cancel")]
    if rule == "/runs/views/save":
        return ["/runs/views/save?query=status%3Ddead"]
    if rule == "/runs/find":
        return ["/runs/find?text=status:dead", "/runs?status=dead&type=mail", "/runs?q=no+such+words"]
    if rule.endswith("/attempts/<id:lease_epoch>"):
        # The first that has ended.
        return [f"/runs/{filling['/runs'][2]}/attempts/1"]
    if rule == "/night":
        return ["/night", "/night?since=24h"]
    if "<" not in rule:
        return [rule]
    given = next((values for start, values in filling.items() if rule.startswith(f"{start}/")), ["1"])
    if "<group:" in rule:
        given = filling["<group:"]
    # Each thing has its page; one of them is enough for the questions that verbs ask.
    return [re.sub(r"<[^>]+>", value, rule) for value in (given if rule.count("/") == 2 else given[:1])]


@pytest.fixture(scope="module")
def walk(world: World, chromium: Browser) -> list[Seen]:
    """What was found on a walk through every page: on a desk and a phone, in the light and the dark."""
    with profile(chromium, world.dashboard.url, world.connection) as opened:
        opened.add_init_script(path=AXE)
        opened.add_init_script(REPORTED)
        complaints: list[str] = []
        page = listen(opened.new_page(), world.dashboard.url, complaints)
        return [look(page, address, complaints) for address in world.addresses]


def look(page: Page, address: str, complaints: list[str]) -> Seen:
    """Return what is to be seen at ``address``; empties ``complaints``."""
    answer = page.goto(address)
    if page.locator("[data-live]").count():
        with page.expect_response("**/_fragments/**"):
            refresh(page)
    headings = page.locator("h1").count()
    said, barriers = list(complaints), page.evaluate(VIOLATIONS)
    page.emulate_media(color_scheme="dark")
    barriers += [f"in the dark: {each}" for each in page.evaluate(VIOLATIONS, COLOURS)]
    page.set_viewport_size(PHONE)
    barriers += [f"on a phone, in the dark: {each}" for each in page.evaluate(VIOLATIONS, COLOURS)]
    page.emulate_media(color_scheme="light")
    barriers += [f"on a phone: {each}" for each in page.evaluate(VIOLATIONS)]
    width = page.evaluate("document.documentElement.scrollWidth")
    page.set_viewport_size(DESK)
    # What the checker itself did is not the page's doing: its own inline styles are blocked.
    said += [each for each in complaints[len(said) :] if "style" not in each]
    complaints.clear()
    return Seen(address, answer.status if answer else 0, headings, said, barriers, width)


def test_the_checker_is_the_published_one() -> None:
    (line,) = [line for line in (AXE.parent / "vendor.txt").read_text().splitlines() if line[0] != "#"]
    name, *_, published = line.split()
    assert (name, published) == (AXE.name, sha256(AXE.read_bytes()).hexdigest())


def test_every_page_is_there_under_one_heading(walk: list[Seen]) -> None:
    assert len(walk) > 30
    assert [seen for seen in walk if (seen.status, seen.headings) != (200, 1)] == []


def test_no_page_is_blocked_complains_or_asks_another_site(walk: list[Seen]) -> None:
    assert {seen.address: seen.complaints for seen in walk if seen.complaints} == {}


def test_no_page_scrolls_sideways_on_a_phone(walk: list[Seen]) -> None:
    assert {seen.address: seen.phone_width for seen in walk if seen.phone_width > PHONE["width"]} == {}


def test_no_barrier_no_violation_of_the_policy_and_no_error_on_any_page(walk: list[Seen]) -> None:
    """On a desk and a phone, in the light and the dark, all pages together."""
    found = [(len(seen.barriers), len(seen.complaints)) for seen in walk]
    assert [sum(column) for column in zip(*found, strict=True)] == [0, 0], f"of {len(walk)} pages"


def test_axe_finds_nothing_on_a_desk_and_a_phone_in_the_light_and_the_dark(walk: list[Seen]) -> None:
    found = [f"{seen.address}: {barrier}" for seen in walk for barrier in seen.barriers]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("address", ["/", "/runs", "/leases", "/schedules", "/workers"])
def test_nothing_jumps_during_live_updates(world: World, chromium: Browser, address: str) -> None:
    # The walk took minutes: who was alive at its beginning is alive now.
    world.connection.execute(AWAKE)
    with profile(chromium, world.dashboard.url, world.connection) as opened:
        page = opened.new_page()
        page.goto(address)
        page.wait_for_load_state("networkidle")
        page.evaluate(SHIFTS)
        for _ in range(3):
            for statement in A_LITTLE_LATER:
                world.connection.execute(statement.encode())
            with page.expect_response(is_new_fragment, timeout=15_000):
                refresh(page)
            page.wait_for_load_state("networkidle")
            page.evaluate(PAINTED)
        shifted = page.evaluate("window.shifted")
        assert sum(entry[0] for entry in shifted) < 0.01, shifted


def is_new_fragment(response: Response) -> bool:
    return "/_fragments/" in response.url and response.status == 200
