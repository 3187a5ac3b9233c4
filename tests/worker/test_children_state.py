"""The table of what a run leaves in its process, on the page for authors of handlers: each line holds."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.processes import ROOT
from tests.support.workers.apps.process_state import LINES
from tests.support.workers.child_processes import Nursery, assign
from wakeboard.runtime.processes.protocol import ChildExit

PAGE = ROOT / "docs" / "handlers.md"
BACK, SEEN, ENDS, STAYS = "| yes | | |", "| yes¹ | | |", "| | yes | |", "| | | yes |"
NEEDS_ROOT = ("another user", "another group", "other groups", "another root")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc, chroot")


def table() -> dict[str, str]:
    """What becomes of each line of the page."""
    part = PAGE.read_text().partition("| a run leaves | ")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| (.+?) (\|[^a-z]*yes¹?[^a-z]*\|)$", part, re.M))


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One slot, whose processes may open few files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
    nursery = Nursery(1, app="tests.support.workers.apps.process_state", patience=60, child_exit_seconds=1)
    try:
        yield nursery.start()
    finally:
        nursery.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def begin_anew(nursery: Nursery) -> None:
    """Have a process that has not run anything."""
    if nursery.children.pid(0) is not None:
        nursery.children.kill(0)
        nursery.wait_for(ChildExit)
    nursery.events.clear()


def runs(nursery: Nursery, job_type: str, **payload: object) -> Any:
    """Run one, in the slot's next process where the last one has ended; return what it returns, read."""
    run = assign(job_type, payload)
    nursery.children.send(0, [run])
    while True:
        nursery.wait_until(lambda: nursery.events)
        event = nursery.events.pop(0)
        if isinstance(event, ChildExit):
            assert event.is_clean, event
            if event.unstarted:
                nursery.children.send(0, event.unstarted)
        elif getattr(event, "assignment", None) == run:
            answer = event.answer  # type: ignore[union-attr]
            assert answer.kind == "returned", answer
            return json.loads(answer.result or "null")


def test_the_page_has_every_line_and_no_other() -> None:
    assert list(table()) == list(LINES)
    assert set(table().values()) == {BACK, SEEN, ENDS, STAYS}


@pytest.mark.parametrize("how", ["long", "short", "short, of a known type"])
@pytest.mark.parametrize("what", LINES)
def test_what_a_run_leaves_is_put_back_or_ends_its_process_or_stays_as_the_page_says(
    nursery: Nursery, what: str, how: str
) -> None:
    fate = table()[what]
    if what.startswith(NEEDS_ROOT) and os.geteuid() != 0:
        pytest.skip("only root may")
    if what.startswith("the processors") and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one processor")
    if how == "short, of a known type" and fate != BACK:
        pytest.skip("it is seen later, as the page says")
    begin_anew(nursery)
    if how != "long":
        runs(nursery, "state_all_short")
    if how == "short, of a known type":
        runs(nursery, "state_litter")
    pid, before = runs(nursery, "state_canary", what=what)
    runs(nursery, "state_litter", what=what, slow=how == "long")
    later, after = runs(nursery, "state_canary", what=what)
    if what == "half of the files that it may have open" and how != "long":
        assert (later, after) == (pid, 350), (
            "it is looked at after ten milliseconds, and one run in a hundred"
        )
        return
    assert (later == pid) is (fate != ENDS)
    if what == "processes":
        assert (before, after) == ([], [False])
    else:
        assert (after == before) is (fate != STAYS)


def test_a_type_that_has_left_something_once_is_looked_at_after_each_run(nursery: Nursery) -> None:
    begin_anew(nursery)
    runs(nursery, "state_all_short")
    before = runs(nursery, "state_canary", what="the locale")
    for _ in range(5):
        runs(nursery, "state_litter", what="the locale")
        assert runs(nursery, "state_canary", what="the locale") == before
