"""The demo in a browser: the printed link, a failed run in the shop, and a Retry that succeeds."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.test_every_page import AXE, VIOLATIONS
from tests.endtoend.test_demo import RETRY_SECONDS, assert_ctrl_c_leaves_nothing
from tests.support.browsers import listen
from tests.support.demo import empty_home, running_demo

pytestmark = pytest.mark.browser


def test_the_printed_link_leads_to_a_retry_that_succeeds(chromium: Browser, complaints: list[str]) -> None:
    with empty_home(None) as home, running_demo(home) as demo:
        context = chromium.new_context()
        context.add_init_script(path=AXE)
        page = listen(context.new_page(), demo.url, complaints)
        page.goto(demo.link)
        page.click("main button")
        expect(page.locator("h1")).to_have_text("Overview")
        page.goto(f"{demo.url}/runs?status=dead&type=sync_stock")
        page.click("tbody a.mono >> nth=0")
        expect(page.locator("#state")).to_contain_text("Gave up")
        page.click("#do-retry")
        expect(page.locator("#state")).to_contain_text("Succeeded", timeout=RETRY_SECONDS * 1000)
        for address in ("/", "/demo", "/errors", "/schedules", "/workers"):
            page.goto(demo.url + address)
        assert complaints == []
        page.goto(f"{demo.url}/demo")
        assert page.evaluate(VIOLATIONS) == []
        context.close()
        assert_ctrl_c_leaves_nothing(demo)
