"""What a worker does with the types that its handlers' module registered."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.support.processes import wait_until
from wakeboard.config import log
from wakeboard.handlers.registry import JobType
from wakeboard.runtime.loop.app import App
from wakeboard.runtime.loop.claim_planner import ClaimPlanner
from wakeboard.runtime.worker import Worker


def ready(*, is_tick: bool = False, **leases: float | None) -> list[dict[str, Any]]:
    """Let a worker with leases of 30 s hear of types with these leases; return what it publishes."""
    app = App(Worker("w", is_tick=is_tick), cast(Any, None), ClaimPlanner(2), None)
    policies = [JobType(name, print, lease_seconds=lease).policy() for name, lease in leases.items()]
    return [dict(policy) for policy in app.handle_ready(policies)]


def test_a_lease_below_the_workers_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text")
    log.flush()
    capsys.readouterr()
    published = ready(short=1.0, same=30.0, longer=60.0, none=None)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.partition(" ")[2] == (
        "WARNING A type's lease is shorter than this worker's (WAKEBOARD_LEASE_SECONDS), which counts."
        " type=short lease_seconds=1s worker_lease_seconds=30s"
    )
    assert [policy["lease_seconds"] for policy in published] == [1.0, 30.0, 60.0, None]


def test_a_tick_says_so_only_when_it_has_something_else_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text")
    ready(short=1.0, is_tick=True)
    assert "lease" not in capsys.readouterr().err
    log.note("Something was done.")
    assert "which counts" in capsys.readouterr().err


def test_a_template_that_cannot_be_started_is_tried_again_later(capsys: pytest.CaptureFixture[str]) -> None:
    class NoRoom:
        starts = 0

        def start(self) -> None:
            self.starts += 1
            raise OSError("Resource temporarily unavailable")

    children, planner = NoRoom(), ClaimPlanner(2)
    app = App(Worker("w"), cast(Any, children), planner, None)
    app.handle_dead_fork_server("was killed")
    wait_until(lambda: [app.step(), children.starts][1] == 2, 10, "it is tried twice")
    assert app.is_down
    assert app.down_seconds > 0
    app.handle_ready([JobType("mail", print).policy()])
    assert app.down_seconds == 0
    assert planner.demand.error == "not started: OSError: Resource temporarily unavailable"
    assert "starting another" in capsys.readouterr().err
