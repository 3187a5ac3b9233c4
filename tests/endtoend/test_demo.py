"""The first two minutes with the product, as an ordinary OS user: one command, a link, a retry, Ctrl-C."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.demo import Demo, empty_home, running_demo
from tests.support.http_client import JSON, Visitor, sign_in
from tests.support.processes import wait_until

USER = "nobody" if os.geteuid() == 0 else None
RETRY_SECONDS = 180  # the shop's provider has outages of a minute and a half, and retries get over them


@pytest.fixture
def home() -> Iterator[Path]:
    """The empty home of an ordinary user."""
    with empty_home(USER) as folder:
        yield folder


def test_an_ordinary_user_starts_the_demo_retries_a_run_and_stops_it_without_a_trace(home: Path) -> None:
    with running_demo(home, USER) as demo:
        assert {each.username() for each in demo.processes()} == {USER or psutil.Process().username()}
        visitor = sign_in(demo.link)
        run_id = a_dead_run(visitor)
        answer = visitor.post(f"/runs/{run_id}/retry", headers=JSON, json_body={"reason": "it is back"})
        assert (answer.code, answer.json["changed"]) == (200, True)
        wait_until(lambda: status(visitor, run_id) == "succeeded", RETRY_SECONDS, "the retried run succeeded")
        assert visitor.get("/demo").code == 200
        assert "Traceback" not in demo.up.output
        assert_ctrl_c_leaves_nothing(demo)
    with running_demo(home, USER) as second:
        assert status(sign_in(second.link), run_id) == "succeeded"
        assert_ctrl_c_leaves_nothing(second)


def a_dead_run(visitor: Visitor) -> int:
    """Return a run that died while the provider of stock was away; it is back now."""
    found = visitor.get("/runs.json?status=dead&type=sync_stock&since=7d").json["items"]
    assert found
    return int(found[0]["id"])


def status(visitor: Visitor, run_id: int) -> str:
    return str(visitor.get(f"/runs/{run_id}.json").json["status"])


def assert_ctrl_c_leaves_nothing(demo: Demo) -> None:
    assert len(demo.processes()) > 8
    assert demo.press_ctrl_c() == 0, demo.up.output
    wait_until(lambda: not demo.processes(), 3, "every process of the demo has ended")
    assert demo.sockets() == []
