"""What a page costs on a slow line: bytes and requests of a first load, as the browser counts them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, CDPSession, Page, expect

from tests.conftest import Connection
from tests.support.browsers import Dashboard, profile, serving
from wakeboard.demo import history, shop

pytestmark = pytest.mark.browser

MOST_BYTES = 41_000
MOST_REQUESTS = 8
# Lists and the report of a night say more than the overview.
MOST_BYTES_ELSEWHERE = 60_000


@dataclass
class Wire:
    """What a page asked for until it was loaded: bytes with headers, by address; what came from the cache.

    What is asked for after that (polls, every two seconds) is no part of a load, however slow the machine.
    """

    session: CDPSession
    addresses: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    is_loaded: bool = False

    @classmethod
    def of(cls, page: Page) -> Wire:
        """Listen to all that ``page`` loads from now on."""
        wire = cls(page.context.new_cdp_session(page))
        wire.session.on("Network.requestWillBeSent", wire._asked)
        wire.session.on("Network.requestServedFromCache", lambda event: wire.kept.add(event["requestId"]))
        wire.session.on("Network.responseReceived", wire._answered)
        wire.session.on("Network.loadingFinished", wire._finished)
        wire.session.on("Page.loadEventFired", wire._loaded)
        wire.session.send("Network.enable")
        wire.session.send("Page.enable")
        return wire

    def _loaded(self, event: dict[str, float]) -> None:
        self.is_loaded = True

    def _asked(self, event: dict[str, dict[str, str]]) -> None:
        if not self.is_loaded:
            self.addresses[str(event["requestId"])] = event["request"]["url"]

    def _answered(self, event: dict[str, dict[str, bool]]) -> None:
        if event["response"].get("fromDiskCache"):
            self.kept.add(str(event["requestId"]))

    def _finished(self, event: dict[str, int]) -> None:
        if str(event["requestId"]) in self.addresses.keys() - self.kept:
            self.sizes[str(event["requestId"])] = event["encodedDataLength"]

    @property
    def figures(self) -> dict[str, int]:
        """Bytes by path."""
        return {urlsplit(self.addresses[key]).path: size for key, size in self.sizes.items()}

    def told(self, what: str) -> str:
        """Return the figures as a table for people."""
        rows = [f"{size:7,} {path}" for path, size in sorted(self.figures.items())]
        return "\n".join([f"{what}: {len(rows)} requests, {sum(self.sizes.values()):,} bytes", *rows])


@pytest.fixture(scope="module")
def lived_in(chromium: Browser, shared_database: str, shared: Connection) -> Iterator[Dashboard]:
    """The dashboard of a shop with a week behind it."""
    shop.create_tables(shared)
    assert history.write_history(shared) > 1000
    history.write_stuck_run(shared)
    with serving(shared_database) as served:
        yield served


def test_the_first_load_of_the_overview_is_light_and_the_second_is_the_page_alone(
    chromium: Browser, lived_in: Dashboard, shared: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    with profile(chromium, lived_in.url, shared) as opened:
        page = opened.new_page()
        first = Wire.of(page)
        page.goto("/", wait_until="load")
        expect(page.locator("svg.chart")).not_to_have_count(0)
        loaded = dict(first.sizes)
        assert loaded
        with capsys.disabled():
            print("\n" + first.told("overview, first load"))
        assert sum(loaded.values()) <= MOST_BYTES, first.told("too heavy")
        assert len(loaded) <= MOST_REQUESTS, first.told("too many")
        # What the page of before still asks for is not the next one's.
        page.goto("about:blank")
        second = Wire.of(page)
        page.goto("/runs", wait_until="load")
        with capsys.disabled():
            print(second.told("runs, with the files kept"))
        assert set(second.figures) == {"/runs"}


@pytest.mark.parametrize("address", ["/runs", "/errors", "/night", "/schedules", "/system"])
def test_no_other_page_is_heavy_at_its_first_load(
    chromium: Browser,
    lived_in: Dashboard,
    shared: Connection,
    capsys: pytest.CaptureFixture[str],
    address: str,
) -> None:
    with profile(chromium, lived_in.url, shared) as opened:
        page = opened.new_page()
        wire = Wire.of(page)
        page.goto(address, wait_until="load")
        with capsys.disabled():
            print("\n" + wire.told(address))
        assert sum(wire.sizes.values()) <= MOST_BYTES_ELSEWHERE, wire.told("too heavy")
        assert len(wire.sizes) <= MOST_REQUESTS, wire.told("too many")
