"""What the buttons that copy put into the clipboard."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.conftest import Connection
from tests.support.factories import a_run

pytestmark = pytest.mark.browser


def test_a_payload_and_a_command_are_copied_as_they_are_shown(
    page: Page, context: BrowserContext, connection: Connection, complaints: list[str]
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    payload = {"n": [1, 2], "text": '<b>"quoted" & \\ more</b>'}
    run_id = a_run(connection, "dead", payload=payload)
    page.goto(f"/runs/{run_id}")
    for label, expected in (
        ("Copy payload", json.dumps(payload, indent=2)),
        ("Copy command", f"wakeboard run {run_id}"),
    ):
        page.get_by_role("button", name=label).click()
        expect(page.get_by_text("Copied.").last).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == expected
    assert complaints == []
