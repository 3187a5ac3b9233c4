"""Nothing of a run outlives it, and nothing outlives the supervisor."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.processes import ROOT, SOURCES, wait_until
from tests.support.workers.apps.misbehaving import ESCAPED
from tests.support.workers.child_processes import Nursery, assign, descendants, lives, open_files, wait_gone
from wakeboard.runtime.processes.protocol import AttemptEnd, ChildExit


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    """Two slots, ready."""
    nursery = Nursery().start()
    yield nursery
    nursery.stop()


def shown(nursery: Nursery) -> dict[str, object]:
    """What a fresh run sees of its process."""
    [finished] = nursery.run(assign("show"))
    assert finished.answer.result is not None
    seen: dict[str, object] = json.loads(finished.answer.result)
    return seen


def test_the_next_run_finds_the_process_as_the_first_did(nursery: Nursery) -> None:
    before = shown(nursery)
    for litter in ("litter", "litter_slowly"):
        nursery.run(assign(litter))
        assert shown(nursery) == before


def test_after_the_shortest_run_the_next_one_is_in_its_folder(nursery: Nursery) -> None:
    before = shown(nursery)["folder"]
    for _ in range(3):
        nursery.run(assign("wander"))
        assert shown(nursery)["folder"] == before


@pytest.mark.parametrize("short", ["short", "too short"])
def test_no_answer_arrives_before_what_its_run_left_has_ended(nursery: Nursery, short: str) -> None:
    nursery.run(assign("look_away", {"short": short}))
    answers = nursery.run(assign("nothing"), assign("leave_process"), *(assign("nothing") for _ in range(5)))
    [pid] = [int(finished.answer.result) for finished in answers if finished.answer.result]
    assert not lives(pid)


def test_what_a_quick_run_left_has_ended_when_the_next_one_runs(nursery: Nursery, tmp_path: Path) -> None:
    nursery.run(assign("look_away", {"short": "short"}), assign("wait_if_asked", False))
    later = assign("wait_if_asked", True)
    nursery.children.send(0, [assign("leave_process", {"file": str(tmp_path / "left")}), later])
    nursery.wait_until(lambda: (now := nursery.children.current(0)) and now.run_id == later.run_id)
    assert not lives(int((tmp_path / "left").read_text()))


def test_threads_that_a_handler_joined_cost_no_child(nursery: Nursery) -> None:
    pids = [nursery.run(assign("join_threads"))[0].answer.result for _ in range(100)]
    assert len(set(pids)) == 1
    assert not [event for event in nursery.events if isinstance(event, ChildExit)]


def test_a_thread_left_running_costs_the_child_but_not_the_answer(nursery: Nursery) -> None:
    (first,) = nursery.run(assign("leave_thread"))
    assert nursery.wait_for(ChildExit).running is None
    assert shown(nursery)["pid"] != int(first.answer.result or 0)


def test_processes_that_escape_die_with_their_run(nursery: Nursery, tmp_path: Path) -> None:
    [finished] = nursery.run(assign("escape", {"folder": str(tmp_path)}))
    assert finished.answer.kind == "returned"
    pids = [int((tmp_path / name).read_text()) for name in ESCAPED]
    assert [pid for pid in pids if lives(pid)] == []
    assert lives(nursery.pid())


def test_processes_that_escape_die_with_a_kill(nursery: Nursery, tmp_path: Path) -> None:
    nursery.begin(assign("escape", {"folder": str(tmp_path), "wait": True}))
    nursery.begin(assign("wait"), slot=1)
    nursery.wait_until((tmp_path / "child").exists)
    pids = [int((tmp_path / name).read_text()) for name in ESCAPED]
    assert len([pid for pid in pids if lives(pid)]) == 4
    nursery.children.kill(0)
    nursery.wait_for(ChildExit)
    assert [pid for pid in pids if lives(pid)] == []
    assert lives(nursery.pid(1))


def test_twenty_thousand_runs_leave_no_zombie_and_no_descriptor() -> None:
    nursery = Nursery(recycle_runs=3_000).start()
    before = shown(nursery)
    nursery.run(assign("nothing"), slot=1)
    files = open_files()
    left = {slot: [assign("nothing") for _ in range(10_000)] for slot in (0, 1)}
    done = 0
    while done < 20_000:
        for slot, runs in left.items():
            if runs and len(nursery.children.outstanding(slot)) < 300:
                nursery.children.send(slot, [runs.pop() for _ in range(min(100, len(runs)))])
        nursery.wait_until(lambda: nursery.events)
        for event in nursery.events:
            if isinstance(event, ChildExit):
                left[event.slot] += event.unstarted
        done += sum(isinstance(event, AttemptEnd) for event in nursery.events)
        nursery.events.clear()
    assert shown(nursery)["files"] == before["files"]
    nursery.run(assign("nothing"), slot=1)
    assert len(open_files()) == len(files)
    children = {nursery.pid(0), nursery.pid(1)}
    fork_server = psutil.Process(nursery.pid(0)).ppid()
    assert set(descendants(fork_server)) == children, "nothing else is left, not even a zombie"
    assert all(lives(pid) for pid in children)
    nursery.stop()


DRIVER = f"""
import sys
sys.path[:0] = {SOURCES!r}.split(":")
from tests.support.workers.child_processes import Nursery, assign
nursery = Nursery(3).start()
for slot in range(2):
    folder = sys.argv[1] + "/" + str(slot)
    nursery.begin(assign("escape", {{"folder": folder, "wait": True}}), slot=slot)
nursery.run(assign("nothing"), slot=2)
from pathlib import Path
nursery.wait_until(lambda: all(Path(sys.argv[1], str(slot), "child").exists() for slot in range(2)))
print("up", flush=True)
nursery.wait_until(lambda: False)
"""


def living_below(pid: int) -> list[int]:
    return [each for each in descendants(pid) if lives(each)]


def test_nothing_survives_a_supervisor_killed_with_sigkill(tmp_path: Path) -> None:
    for turn in range(20):
        folder = tmp_path / str(turn)
        for slot in range(2):
            (folder / str(slot)).mkdir(parents=True)
        supervisor = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(folder)], stdout=subprocess.PIPE, cwd=ROOT, text=True
        )
        assert supervisor.stdout is not None
        with supervisor.stdout:
            assert supervisor.stdout.readline() == "up\n"
        # What only started another process may be about to end.
        wait_until(lambda pid=supervisor.pid: len(living_below(pid)) == 1 + 3 + 2 * len(ESCAPED))
        below = living_below(supervisor.pid)
        killed_at = time.monotonic()
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        assert wait_gone(below, 2.0) == []
        assert time.monotonic() - killed_at < 2


def test_nothing_survives_a_supervisor_killed_during_the_import(tmp_path: Path) -> None:
    (tmp_path / "slow_app.py").write_text("import time; print('importing', flush=True); time.sleep(600)\n")
    program = (
        f"import sys, time; sys.path[:0] = {SOURCES!r}.split(':')\n"
        "from wakeboard.runtime.processes.children import Children\n"
        "children = Children(1, app='slow_app'); children.start(); time.sleep(600)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, cwd=tmp_path, text=True
    )
    assert supervisor.stderr is not None
    with supervisor.stderr:
        assert supervisor.stderr.readline() == "importing\n"
        below = descendants(supervisor.pid)
        supervisor.kill()
        supervisor.wait()
        assert len(below) == 1
        assert wait_gone(below, 2.0) == []
