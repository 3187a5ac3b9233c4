"""What waits in a child behind a run that goes on is taken back, and never begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.workers import child_processes as nurseries
from tests.support.workers.child_processes import Nursery, assign
from wakeboard.core.process.assignment import Assignment
from wakeboard.runtime.processes.protocol import AttemptEnd

APP = nurseries.APP
nursery = nurseries.nursery


def taken_back(nursery: Nursery) -> list[Assignment]:
    """Ask until something comes back, a moment between two times, as the loop does."""
    found: list[Assignment] = []

    def come() -> bool:
        found.extend(nursery.children.take_back(0))
        return bool(found)

    nursery.wait_until(come)
    return found


def test_what_waits_behind_a_run_that_goes_on_comes_back_and_never_begins(
    nursery: Nursery, tmp_path: Path
) -> None:
    long, notes = assign("wait_for", {"file": str(tmp_path / "end")}), [assign("echo") for _ in range(3)]
    nursery.begin(long, *notes)
    assert nursery.children.take_back(0) == [], "the child may be about to begin the next"
    assert taken_back(nursery) == notes
    assert nursery.children.outstanding(0) == [long]
    after = assign("echo", {"n": 1})
    nursery.children.send(0, [after])
    (tmp_path / "end").touch()
    answered = [nursery.wait_for(AttemptEnd) for _ in range(2)]
    assert [one.assignment for one in answered] == [long, after], "what is sent later runs as ever"
    assert nursery.run(assign("echo"))[0].answer.kind == "returned"
    assert not [event for event in nursery.events if isinstance(event, AttemptEnd)]


def test_what_the_child_has_left_out_when_the_run_has_ended_by_then_answers_that_it_did_not_begin(
    nursery: Nursery, tmp_path: Path
) -> None:
    long, notes = assign("wait_for", {"file": str(tmp_path / "end")}), [assign("echo") for _ in range(3)]
    nursery.begin(long, *notes)
    nursery.children.take_back(0)
    (tmp_path / "end").touch()
    answered = [nursery.wait_for(AttemptEnd) for _ in range(4)]
    assert [(one.assignment, one.answer.kind) for one in answered] == [
        (long, "returned"), *((one, "unbegun") for one in notes),
    ]  # fmt: skip
    assert nursery.children.take_back(0) == []


def test_answers_that_waited_for_the_run_come_with_what_is_taken_back(
    nursery: Nursery, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    end.touch()
    # Known as short now: the answer before waits for the one after.
    nursery.run(*(assign("wait_for", {"file": str(end)}) for _ in range(3)))
    end.unlink()
    short, long, behind = assign("nothing"), assign("wait_for", {"file": str(end)}), assign("nothing")
    nursery.run(assign("nothing"))
    nursery.children.send(0, [short, long, behind])
    nursery.wait_until(lambda: (now := nursery.children.current(0)) and now.run_id == long.run_id)
    assert taken_back(nursery) == [behind]
    assert nursery.wait_for(AttemptEnd).assignment == short
    end.touch()
    assert nursery.wait_for(AttemptEnd).assignment == long
    assert nursery.run(assign("nothing"))[0].answer.kind == "returned"


@pytest.mark.parametrize("begun", [True, False])
def test_nothing_is_taken_back_where_nothing_runs_or_nothing_waits(
    nursery: Nursery, tmp_path: Path, begun: bool
) -> None:
    if begun:
        nursery.begin(assign("wait_for", {"file": str(tmp_path / "end")}))
    assert [nursery.children.take_back(0) for _ in range(3)] == [[], [], []]
    (tmp_path / "end").touch()


def test_a_child_that_follows_one_that_died_begins_all_it_is_sent(nursery: Nursery, tmp_path: Path) -> None:
    nursery.begin(assign("wait_for", {"file": str(tmp_path / "end")}), assign("echo"))
    taken_back(nursery)
    nursery.children.kill(0)
    nursery.wait_until(lambda: nursery.children.pid(0) is None)
    assert [one.answer.kind for one in nursery.run(assign("echo"), assign("echo"))] == ["returned"] * 2
